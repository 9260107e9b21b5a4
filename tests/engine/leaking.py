"""A KV-cache leak in a real engine, and a load whose requests each have a prompt of their own, told twice."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from checkout import ROOT
from gateway_real import ask, count, running, seconds_until, waiting
from recorded import together

CHAT = "/v1/chat/completions"
BLOCKS = 64  # of 128 tokens, of which one is never given out
CALLERS = 4
EVERY = 10


def leaking(folder: Path) -> dict[str, str]:
    """Environment in which a vLLM finds the plugin that keeps blocks; `folder` is written to."""
    about = folder / "keeps_blocks-0.0.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: keeps-blocks\nVersion: 0.0.0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nkeeps_blocks = keeps_blocks:load\n")
    return {"PYTHONPATH": f"{folder}:{ROOT / 'tests/engine/leak_plugin'}", "LEAK_EVERY": str(EVERY)}


class Burst(NamedTuple):
    """How an engine stood after so many requests had ended, by its own gauge, at an instant in seconds since the epoch."""

    ended_at: float
    kv_usage: float


class Load:
    """The same bursts of requests on several engines at once; `bursts` by the engine's name."""

    def __init__(self, engines: dict[str, Any], *, bursts: int = 3, requests: int = 20, pause_s: float = 6.0) -> None:
        self._engines, self._requests = engines, requests
        self.bursts: dict[str, list[Burst]] = {name: [] for name in engines}
        self.began_at = time.time()
        for number in range(bursts):
            for thread in [each for name in engines for each in together(self._caller(name, number), CALLERS)]:
                thread.join(120)
            for name, engine in engines.items():
                seconds_until(lambda engine=engine: (running(engine), waiting(engine)) == (0, 0))
                self.bursts[name].append(Burst(time.time(), count(engine, "vllm:kv_cache_usage_perc")))
            if number < bursts - 1:
                time.sleep(pause_s)

    @property
    def ended_at(self) -> float:
        """When the last request of all ended, in seconds since the epoch."""
        return max(burst.ended_at for of_engine in self.bursts.values() for burst in of_engine)

    def _caller(self, name: str, burst: int) -> Callable[[int], None]:
        def call(caller: int) -> None:
            for prompt in self._prompts(burst, caller):
                body = {
                    "model": "tiny-llama", "messages": [{"role": "user", "content": prompt}], "max_tokens": 300, "ignore_eos": True,
                }  # fmt: skip
                answer = ask(self._engines[name], CHAT, body)
                assert answer.status == 200, answer.body

        return call

    def _prompts(self, burst: int, caller: int) -> Iterator[str]:
        """Some 145 tokens each, a block and more; what is told again is there already where prefixes are cached."""
        each = self._requests // CALLERS
        for turn in range(each):
            number = (burst * CALLERS + caller) * each + turn // 2
            words = " ".join(f"{(number * 37 + place * 11) % 1000:03}" for place in range(30))
            yield f"request {number:03} has words of its own: {words}"
