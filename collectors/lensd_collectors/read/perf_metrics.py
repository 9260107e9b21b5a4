"""TensorRT-LLM's `/perf_metrics`: when each request came, was scheduled, gave its first token and its last → events `request.timed`."""

import json
from typing import Any, Final

import msgspec

from lensd_collectors.rows import Event, Row

MARK: Final = '"timing_metrics"'
_STEPS: Final = (
    ("queue_ms", "arrival_time", "first_scheduled_time"),
    ("prefill_ms", "first_scheduled_time", "first_token_time"),
    ("decode_ms", "first_token_time", "last_token_time"),
    ("total_ms", "arrival_time", "last_token_time"),
)


class PerfRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def read_perf_metrics(text: str, *, name: str, engine: str | None = None) -> PerfRows:
    """An event a request, on the line of its first token's time; times are of a clock of the engine's own, so no instant is told."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return PerfRows(rows=[], unread_lines=text.count("\n") + 1)
    rows: list[Row] = []
    at = 0
    for one in document if isinstance(document, list) else [document]:
        found = one.get("perf_metrics") if isinstance(one, dict) else None
        timing = found.get("timing_metrics") if isinstance(found, dict) else None
        if not isinstance(timing, dict):
            continue
        at = max(at, text.find('"first_token_time"', at + 1))
        number = text.count("\n", 0, max(at, 0)) + 1
        fields = _spans(timing) | _blocks(found.get("kv_cache_metrics") if isinstance(found, dict) else None)
        rows.append(
            Event(
                seq=number,
                engine=engine,
                request_id=str(one.get("request_id")) if one.get("request_id") is not None else None,
                name="request.timed",
                severity="info",
                fields=msgspec.json.encode(fields).decode(),
                line=text.split("\n", number)[number - 1].strip()[:500],
                src=f"{name}:{number}",
            )
        )
    return PerfRows(rows=rows, unread_lines=0 if rows else text.count("\n") + 1)


def _spans(timing: dict[str, Any]) -> dict[str, float]:
    found = {}
    for name, first, last in _STEPS:
        begun, ended = timing.get(first), timing.get(last)
        if isinstance(begun, int | float) and isinstance(ended, int | float) and ended >= begun:
            found[name] = round((ended - begun) * 1000, 3)
    return found


def _blocks(blocks: object) -> dict[str, int]:
    if not isinstance(blocks, dict):
        return {}
    names = {"new_blocks": "num_new_allocated_blocks", "reused_blocks": "num_reused_blocks", "missed_blocks": "num_missed_blocks"}
    return {name: blocks[raw] for name, raw in names.items() if isinstance(blocks.get(raw), int)}
