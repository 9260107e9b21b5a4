"""Spans people hand over (OTLP JSON, JSON lines of it, plain lists of spans) → span rows, without prompts and completions."""

import base64
import binascii
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lensd_collectors.conventions import REQUEST_ID
from lensd_collectors.read.lines import Clock, rfc3339
from lensd_collectors.rows import Instant, Row, SpanRow

_CONTENT: Final = re.compile(
    r"^(?:gen_ai\.(?:input\.messages|output\.messages|system_instructions|prompt\b|completion\b|tool\.call\.(?:arguments|result)|tool\.definitions)"
    r"|llm\.(?:prompts|completions|input_messages|output_messages)|(?:input|output)\.value$|traceloop\.entity\."
    r"|http\.request\.header\.(?:authorization|cookie|x-api-key))"
)
_SPAN_ID: Final = re.compile(r'"(?:spanId|span_id|spanID|id)"\s*:\s*"([^"]+)"')
_STARTS: Final = ("start_time", "startTime", "start", "start_time_unix_nano", "startTimeUnixNano", "timestamp")
_ENDS: Final = ("end_time", "endTime", "end", "end_time_unix_nano", "endTimeUnixNano")
_WHOLE: Final = "gen_ai.latency.e2e"  # vLLM's seconds of a whole request
_HOUR: Final = re.compile(r"(?P<at>\d\d:\d\d:\d\d(?:[.,]\d+)?)Z?")
_KINDS: Final = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
_OWN_FIELDS: Final = frozenset(
    (
        "trace_id", "span_id", "parent_span_id", "parent_id", "name", "kind",
        "service.name", "service", "status", "status_message", "attributes",
    )
)  # fmt: skip


class SpanRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def read_spans(text: str, *, name: str, engine: str | None = None, clock: Clock | None = None) -> SpanRows:
    """All spans of a text; `src` names the line that holds the span's id. `clock`: of starts and ends without a day."""
    places = _Places(text, name)
    rows: list[Row] = []
    unread = 0
    for document in _documents(text):
        if document is None:
            unread += 1
            continue
        for item in document if isinstance(document, list) else [document]:
            rows += _rows(item, places, engine, clock)
    return SpanRows(rows=rows, unread_lines=unread)


def _rows(item: object, places: "_Places", engine: str | None, clock: Clock | None) -> Iterator[SpanRow]:
    if not isinstance(item, dict):
        return
    body = item.get("body")
    inner = item if "resourceSpans" in item else body if isinstance(body, dict) and "resourceSpans" in body else None
    if inner is not None:
        yield from _otlp(inner, places, engine)
    elif isinstance(item.get("data"), list):
        for trace in _list(item["data"]):
            processes = _mapping(trace.get("processes"))
            for span in _list(trace.get("spans")):
                yield _jaeger(span, processes, places, engine)
    elif isinstance(item.get("spans"), list) and "resourceSpans" not in item:
        for span in _list(item["spans"]):
            yield from _rows({**{key: value for key, value in item.items() if key != "spans"}, **span}, places, engine, clock)
    elif "traceID" in item and "spanID" in item:
        yield _jaeger(item, {}, places, engine)
    elif "traceId" in item and "id" in item and "timestamp" in item:
        yield _zipkin(item, places, engine)
    elif "traceId" in item and "spanId" in item and isinstance(item.get("attributes"), list):
        yield _otlp_span(item, _attributes(_mapping(item.get("resource")).get("attributes")), None, places, engine)
    elif ("trace_id" in item and "span_id" in item) or ("traceId" in item and "spanId" in item):
        yield _plain(item, places, engine, clock)
    elif isinstance(context := item.get("context"), dict) and "span_id" in context:  # as OpenTelemetry's console exporter prints it
        ids = {key: str(context.get(key, "")).removeprefix("0x") for key in ("trace_id", "span_id")}
        parent = str(item.get("parent_id") or "").removeprefix("0x") or None
        yield _plain({**item, **ids, "parent_id": parent}, places, engine, clock)


def _otlp(document: Mapping[str, Any], places: "_Places", engine: str | None) -> Iterator[SpanRow]:
    for resource_spans in _list(document.get("resourceSpans")):
        resource = _attributes(_mapping(resource_spans.get("resource")).get("attributes"))
        for scope_spans in _list(resource_spans.get("scopeSpans")):
            scope = _text(_mapping(scope_spans.get("scope")).get("name"))
            for span in _list(scope_spans.get("spans")):
                yield _otlp_span(span, resource, scope, places, engine)


def _otlp_span(span: Mapping[str, Any], resource: Mapping[str, Any], scope: str | None, places: "_Places", engine: str | None) -> SpanRow:
    attributes = _kept(_attributes(span.get("attributes")))
    start, end = _nanoseconds(span.get("startTimeUnixNano")), _nanoseconds(span.get("endTimeUnixNano"))
    status = _mapping(span.get("status"))
    span_id = _text(span.get("spanId")) or ""
    return SpanRow(
        trace_id=_hex(span.get("traceId"), 16),
        span_id=_hex(span_id, 8),
        parent_span_id=_hex(span.get("parentSpanId"), 8),
        name=_text(span.get("name")),
        kind=_kind(span.get("kind")),
        scope=scope,
        service=_text(resource.get("service.name")),
        instance=_text(resource.get("service.instance.id")),
        engine=_text(resource.get("lensd.engine")) or engine,
        request_id=_request_id(attributes),
        started_at=Instant(start // 1000) if start else None,
        ended_at=Instant(end // 1000) if end else None,
        duration_ms=(end - start) / 1e6 if start and end else None,
        status=_status(status.get("code")),
        status_message=_text(status.get("message")),
        attributes=json.dumps(attributes, ensure_ascii=False) if attributes else None,
        src=places.of(span_id),
    )


def _plain(span: Mapping[str, Any], places: "_Places", engine: str | None, clock: Clock | None) -> SpanRow:
    """One object a span, with `duration_s` beside or among its attributes and no start, or a start or an end alone."""
    extra = {key: value for key, value in span.items() if key not in _OWN_FIELDS and not isinstance(value, dict | list)}
    attributes = _kept({**extra, **_mapping(span.get("attributes"))})
    seconds = attributes.get("duration_s", attributes.get(_WHOLE))
    resource = _mapping(span.get("resource"))
    resource = _mapping(resource.get("attributes")) or resource
    started, ended = _when(span, _STARTS, clock), _when(span, _ENDS, clock)
    lasted = (ended - started) / 1e3 if started is not None and ended is not None else None
    if lasted is None and isinstance(seconds, int | float):
        lasted = float(seconds) * 1000
        if started is not None:
            ended = Instant(started + round(lasted * 1000))
        elif ended is not None:
            started = Instant(ended - round(lasted * 1000))
    status = span.get("status")
    if isinstance(status, dict):
        status = status.get("status_code", status.get("code"))
    return SpanRow(
        trace_id=_text(span.get("trace_id", span.get("traceId"))),
        span_id=_text(span.get("span_id", span.get("spanId"))),
        parent_span_id=_text(span.get("parent_span_id", span.get("parent_id", span.get("parentSpanId")))) or None,
        name=_text(span.get("name")),
        kind=_kind(span.get("kind")),
        service=_text(span.get("service.name", span.get("service"))) or _text(resource.get("service.name")),
        engine=engine,
        request_id=_request_id(attributes),
        started_at=started,
        ended_at=ended,
        duration_ms=lasted,
        status=_status(status),
        status_message=_text(span.get("status_message")),
        attributes=json.dumps(attributes, ensure_ascii=False) if attributes else None,
        src=places.of(str(span.get("span_id", span.get("spanId")))),
    )


def _jaeger(span: Mapping[str, Any], processes: Mapping[str, Any], places: "_Places", engine: str | None) -> SpanRow:
    """One span of Jaeger's JSON: microseconds, tags as a list, the service among the trace's processes."""
    tags = {str(tag["key"]): tag.get("value") for tag in _list(span.get("tags")) if "key" in tag}
    process = _mapping(span.get("process")) or _mapping(processes.get(str(span.get("processID"))))
    parent = next(
        (one.get("spanID") for one in _list(span.get("references")) if one.get("refType") == "CHILD_OF"), span.get("parentSpanID")
    )
    start, duration = _number(span.get("startTime")), _number(span.get("duration"))
    attributes = _kept(tags)
    return SpanRow(
        trace_id=_hex(span.get("traceID"), 16),
        span_id=_hex(span.get("spanID"), 8),
        parent_span_id=_hex(parent, 8),
        name=_text(span.get("operationName")),
        kind=_kind(tags.get("span.kind")),
        scope=_text(tags.get("otel.library.name")) or _text(tags.get("otel.scope.name")),
        service=_text(process.get("serviceName")),
        engine=engine,
        request_id=_request_id(attributes),
        started_at=Instant(round(start)) if start else None,
        ended_at=Instant(round(start + duration)) if start and duration is not None else None,
        duration_ms=duration / 1e3 if duration is not None else None,
        status="error" if tags.get("error") in (True, "true") else _status(tags.get("otel.status_code")),
        status_message=_text(tags.get("otel.status_description")),
        attributes=json.dumps(attributes, ensure_ascii=False) if attributes else None,
        src=places.of(str(span.get("spanID"))),
    )


def _zipkin(span: Mapping[str, Any], places: "_Places", engine: str | None) -> SpanRow:
    """One span of Zipkin's JSON: microseconds, tags as an object."""
    start, duration = _number(span.get("timestamp")), _number(span.get("duration"))
    attributes = _kept(_mapping(span.get("tags")))
    return SpanRow(
        trace_id=_hex(span.get("traceId"), 16),
        span_id=_hex(span.get("id"), 8),
        parent_span_id=_hex(span.get("parentId"), 8),
        name=_text(span.get("name")),
        kind=_kind(span.get("kind")),
        service=_text(_mapping(span.get("localEndpoint")).get("serviceName")),
        engine=engine,
        request_id=_request_id(attributes),
        started_at=Instant(round(start)) if start else None,
        ended_at=Instant(round(start + duration)) if start and duration is not None else None,
        duration_ms=duration / 1e3 if duration is not None else None,
        status="error" if "error" in attributes else None,
        attributes=json.dumps(attributes, ensure_ascii=False) if attributes else None,
        src=places.of(str(span.get("id"))),
    )


def _when(span: Mapping[str, Any], names: tuple[str, ...], clock: Clock | None) -> Instant | None:
    """Of a plain list: RFC 3339, an hour alone, or seconds, milliseconds, microseconds or nanoseconds since the epoch, by their size."""
    raw = next((span[name] for name in names if span.get(name) is not None), None)
    number = _number(raw)
    if number is not None:
        factor = next((factor for least, factor in ((1e17, 1e-3), (1e14, 1.0), (1e11, 1e3), (1e8, 1e6)) if number >= least), None)
        return Instant(round(number * factor)) if factor is not None and number < 1e20 else None
    if not isinstance(raw, str):
        return None
    hour = _HOUR.fullmatch(raw.strip()) if clock is not None else None
    return clock.at("", hour["at"]) if clock is not None and hour is not None else rfc3339(raw)


def _number(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        return float(raw)
    except ValueError:
        return None


class _Places:
    """Line of each span id; parsing JSON loses them."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        ends = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[str, int] = {}
        for match in _SPAN_ID.finditer(text):
            self._lines.setdefault(match[1], bisect_right(ends, match.start(1)) + 1)

    def of(self, span_id: str) -> str:
        return f"{self._name}:{self._lines.get(span_id, 1)}"


def _documents(text: str) -> Iterator[object]:
    """The JSON documents of a text: one, or one a line; None for a line that is none."""
    try:
        yield json.loads(text)
        return
    except (ValueError, RecursionError):
        pass
    for line in text.split("\n"):
        if line.strip():
            try:
                yield json.loads(line.strip().rstrip(","))
            except (ValueError, RecursionError):
                yield None


def _attributes(raw: object) -> dict[str, Any]:
    return {str(one["key"]): _value(one.get("value")) for one in _list(raw) if "key" in one}


def _value(raw: object) -> Any:
    """The plain value of an OTLP AnyValue; 64-bit integers come as text."""
    for kind, value in _mapping(raw).items():
        if kind == "intValue":
            try:
                return int(value)
            except (TypeError, ValueError):
                return None
        if kind == "arrayValue":
            return [_value(one) for one in _list(_mapping(value).get("values"))]
        if kind == "kvlistValue":
            return _attributes(_mapping(value).get("values"))
        return value
    return None


def _kept(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in attributes.items() if not _CONTENT.match(str(name))}


def _request_id(attributes: Mapping[str, Any]) -> str | None:
    return _text(attributes.get(str(REQUEST_ID))) or _text(attributes.get("gen_ai.request.id"))


def _status(code: object) -> str | None:
    text = str(code).upper().removeprefix("STATUS_CODE_")
    return {"1": "ok", "OK": "ok", "2": "error", "ERROR": "error"}.get(text)


def _kind(kind: object) -> str | None:
    if isinstance(kind, int):
        return _KINDS.get(kind)
    name = str(kind or "").lower().removeprefix("span_kind_")
    return name if name in _KINDS.values() else None


def _hex(raw: object, size: int) -> str | None:
    """An id as hex: OTLP JSON writes hex, protobuf's own JSON base64."""
    if not isinstance(raw, str) or not raw:
        return None
    if len(raw) == size * 2:
        return raw.lower()
    try:
        decoded = base64.b64decode(raw, validate=True)
    except (binascii.Error, ValueError):
        return raw
    return decoded.hex() if len(decoded) == size else raw


def _nanoseconds(raw: object) -> int | None:
    return int(raw) if isinstance(raw, int | str) and str(raw).isdigit() else None


def _list(raw: object) -> list[Mapping[str, Any]]:
    return [one for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []


def _mapping(raw: object) -> Mapping[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _text(raw: object) -> str | None:
    return raw if isinstance(raw, str) else None
