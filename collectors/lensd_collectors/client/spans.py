"""OpenTelemetry SDK spans of the calling app, sent through lensd's own exporter: bounded, dropping, never in the way."""

from collections.abc import Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_span_id, format_trace_id

from lensd_collectors import conventions as c
from lensd_collectors.export import Exporter

KINDS = {SpanKind.CLIENT: "client", SpanKind.SERVER: "server"}


class LensdSpanExporter(SpanExporter):
    """Hands finished spans to the Exporter, which posts them from a thread of its own."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            context, parent = span.get_span_context(), span.parent
            if context is None or span.start_time is None or span.end_time is None:
                continue
            self._exporter.span(
                span.name,
                trace_id=format_trace_id(context.trace_id),
                span_id=format_span_id(context.span_id),
                parent_span_id=format_span_id(parent.span_id) if parent is not None else None,
                kind=KINDS.get(span.kind, "internal"),
                start_ns=span.start_time,
                end_ns=span.end_time,
                attributes=dict(span.attributes or {}),  # type: ignore[arg-type]
                ok=span.status.status_code is not StatusCode.ERROR,
                message=span.status.description or "",
            )
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._exporter.close()

    def force_flush(self, timeout_millis: int = 5_000) -> bool:
        return self._exporter.flush(timeout_millis / 1000)


def tracer(endpoint: str, token: str | None, service: str = "lensd-client") -> tuple[Tracer, TracerProvider]:
    """A tracer whose spans go to the OTLP door at `endpoint`; shut the provider down to send the last ones."""
    exporter = Exporter(endpoint, token=token, service=service, scope=c.SCOPE_CLIENT)
    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(LensdSpanExporter(exporter)))
    return provider.get_tracer(c.SCOPE_CLIENT), provider
