"""Spans of an OTLP body as rows, and the starts of an engine that show in them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lensd_collectors import conventions
from lensd_collectors.dialects import Dialect, Role
from lensd_collectors.rows import Event, Instant, Row, SpanRow

from lensd.receive import starts, values
from lensd.receive.engines import Engines
from lensd.receive.members import MemberReader, Members, member, text_of, value_of
from lensd.receive.starts import Starts
from lensd.store.arrow import Columns, Rows, merged

_KINDS: Final = (None, "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = (None, "ok", "error")
_REQUEST_IDS: Final = (conventions.REQUEST_ID, conventions.ENGINE_REQUEST_ID, conventions.RESPONSE_ID)
_OUR_ENGINE: Final = "vllm"  # whose middleware's spans have the scope SCOPE_VLLM


class _Sender(NamedTuple):
    """What all spans of a scope have in common."""

    scope: str | None
    service: str | None
    instance: str | None
    engine: str | None  # of those that name none


class Traces:
    """Turns spans into rows. An engine's spans that do not name it get the only engine they can be of, and its model."""

    def __init__(self, dialects: Mapping[str, Dialect], engines: Engines, told: Starts) -> None:
        self._dialects, self._engines, self._told = dialects, engines, told
        self._attributes = MemberReader()

    def rows(self, message: Any, received_at: int) -> tuple[Sequence[Row], list[Row]]:
        """The spans of a RawTraces, and an event for each engine that has started. Raises BadBodyError."""
        spans: list[Rows] = []
        events: list[Row] = []
        for resource in message.resource_spans:
            about = values.attributes(resource.resource.attributes)
            service = values.text(about.get(conventions.SERVICE_NAME))
            instance = values.text(about.get(conventions.SERVICE_INSTANCE_ID))
            engine = values.text(about.get(conventions.ENGINE))
            for scope in resource.scope_spans:
                name = scope.scope.name or None
                inside = self._inside(name)
                of = self._engine(inside, engine, received_at) if inside else engine
                model = self._engines.model(of) if inside else None
                made = self._spans(scope.spans, _Sender(name, service, instance, of), model, received_at)
                spans.append({"spans": made})
                if inside and inside.starts:
                    events += self._starts(made, inside, values.text(about.get(conventions.HOST_NAME)))
        return merged(spans).get("spans", ()), events

    def _spans(self, spans: Any, sender: _Sender, model: str | None, received_at: int) -> Columns:
        about = [self._attributes.read(span.attributes) for span in spans]
        names = [span.name or None for span in spans]
        if model:
            for name, members in zip(names, about, strict=True):
                if name == conventions.SPAN_VLLM_REQUEST:
                    _name_model(members, model)
        ids = [span.span_id.hex() for span in spans]
        times = [_times(span.start_time_unix_nano, span.end_time_unix_nano, received_at) for span in spans]
        statuses = [_status(span) for span in spans]
        columns: dict[str, list[Any]] = {
            "trace_id": [span.trace_id.hex() or None for span in spans],
            "span_id": [span_id or None for span_id in ids],
            "parent_span_id": [span.parent_span_id.hex() or None for span in spans],
            "name": names,
            "kind": [_named(_KINDS, span.kind) for span in spans],
            "scope": [sender.scope] * len(ids),
            "service": [sender.service] * len(ids),
            "instance": [sender.instance] * len(ids),
            "engine": [values.text(value_of(members, conventions.ENGINE)) or sender.engine for members in about],
            "request_id": [_request_id(members) for members in about],
            "started_at": [started for started, _, _ in times],
            "ended_at": [ended for _, ended, _ in times],
            "duration_ms": [duration for _, _, duration in times],
            "status": [status for status, _ in statuses],
            "status_message": [message for _, message in statuses],
            "attributes": [text_of(members) for members in about],
            "src": [f"span:{span_id}" for span_id in ids],
        }
        return Columns(SpanRow, columns)

    def _inside(self, scope: str | None) -> Dialect | None:
        """The engine whose code made the spans of a scope such as `vllm.v1.engine.core`."""
        if scope == conventions.SCOPE_VLLM:
            return self._dialects.get(_OUR_ENGINE)
        first, dot, _ = (scope or "").partition(".")
        dialect = self._dialects.get(first) if dot else None
        return dialect if dialect is not None and dialect.role is Role.ENGINE else None

    def _engine(self, inside: Dialect, named: str | None, received_at: int) -> str | None:
        if named is None:
            return self._engines.only(inside.name, received_at)
        self._engines.heard(named, inside.name, received_at)
        return named

    def _starts(self, spans: Columns, inside: Dialect, host: str | None) -> list[Row]:
        """One event a start: of its many spans the one that began its trace, which comes last, when the engine is up."""
        named = [spans[number] for number, name in enumerate(spans.columns["name"]) if name in inside.starts]
        return [
            _started(span, host)
            for span in named
            if isinstance(span, SpanRow)
            and span.parent_span_id is None
            and span.started_at is not None
            and self._told.is_new(span.engine, span.started_at, span.ended_at or span.started_at)
        ]


def _started(span: SpanRow, host: str | None) -> Event:
    return Event(
        seen_at=span.started_at,
        host=host,
        engine=span.engine,
        trace_id=span.trace_id,
        span_id=span.span_id,
        name=starts.NAME,
        severity="info",
        fields=values.json({"sign": "spans", "took_ms": span.duration_ms}),
        src=span.src,
    )


def _times(start: int, end: int, received_at: int) -> tuple[Instant, Instant | None, float | None]:
    """When a span began and ended, and its milliseconds, of its nanoseconds since the epoch; 0 is none."""
    started = values.instant(start, received_at)
    if not end:
        return started, None, None
    return started, values.instant(end, started), (end - start) / 1e6 if start else None


def _status(span: Any) -> tuple[str | None, str | None]:
    """Status and its message, without which that of an exception."""
    if not span.HasField("status"):
        return None, _exception(span) if span.events else None
    status = span.status
    return _named(_STATUSES, status.code), status.message or _exception(span)


def _request_id(members: Members) -> str | None:
    for name in _REQUEST_IDS:
        if name in members and (found := value_of(members, name)):
            return values.text(found)
    return None


def _name_model(members: Members, model: str) -> None:
    """vLLM's own span names no model: it is of the one its engine serves."""
    if not value_of(members, conventions.REQUEST_MODEL):
        members.setdefault(conventions.RESPONSE_MODEL, member(conventions.RESPONSE_MODEL, model))


def _exception(span: Any) -> str | None:
    """The message of the last exception that the span recorded."""
    for event in reversed(span.events):
        if event.name == "exception":
            return values.text(values.attributes(event.attributes).get("exception.message"))
    return None


def _named(names: tuple[str | None, ...], number: int) -> str | None:
    return names[number] if 0 <= number < len(names) else None
