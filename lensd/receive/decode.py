"""Journal records as rows of the public tables."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from lensd_collectors import conventions, dialects
from lensd_collectors.dialects import Dialect
from lensd_collectors.rows import ConfigFact, Event, Row

from lensd.receive import starts
from lensd.receive.canonical import Canonical
from lensd.receive.derive import Derived
from lensd.receive.engines import Engines
from lensd.receive.ledger import Ledger
from lensd.receive.logs import Logs
from lensd.receive.starts import Starts
from lensd.receive.traces import Traces
from lensd.receive.wire import parse_raw
from lensd.store.segments import Signal

DROPPED_LINES: Final = "unread-lines"
_OF_ENGINES: Final = ("engine.", "lensd.engine.")  # events of an engine's log, process and plugin


class Decoder:
    """Decodes bodies in the order they came: a log's meaning depends on the lines before. One thread uses it.

    `facts`: the last of each name that an earlier run has stored, so that what it told is neither told again nor a change.
    """

    def __init__(
        self, known: Mapping[str, Dialect] | None = None, *, keep_all_points: bool = False, facts: Iterable[ConfigFact] = ()
    ) -> None:
        known = dialects.load() if known is None else known
        ledger = Ledger(facts)
        self._derived = Derived(ledger)
        self._engines, self._starts = Engines(), Starts()
        self._canonical = Canonical(known, keep_all_points=keep_all_points, heard=self._engines, told=self._starts)
        self._traces = Traces(known, self._engines, self._starts)
        self._logs = Logs(known, ledger.given)

    @property
    def dropped(self) -> Counter[str]:
        """What has no place in a table, by reason."""
        return self._canonical.dropped + Counter({DROPPED_LINES: self._logs.unread})

    def decode(self, kind: Signal, payload: bytes, received_at_us: int) -> dict[str, Sequence[Row]]:
        """Table name to rows. Raises BadBodyError for a payload that is no OTLP request of that kind."""
        message = parse_raw(kind, payload)
        spans: Sequence[Row] = ()
        if kind is Signal.TRACES:
            spans, events = self._traces.rows(message, received_at_us)
            made = {"events": events}
        else:
            made = self._rows(kind, message, received_at_us)
        self._derived.take(made)
        return {table: rows for table, rows in {"spans": spans, **made}.items() if rows}

    def _rows(self, kind: Signal, message: Any, received_at_us: int) -> dict[str, list[Row]]:
        if kind is Signal.METRICS:
            return self._canonical.rows(message, received_at_us)
        made = self._logs.rows(message, received_at_us)
        made["events"] = [row for row in made.get("events", ()) if self._is_told(row, received_at_us)]
        return made

    def _is_told(self, row: Row, received_at_us: int) -> bool:
        """Whether an event is to be kept: not the start of an engine that its spans or counters have told of."""
        if not isinstance(row, Event) or row.name is None or not row.name.startswith(_OF_ENGINES):
            return True
        if row.engine is not None:
            self._engines.heard(row.engine, None, received_at_us)
        elif row.name == conventions.EVENT_ENGINE_REQUEST:  # the plugin of an engine that nobody has given a name
            row.engine = self._engines.only("vllm", received_at_us)
        if row.name == starts.NAME and row.seen_at is not None:
            return self._starts.is_new(row.engine, row.seen_at, row.seen_at, "log")
        return True
