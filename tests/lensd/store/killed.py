"""The decoder of the kill test: payload `N` becomes a span named N, on one of three days."""

from lensd_collectors.rows import Row
from store_rows import DAY_US, NOV_29, span

from lensd.store.segments import Signal


def decode(kind: Signal, payload: bytes, received_at_us: int) -> dict[str, list[Row]]:
    number = int(payload)
    row = span(number, NOV_29 + number % 3 * DAY_US)
    row.name = str(number)
    return {"spans": [row]}
