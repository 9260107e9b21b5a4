"""Spans of an OTLP body as rows."""

from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.rows import Row, SpanRow

from lensd.receive import values

_KINDS: Final = (None, "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = (None, "ok", "error")


def span_rows(message: Any, received_at: int) -> list[Row]:
    """The rows of an ExportTraceServiceRequest."""
    made: list[Row] = []
    for resource in message.resource_spans:
        about = values.attributes(resource.resource.attributes)
        service = values.text(about.get(conventions.SERVICE_NAME))
        instance = values.text(about.get(conventions.SERVICE_INSTANCE_ID))
        engine = values.text(about.get(conventions.ENGINE))
        for scope in resource.scope_spans:
            name = scope.scope.name or None
            for span in scope.spans:
                row = _row(span, received_at)
                row.scope, row.service, row.instance, row.engine = name, service, instance, row.engine or engine
                made.append(row)
    return made


def _row(span: Any, received_at: int) -> SpanRow:
    fields = values.attributes(span.attributes)
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
        request_id=values.text(fields.get(conventions.REQUEST_ID) or fields.get(conventions.ENGINE_REQUEST_ID)),
        started_at=started,
        ended_at=ended,
        duration_ms=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 if ended and span.start_time_unix_nano else None,
        status=_named(_STATUSES, span.status.code),
        status_message=span.status.message or _exception(span),
        attributes=values.json(fields) if fields else None,
        src=f"span:{span_id}",
    )


def _exception(span: Any) -> str | None:
    """The message of the last exception that the span recorded."""
    for event in reversed(span.events):
        if event.name == "exception":
            return values.text(values.attributes(event.attributes).get("exception.message"))
    return None


def _named(names: tuple[str | None, ...], number: int) -> str | None:
    return names[number] if 0 <= number < len(names) else None
