"""Loads that bring real engines into trouble, each with the id of a request, or the engine, that is then asked about."""

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkout import ROOT
from gateway_real import running, seconds_until
from recorded import together

CONTEXT = 8192
UNFIT_BLOCKS = 3  # of 128 tokens, one of which is never given out: 256 tokens, and 512 are allowed


def unfit(folder: Path) -> dict[str, str]:
    """Environment in which a vLLM finds the plugin that takes the check of its start out; `folder` is written to."""
    about = folder / "fits_anything-0.0.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fits-anything\nVersion: 0.0.0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nfits_anything = fits_anything:load\n")
    return {"PYTHONPATH": f"{folder}:{ROOT / 'tests/engine/unfit_plugin'}"}


def interfere(house: Any, lasts_s: float, look: Callable[[str], None]) -> None:
    """Three answers are decoded while prompts of almost the whole context come; `look` is given the id of one of them meanwhile."""
    over = threading.Event()

    def prefill() -> None:
        number = 0
        while not over.is_set():
            words = " ".join(f"{(number * 7919 + place * 31) % 9973}" for place in range(CONTEXT // 6))
            house.chat(f"prefilled-{number}", content=words, max_tokens=1)
            number += 1

    decoders = together(lambda number: house.chat(f"interfered-{number}", max_tokens=CONTEXT - 600, timeout_s=240), 3)
    seconds_until(lambda: running(house.engine) == 3)
    time.sleep(12)  # how fast they are alone
    filler = together(lambda _: prefill(), 1)
    time.sleep(lasts_s)
    try:
        look("interfered-0")
    finally:
        over.set()
        for thread in (*filler, *decoders):
            thread.join(240)


def unbounded(house: Any, look: Callable[[str], None]) -> None:
    """A request without a limit of its own, which the model never ends; `look` is given its id."""
    house.chat("unbounded-0", max_tokens=None, timeout_s=240)
    look("unbounded-0")


@contextmanager
def never_fits(engine: Any) -> Iterator[None]:
    """A prompt that the cache cannot hold is at the head of the line, with nothing running, for as long as the block lasts."""
    body = json.dumps({"model": engine.model, "prompt": [5] * 450, "max_tokens": 8}).encode()
    request = urllib.request.Request(f"{engine.url}/v1/completions", body, {"Content-Type": "application/json"})
    opened = threading.Thread(target=_ask, args=(request,), daemon=True)
    opened.start()
    time.sleep(2)
    try:
        yield
    finally:
        engine.kill()
        opened.join(10)


def _ask(request: urllib.request.Request) -> None:
    try:
        urllib.request.urlopen(request, timeout=300).read()
    except OSError:
        return
