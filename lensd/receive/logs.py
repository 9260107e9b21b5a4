"""Log records of an OTLP body as events, config facts and whatever an engine's log lines mean."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.dialects import Dialect
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.read.lines import unwrap
from lensd_collectors.read.settings import is_secret, name_of, spelled
from lensd_collectors.rows import TABLES, ConfigFact, Event, Instant, Row

from lensd.receive import values
from lensd.receive.values import Plain

_READERS: Final = 1000
_TABLE_OF: Final = {struct: name for name, struct in TABLES.items()}
_SEVERITIES: Final = ((21, "critical"), (17, "error"), (13, "warning"), (9, "info"), (1, "debug"))
_COLUMNS: Final = frozenset({conventions.EVENT_NAME, conventions.HOST_NAME, conventions.ENGINE, conventions.ENGINE_KIND})
_REQUEST_IDS: Final = (conventions.REQUEST_ID, conventions.ENGINE_REQUEST_ID, conventions.RESPONSE_ID)
_SENDER: Final = (conventions.SERVICE_NAME, conventions.SERVICE_INSTANCE_ID, conventions.LISTEN)
_OWN_EVENTS: Final = frozenset({conventions.EVENT_STARTED, conventions.EVENT_PROGRESS, conventions.EVENT_GATEWAY_ACT})
"""Events of ours that keep who sent them: with another process in its place, what it held is lost."""

Fields = dict[str, Plain]
_Place = tuple[str | None, str | None, str | None]  # host, engine, path: hosts of one service write logs of one name
_Log = tuple[_Place, str]  # and the dialect


Given = Callable[[str | None], Mapping[str, str]]
"""Engine -> the arguments of its last start, by name, as far as they are known from before."""


def _nothing_given(_: str | None) -> Mapping[str, str]:
    return {}


class Logs:
    """Turns log records into rows; follows each log file it gets lines of. Not for several threads at once."""

    def __init__(self, dialects: Mapping[str, Dialect], given: Given = _nothing_given) -> None:
        self._dialects, self._given = dialects, given
        self._readers: dict[_Log, LineReader] = {}
        self._lines: Counter[_Log] = Counter()
        self._spoken: dict[_Place, Dialect] = {}  # what the last line known of each log was in
        self.unread = 0  # lines of no dialect

    def rows(self, message: Any, received_at: int) -> dict[str, list[Row]]:
        """The rows of an ExportLogsServiceRequest."""
        made: dict[str, list[Row]] = {}
        for resource in message.resource_logs:
            about = values.attributes(resource.resource.attributes)
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    for row in self._record(record, about, received_at):
                        made.setdefault(_TABLE_OF[type(row)], []).append(row)
        return made

    def _record(self, record: Any, about: Fields, received_at: int) -> Iterator[Row]:
        fields = values.attributes(record.attributes)
        at = values.instant(record.time_unix_nano or record.observed_time_unix_nano, received_at)
        name = record.event_name or values.text(fields.get(conventions.EVENT_NAME))
        if name == conventions.EVENT_CONFIG:
            yield self._fact(fields, about, at)
        elif name is None or name == conventions.EVENT_ENGINE_LOG:
            yield from self._line(record, fields, about, at)
        else:
            yield self._event(name, record, fields, about, at)

    def _event(self, name: str, record: Any, fields: Fields, about: Fields, at: Instant) -> Row:
        body = values.plain(record.body)
        rest = {key: value for key, value in fields.items() if key not in _COLUMNS}
        if isinstance(body, dict):
            rest = {**body, **rest}
        if name in _OWN_EVENTS:
            rest = {**{key: about[key] for key in _SENDER if about.get(key) is not None}, **rest}
        number = fields.get(conventions.LOG_LINE)
        return Event(
            seen_at=at,
            seq=number if isinstance(number, int) else None,
            host=values.text(fields.get(conventions.HOST_NAME) or about.get(conventions.HOST_NAME)),
            engine=_engine(fields, about),
            request_id=values.text(next((found for each in _REQUEST_IDS if (found := fields.get(each))), None)),
            trace_id=record.trace_id.hex() or None,
            span_id=record.span_id.hex() or None,
            name=name,
            severity=next((word for least, word in _SEVERITIES if record.severity_number >= least), None),
            fields=values.json(rest) if rest else None,
            line=body if isinstance(body, str) and body else None,
            src=_source(fields, about, at),
        )

    def _fact(self, fields: Fields, about: Fields, at: Instant) -> Row:
        subject = values.text(fields.get(conventions.FACT_SUBJECT)) or _engine(fields, about)
        name, value = name_of(values.text(fields.get(conventions.FACT_NAME)) or ""), values.text(fields.get(conventions.FACT_VALUE))
        return ConfigFact(
            seen_at=at,
            subject=subject,
            name=name,
            value=None if value is None else "***" if is_secret(name) else spelled(name, value),
            src=f"{_source(fields, about, at)}/{name}",
            origin=values.text(fields.get(conventions.FACT_ORIGIN)),
        )

    def _line(self, record: Any, fields: Fields, about: Fields, at: Instant) -> Iterator[Row]:
        line = record.body.string_value
        kind = values.text(fields.get(conventions.ENGINE_KIND) or about.get(conventions.ENGINE_KIND))
        engine = _engine(fields, about)
        path = values.text(fields.get(conventions.LOG_FILE)) or values.text(about.get(conventions.SERVICE_NAME))
        host = values.text(fields.get(conventions.HOST_NAME) or about.get(conventions.HOST_NAME))
        place = host, engine, path
        dialect = self._dialects.get(kind or "") or self._recognise(line, place)
        if not line or dialect is None:
            self.unread += 1
            return
        key = (place, dialect.name)
        reader = self._readers.get(key)
        if reader is None:
            if len(self._readers) >= _READERS:
                oldest = next(iter(self._readers))
                del self._readers[oldest], self._lines[oldest]
            reader = self._readers[key] = LineReader(dialect, engine=engine, path=path or "-", host=host)
            reader.recall(self._given(engine))
        number = fields.get(conventions.LOG_LINE)
        self._lines[key] = number if isinstance(number, int) else self._lines[key] + 1
        before = reader.unread
        yield from reader.feed(line, number=self._lines[key], at_us=at)
        self.unread += reader.unread - before

    def _recognise(self, line: str, place: _Place) -> Dialect | None:
        """By the line's own marks; a line without any, such as one of a traceback, is in the dialect of those before it in its log."""
        text = unwrap(line).text
        for dialect in self._dialects.values():
            if any(mark.search(text) for mark in dialect.recognise.log):
                if len(self._spoken) >= _READERS:
                    self._spoken.pop(next(iter(self._spoken)))
                self._spoken[place] = dialect
                return dialect
        return self._spoken.get(place) if place[2] is not None else None


def _engine(fields: Fields, about: Fields) -> str | None:
    return values.text(fields.get(conventions.ENGINE) or about.get(conventions.ENGINE))


def _source(fields: Fields, about: Fields, at: Instant) -> str:
    host = values.text(fields.get(conventions.HOST_NAME) or about.get(conventions.HOST_NAME)) or "-"
    unit = values.text(fields.get(conventions.LOG_FILE)) or values.text(about.get(conventions.SERVICE_NAME)) or "-"
    return f"log:{host}/{unit}@{values.rfc3339(at)}"
