"""One span in OTLP's JSON, written straight as text: a gateway writes five of them for every request.

The encoding is that of `otlp`; what repeats from span to span (engine, model, decision ...) is kept as written.
"""

import functools
import re
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Final

from lensd_collectors import otlp
from lensd_collectors.otlp import Attributes, Value

MAX_KEPT: Final = 8192

BEGINNING: Final = '{"traceId":'
"""Of every span, and of nothing else: in a string its quotes would be escaped."""

_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def write(
    name: str,
    pairs: str,
    *,
    trace_id: str,
    span_id: str,
    parent_span_id: str | None,
    kind: str,
    start_ns: int,
    end_ns: int,
    ok: bool = True,
    message: str = "",
) -> str:
    """A finished span with its attributes, as `pairs` gives them. Raises ValueError where it has no valid ids."""
    if not _TRACE_ID.fullmatch(trace_id) or not _SPAN_ID.fullmatch(span_id) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        trace_id, span_id = otlp.hex_id(trace_id, 32), otlp.hex_id(span_id, 16)
        if not trace_id or not span_id:
            raise ValueError("span without a valid trace and span id")
    parent = otlp.hex_id(parent_span_id, 16) if parent_span_id and not _SPAN_ID.fullmatch(parent_span_id) else parent_span_id
    return text(opening(name, kind), trace_id, span_id, above(parent), start_ns, end_ns, pairs, status(ok, message))


def text(opening: str, trace_id: str, span_id: str, above: str, start_ns: int, end_ns: int, pairs: str, status: str) -> str:
    """The same of parts, with ids that are known to be valid."""
    return (
        f'{{"traceId":"{trace_id}","spanId":"{span_id}",{above}{opening}"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}",'
        f'"attributes":[{pairs}],"status":{status}}}'
    )


GAP: Final = "\0"
"""In a form: where a value goes. In JSON as it is written here no text has that character, which is escaped."""


def form(opening: str, above: str, pairs: str, status: str = GAP) -> str:
    """The same with gaps for what differs from span to span: trace id, span id, what `above` has, start, end, what `pairs` has, status."""
    return (
        f'{{"traceId":"{GAP}","spanId":"{GAP}",{above}{opening}"startTimeUnixNano":"{GAP}","endTimeUnixNano":"{GAP}",'
        f'"attributes":[{pairs}],"status":{status}}}'
    )


def fill(form: Sequence[str], values: Sequence[str]) -> str:
    """A form, split at its gaps, with values in them. Raises ValueError where there are not as many as gaps."""
    parts = [""] * (2 * len(form) - 1)
    parts[::2] = form
    parts[1::2] = values
    return "".join(parts)


@functools.lru_cache(1024)
def opening(name: str, kind: str) -> str:
    return f'"name":{quoted(name)},"kind":{otlp.SPAN_KIND[kind]},'


def above(parent_span_id: str | None) -> str:
    """The part that names the parent; nothing where there is none."""
    return f'"parentSpanId":"{parent_span_id}",' if parent_span_id and parent_span_id != _NO_SPAN else ""


def status(ok: bool, message: str) -> str:
    return '{"code":1}' if ok else f'{{"code":2,"message":{quoted(message)}}}'


def pairs(attributes: Attributes) -> str:
    """Attributes but those that are None. Raises TypeError for values that OTLP has no form for."""
    return ",".join([_pair(key, value) for key, value in attributes.items() if value is not None])


def fresh_pairs(attributes: Attributes) -> str:
    """The same, with nothing kept: for what hardly comes a second time."""
    return ",".join([_fresh_pair(key, value) for key, value in attributes.items() if value is not None])


def integer(key: str) -> str:
    """A pair with a gap, for what is another whole number each time."""
    return f'{{"key":{quoted(key)},"value":{{"intValue":"{GAP}"}}}}'


def number(key: str) -> str:
    """The same for a finite number."""
    return f'{{"key":{quoted(key)},"value":{{"doubleValue":{GAP}}}}}'


def string(key: str) -> str:
    """The same for a text, which `quoted` has quoted."""
    return f'{{"key":{quoted(key)},"value":{{"stringValue":{GAP}}}}}'


def _pair(key: str, value: Value) -> str:
    if isinstance(value, str | bool | int):
        return _kept_pair(key, value)
    return _fresh_pair(key, value)


def _fresh_pair(key: str, value: Value) -> str:
    if isinstance(value, float):
        shown = otlp.number(value)
        return f'{{"key":{_kept(key)},"value":{{"doubleValue":{shown if isinstance(shown, float) else quoted(shown)}}}}}'
    if isinstance(value, str | bool | int):
        return _scalar_pair(key, value)
    values = ",".join([f'{{"stringValue":{quoted(str(each))}}}' for each in value])
    return f'{{"key":{_kept(key)},"value":{{"arrayValue":{{"values":[{values}]}}}}}}'


def _scalar_pair(key: str, value: str | bool | int) -> str:
    if isinstance(value, str):
        shown = f'{{"stringValue":{quoted(value)}}}'
    elif isinstance(value, bool):
        shown = '{"boolValue":true}' if value else '{"boolValue":false}'
    elif int(value) in otlp.INT64:
        shown = f'{{"intValue":"{int(value)}"}}'
    else:
        shown = f'{{"doubleValue":{float(value)!r}}}'
    return f'{{"key":{quoted(key)},"value":{shown}}}'


_kept_pair = functools.lru_cache(MAX_KEPT, typed=True)(_scalar_pair)


def quoted(text: str) -> str:
    """As a JSON string."""
    return encode_basestring_ascii(text if text.isascii() else otlp.text(text))


_kept = functools.lru_cache(1024)(quoted)
