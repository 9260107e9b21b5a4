"""Spans of an OTLP body as rows, and the starts of an engine that show in them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.dialects import Dialect, Role
from lensd_collectors.rows import Event, Row, SpanRow

from lensd.receive import starts, values
from lensd.receive.engines import Engines
from lensd.receive.starts import Starts
from lensd.receive.values import Plain

_KINDS: Final = (None, "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = (None, "ok", "error")
_REQUEST_IDS: Final = (conventions.REQUEST_ID, conventions.ENGINE_REQUEST_ID, conventions.RESPONSE_ID)
_OUR_ENGINE: Final = "vllm"  # whose middleware's spans have the scope SCOPE_VLLM


class Traces:
    """Turns spans into rows. An engine's spans that do not name it get the only engine they can be of, and its model."""

    def __init__(self, dialects: Mapping[str, Dialect], engines: Engines, told: Starts) -> None:
        self._dialects, self._engines, self._told = dialects, engines, told

    def rows(self, message: Any, received_at: int) -> dict[str, list[Row]]:
        """The rows of an ExportTraceServiceRequest: `spans`, and `events` where an engine has started."""
        spans: list[Row] = []
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
                made = []
                for span in scope.spans:
                    row = _row(span, received_at, self._engines.model(of) if inside else None)
                    row.scope, row.service, row.instance, row.engine = name, service, instance, row.engine or of
                    made.append(row)
                spans += made
                if inside and inside.starts:
                    events += self._starts(made, inside, values.text(about.get(conventions.HOST_NAME)))
        return {table: rows for table, rows in (("spans", spans), ("events", events)) if rows}

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

    def _starts(self, spans: Iterable[SpanRow], inside: Dialect, host: str | None) -> list[Row]:
        """One event a start: of its many spans the one that began its trace, which comes last, when the engine is up."""
        return [
            _started(span, host)
            for span in spans
            if span.parent_span_id is None
            and span.name in inside.starts
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


def _row(span: Any, received_at: int, model: str | None) -> SpanRow:
    fields = values.attributes(span.attributes)
    if model and span.name == conventions.SPAN_VLLM_REQUEST:
        _name_model(fields, model)
    started = values.instant(span.start_time_unix_nano, received_at)
    ended = values.instant(span.end_time_unix_nano, started) if span.end_time_unix_nano else None
    span_id = span.span_id.hex()
    return SpanRow(
        trace_id=span.trace_id.hex() or None,
        span_id=span_id or None,
        parent_span_id=span.parent_span_id.hex() or None,
        name=span.name or None,
        kind=_named(_KINDS, span.kind),
        engine=values.text(fields.get(conventions.ENGINE)),
        request_id=values.text(next((found for name in _REQUEST_IDS if (found := fields.get(name))), None)),
        started_at=started,
        ended_at=ended,
        duration_ms=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 if ended and span.start_time_unix_nano else None,
        status=_named(_STATUSES, span.status.code),
        status_message=span.status.message or _exception(span),
        attributes=values.json(fields) if fields else None,
        src=f"span:{span_id}",
    )


def _name_model(fields: dict[str, Plain], model: str) -> None:
    """vLLM's own span names no model: it is of the one its engine serves."""
    if not fields.get(conventions.REQUEST_MODEL):
        fields.setdefault(conventions.RESPONSE_MODEL, model)


def _exception(span: Any) -> str | None:
    """The message of the last exception that the span recorded."""
    for event in reversed(span.events):
        if event.name == "exception":
            return values.text(values.attributes(event.attributes).get("exception.message"))
    return None


def _named(names: tuple[str | None, ...], number: int) -> str | None:
    return names[number] if 0 <= number < len(names) else None
