"""How many settled requests a second one core assembles and judges, with all built-in rules on.

usage: bench_judge.py     prints a table and, as its last line, one JSON object that is also kept in bench/results/judge.json
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from lensd_collectors import conventions as c
from lensd_collectors.rows import EngineSample, Row, SpanRow
from origin import origin

from lensd.alerts.outbox import Outbox
from lensd.diagnosis.runbook import load
from lensd.judge import Judge
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assembler import Assembler

ROOT = Path(__file__).resolve().parent.parent
START = 1_790_000_000_000_000
REQUESTS = 1000
SPACING_US = 10_000
ROUNDS = 3
AT_LEAST = 1500.0
"""Healthy requests a second of CPU; what goes wrong costs more, since findings carry their evidence."""

Attributes = Mapping[str, Any]
OK: Attributes = {c.OUTCOME: "ok", c.DECISION: "allowed", c.HTTP_STATUS: 200, c.DONE_SEEN: True, c.FINISH_REASONS: ["stop"]}
WRONG_KEY: Attributes = {c.OUTCOME: "refused", c.DECISION: "key_unknown", c.HTTP_STATUS: 401, c.SAID_BY: "gateway"}


def spans_of(number: int, ending: Attributes, queue_ms: float) -> Iterator[SpanRow]:
    """Seven spans of one request, as client, gateway, middleware and engine send them."""
    trace, start = f"{number:032x}", START + number * SPACING_US
    ids = {name: f"{number * 8 + index:016x}" for index, name in enumerate(("client", "gateway", "auth", "up", "stream", "mid", "engine"))}

    def span(name: str, parent: str | None, title: str, kind: str, scope: str, ms: tuple[float, float], about: Attributes) -> SpanRow:
        a, b = (start + int(at * 1000) for at in ms)
        return SpanRow(
            trace_id=trace, span_id=ids[name], parent_span_id=ids[parent] if parent else None, name=title, kind=kind, scope=scope,
            engine="e0", started_at=a, ended_at=b, duration_ms=ms[1] - ms[0], status="ok", attributes=msgspec.json.encode(about).decode(),
            src=f"span:{ids[name]}",
        )  # fmt: skip

    request = {c.REQUEST_ID: f"r{number}", c.REQUEST_MODEL: "tiny", c.ENGINE: "e0", c.KEY_ID: "k1", c.IS_STREAMING: True}
    reply = request | {c.RESPONSE_ID: f"chatcmpl-r{number}", c.RESPONSE_MODEL: "tiny", c.OUTPUT_TOKENS: 11, c.CHUNKS: 11} | dict(ending)
    bytes_at = {c.FIRST_BYTE_MS: 40.0 + queue_ms, c.LAST_BYTE_MS: 110.0 + queue_ms}
    latency = {"time_in_queue": queue_ms / 1e3, "time_in_model_prefill": 0.02, "time_in_model_decode": 0.06, "e2e": 0.1 + queue_ms / 1e3}
    end = 120 + queue_ms
    yield span("client", None, c.CLIENT_REQUEST, "client", c.SCOPE_CLIENT, (0, end), request)
    yield span("gateway", "client", "POST /v1/chat/completions", "server", c.SCOPE_GATEWAY, (2, end - 2), reply)
    yield span("auth", "gateway", c.SPAN_AUTH_ROUTING, "internal", c.SCOPE_GATEWAY, (2, 4), {})
    yield span("up", "gateway", c.SPAN_UPSTREAM, "client", c.SCOPE_GATEWAY, (4, end - 3), bytes_at)
    yield span("stream", "gateway", c.SPAN_STREAMING, "internal", c.SCOPE_GATEWAY, (41 + queue_ms, end - 4), {})
    yield span("mid", "up", "POST /v1/chat/completions", "server", c.SCOPE_VLLM, (5, end - 4), bytes_at)
    yield span("engine", "mid", c.SPAN_VLLM_REQUEST, "server", "vllm", (6, end - 5), {f"gen_ai.latency.{k}": v for k, v in latency.items()})


def scrapes(waiting: float) -> list[EngineSample]:
    return [
        EngineSample(seen_at=START + second * 1_000_000, engine="e0", model="tiny", running=8, waiting=waiting, kv_usage=0.2, up=True,
                     generation_tokens_total=1000.0 * second, src=f"scrape:e0@{second}")
        for second in range(-60, 30)
    ]  # fmt: skip


def once(ending: Attributes, queue_ms: float) -> tuple[float, int]:
    """CPU seconds of the one tick that sees all requests, and how many got a verdict."""
    store = MemoryStore()
    spans: Sequence[Row] = [span for number in range(REQUESTS) for span in spans_of(number, ending, queue_ms)]
    store.append(batch_of({"spans": spans, "engine_samples": scrapes(waiting=0 if queue_ms < 1000 else 6)}))
    outbox = Outbox(lambda rows: None, (), lambda: START, chance=lambda: 0.5, post=lambda request: None)  # type: ignore[arg-type,return-value]
    judge = Judge(store, load(), {}, Assembler(), outbox, 0, clock=lambda: START)
    judge.touch({f"{number:032x}": START for number in range(REQUESTS)})
    began = time.process_time()
    judge.tick(START + 25_000_000)
    spent = time.process_time() - began
    with store.cursor() as cursor:
        judged = cursor.execute("select count(*) from requests where settled and label is not null").fetchall()[0][0]
    store.close()
    return spent, judged


def main() -> int:
    kinds = {"healthy": (OK, 5.0), "wrong key": (WRONG_KEY, 5.0), "long queue": (OK, 9000.0)}
    figures: dict[str, dict[str, float | str]] = {}
    print(f"{'requests':<12} {'a second of CPU':>16} {'ms each':>8}")
    for name, (ending, queue_ms) in kinds.items():
        runs = [once(ending, queue_ms) for _ in range(ROUNDS)]
        if any(judged != REQUESTS for _, judged in runs):
            print(f"bench_judge: {runs[0][1]} of {REQUESTS} {name} requests were judged", file=sys.stderr)
            return 1
        spent = statistics.median(seconds for seconds, _ in runs)
        figures[name.replace(" ", "_")] = {"value": round(REQUESTS / spent), "unit": "requests/s of CPU"}
        print(f"{name:<12} {REQUESTS / spent:>16,.0f} {spent / REQUESTS * 1000:>8.2f}")
    value = float(figures["healthy"]["value"])
    budget = {"name": "healthy requests assembled and judged", "limit": AT_LEAST, "value": value, "held": value >= AT_LEAST}
    document = {**origin("judge"), "figures": figures, "ratios": {}, "budgets": [budget]}
    line = json.dumps(document)
    (ROOT / "bench" / "results" / "judge.json").write_text(line + "\n")
    print(line)
    return 0 if budget["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
