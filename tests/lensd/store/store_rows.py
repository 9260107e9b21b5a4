"""Rows for store tests: days, spans and requests that are easy to count."""

from lensd_collectors.rows import Instant, RequestRow, SpanRow

DAY_US = 86_400_000_000
NOV_29 = Instant(1_795_910_400_000_000)  # 2026-11-29T00:00:00Z
NOV_30 = Instant(NOV_29 + DAY_US)


def span(number: int, at: int | None = NOV_29) -> SpanRow:
    started = None if at is None else Instant(at + number)
    return SpanRow(trace_id="t", span_id=f"{number:016x}", name=f"span {number}", started_at=started, src=f"span:{number:016x}")


def request(key: int, revision: int, outcome: str = "open", at: int = NOV_29) -> RequestRow:
    return RequestRow(request_key=key, revision=revision, request_id=f"r{key}", started_at=Instant(at), outcome=outcome)
