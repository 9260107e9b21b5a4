"""Journal records as rows of the public tables."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from lensd_collectors import dialects
from lensd_collectors.dialects import Dialect
from lensd_collectors.rows import Row

from lensd.receive.canonical import Canonical
from lensd.receive.logs import Logs
from lensd.receive.parse import parse_protobuf
from lensd.receive.traces import span_rows
from lensd.store.segments import Signal

DROPPED_LINES: Final = "unread-lines"


class Decoder:
    """Decodes bodies in the order they came: a log's meaning depends on the lines before. One thread uses it."""

    def __init__(self, known: Mapping[str, Dialect] | None = None, *, keep_all_points: bool = False) -> None:
        known = dialects.load() if known is None else known
        self._canonical = Canonical(known, keep_all_points=keep_all_points)
        self._logs = Logs(known)

    @property
    def dropped(self) -> Counter[str]:
        """What has no place in a table, by reason."""
        return self._canonical.dropped + Counter({DROPPED_LINES: self._logs.unread})

    def decode(self, kind: Signal, payload: bytes, received_at_us: int) -> dict[str, list[Row]]:
        """Table name to rows. Raises BadBodyError for a payload that is no OTLP request of that kind."""
        message = parse_protobuf(kind, payload)
        if kind is Signal.TRACES:
            rows = span_rows(message, received_at_us)
            return {"spans": rows} if rows else {}
        if kind is Signal.METRICS:
            return self._canonical.rows(message, received_at_us)
        return self._logs.rows(message, received_at_us)
