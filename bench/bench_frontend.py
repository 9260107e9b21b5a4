"""200 prompts of 100,000 characters at one instant on a real engine: where lensd says that their time before the first token went.

usage: bench_frontend.py [COUNT]     needs .engine; prints a table and, as its last line, one JSON object, also kept in
bench/results/frontend.json. The short form, 20 of them, is tests/engine/test_frontend_real.py.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engine")]

from checkout import ENGINE, serving  # noqa: E402
from frontend_load import Compared, Scraped, at_once, compared, tokens, warm  # noqa: E402
from gateway_real import seconds_until  # noqa: E402
from origin import origin  # noqa: E402
from recorded import Lensd, Recorder  # noqa: E402

COUNT = 200
MIDDLEWARE = "lensd_collectors.vllm.middleware.LensdMiddleware"
QUEUE = "queue-saturation"


def main(argv: list[str]) -> int:
    count = int(argv[1]) if len(argv) > 1 else COUNT
    if lacking := serving.missing(ENGINE, "model-32k"):
        print(f"error: {lacking}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        figures, called_queue = _run(Path(folder), count)
    for name, (value, unit) in figures.items():
        print(f"{name:<34} {value:>10,} {unit}")
    off, before = figures["off_median"][0], figures["caller_before_queue_median"][0]
    budgets = [
        {"name": "front end beside the callers' clock, median", "limit": max(30.0, 0.05 * before), "value": off},
        {"name": "share of the front end that is shown as queue", "limit": 0.1, "value": figures["queue_to_frontend_most"][0]},
        {"name": "requests and moments called queue-saturation", "limit": 0, "value": called_queue},
    ]
    budgets = [{**each, "held": each["value"] <= each["limit"]} for each in budgets]
    document = {
        **origin("frontend"),
        "figures": {name: {"value": value, "unit": unit} for name, (value, unit) in figures.items()},
        "ratios": {},
        "budgets": budgets,
    }
    line = json.dumps(document)
    if count >= COUNT:
        (ROOT / "bench" / "results" / "frontend.json").write_text(line + "\n")
    print(line)
    return 0 if all(each["held"] for each in budgets) else 1


def _run(folder: Path, count: int) -> tuple[dict[str, tuple[float, str]], int]:
    """The figures, and how many requests and moments were called a saturated queue."""
    door = Recorder()
    environment = {"PYTHONPATH": str(ROOT / "collectors"), "LENSD_OTLP": door.url, "LENSD_ENGINE": "e0"}
    engine = serving.Engine(
        ENGINE, folder / "engine.log", model_dir="model-32k", max_model_len=32_768, max_num_seqs=1, api_key="sk-of-the-bench",
        options=("--max-num-batched-tokens", "512", "--middleware", MIDDLEWARE), environment=environment,
        otlp_endpoint=f"{door.url}/v1/traces",
    )  # fmt: skip
    with engine, Scraped(engine, door.url, folder):
        length = tokens(engine)
        warm(engine)
        seconds_until(lambda: bool(door.bodies))
        time.sleep(2)
        begun = time.monotonic()
        seen = at_once(engine, count)
        took = time.monotonic() - begun
        time.sleep(5)
    door.stop()
    lensd = Lensd(folder / "store").hear(door.bodies, look_on_s=15.0)
    rows = lensd.requests()
    queued = sum(row["label"] == QUEUE for row in rows.values())
    queued += len([row for row in lensd.rows("select label from findings") if row["label"] == QUEUE])
    lensd.close()
    return _figures(compared(seen, rows), count, length, took), queued


def _figures(found: list[Compared], count: int, length: int, took: float) -> dict[str, tuple[Any, str]]:
    off = [each.off_ms for each in found]
    return {
        "requests": (count, "request"),
        "served": (len(found), "request"),
        "prompt": (length, "token"),
        "took": (round(took, 1), "s"),
        "caller_first_token_median": (round(statistics.median(each.caller_ms for each in found)), "ms"),
        "caller_before_queue_median": (round(statistics.median(each.before_ms for each in found)), "ms"),
        "frontend_median": (round(statistics.median(each.frontend_ms for each in found)), "ms"),
        "frontend_most": (round(max(each.frontend_ms for each in found)), "ms"),
        "queue_median": (round(statistics.median(each.queue_ms for each in found), 1), "ms"),
        "queue_most": (round(max(each.queue_ms for each in found), 1), "ms"),
        "queue_to_frontend_most": (round(max(each.queue_ms / max(each.frontend_ms, 1.0) for each in found), 4), "share"),
        "after_first_token_most": (round(max(each.after_ms for each in found)), "ms"),
        "off_median": (round(statistics.median(off), 1), "ms"),
        "off_most": (round(max(off), 1), "ms"),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv))
