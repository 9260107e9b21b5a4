"""Spans of other people's client instrumentation, of a trace at a time, under our names.

OpenTelemetry's GenAI spans, OpenLLMetry's, OpenInference's, and those of plain HTTP clients. What they call things is data:
`dialects/client.toml`, tables `[spans]` and `[client]`.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from lensd_collectors import conventions as c
from lensd_collectors.client.paths import PATHS, matcher

MOST_ABOVE: Final = 32
_BEYOND: Final = 2**63  # no count or time of an attribute is as large
_OURS: Final[Mapping[str, str]] = {
    # column of requests -> our attribute
    "model": c.REQUEST_MODEL,
    "served_model": c.RESPONSE_MODEL,
    "engine_request_id": c.RESPONSE_ID,
    "session_id": c.SESSION_ID,
    "streaming": c.IS_STREAMING,
    "max_tokens": c.MAX_TOKENS,
    "prompt_tokens": c.INPUT_TOKENS,
    "completion_tokens": c.OUTPUT_TOKENS,
    "cached_tokens": c.CACHED_TOKENS,
    "finish_reason": c.FINISH_REASONS,
    "status": c.HTTP_STATUS,
    "error_code": c.ERROR_TYPE,
    "client_timeout_ms": c.CLIENT_TIMEOUT_MS,
    "ttft_ms": c.CLIENT_FIRST_CONTENT_MS,
}
_OF_THE_ASKING: Final = frozenset({c.REQUEST_MODEL, c.SESSION_ID, c.IS_STREAMING, c.MAX_TOKENS})
_NEVER_HANDED_DOWN: Final = frozenset({c.HTTP_STATUS, c.CLIENT_TIMEOUT_MS})
_NOT_CALLERS: Final = frozenset({c.SCOPE_GATEWAY, c.SCOPE_VLLM, c.SCOPE_AGENT})
_is_llm_path = matcher(PATHS)


class SpanLike(Protocol):
    """A stored span: `start` in microseconds, `kind` as the store has it, `attributes` decoded."""

    span_id: str
    parent_span_id: str | None
    name: str
    kind: str | None
    scope: str | None
    start: int
    attributes: dict[str, Any]


class Kind(IntEnum):
    """What a caller's span stands for."""

    OURS = 0  # one attempt, as `instrument()` tells it
    HTTP = 1  # one attempt over HTTP
    CALL = 2  # one call of a client library, attempts and all


class _Told(NamedTuple):
    kind: Kind
    is_llm: bool  # False: only what stands above it can say what it is for
    values: dict[str, Any]


def callers(spans: Sequence[SpanLike]) -> dict[str, dict[str, Any]]:
    """Of one trace's spans those that stand for the caller's side of one request each: by span id, attributes with ours added.

    A call whose attempts are here too is none itself; what it knows is handed down to them: what was asked to each, what came of it
    to the last. An attempt behind another server is a hop, not the caller.
    """
    told = {span.span_id: seen for span in spans if (seen := _read(span)) is not None}
    if len(told) > 1:
        standing = _standing(spans, told)
    else:
        standing = {span_id for span_id, seen in told.items() if seen.is_llm}
    return {span.span_id: {**told[span.span_id].values, **span.attributes} for span in spans if span.span_id in standing}


def _standing(spans: Sequence[SpanLike], told: Mapping[str, _Told]) -> set[str]:
    """Those of several that stand for a request; what calls know is handed down on the way."""
    by_id = {span.span_id: span for span in spans}
    below: dict[str, list[SpanLike]] = defaultdict(list)  # attempts by the call they belong to
    dropped: set[str] = set()
    for span in spans:
        if span.span_id in told:
            _place(span, told, by_id, below, dropped)
    for call_id, all_attempts in sorted(below.items(), key=lambda item: (-len(_above(by_id[item[0]], by_id)), item[0])):  # nearest first
        attempts = sorted((a for a in all_attempts if a.span_id not in dropped), key=lambda a: (a.start, a.span_id))
        if any(told[a.span_id].is_llm for a in attempts):  # what else was asked on the way, such as for a token, is none
            dropped.update(a.span_id for a in attempts if not told[a.span_id].is_llm)
            attempts = [a for a in attempts if a.span_id not in dropped]
        if attempts:
            dropped.add(call_id)
            _hand_down(by_id[call_id], told[call_id].values, attempts, told)
    return told.keys() - dropped


def _place(
    span: SpanLike, told: Mapping[str, _Told], by_id: Mapping[str, SpanLike], below: dict[str, list[SpanLike]], dropped: set[str]
) -> None:
    """Looks upwards: who this is an attempt of, and whether it stands for a request at all."""
    own, is_past_server, has_call = told[span.span_id], False, False
    for above in _above(span, by_id):
        seen = told.get(above.span_id)
        if seen is None:
            is_past_server = is_past_server or above.kind == "server"
        elif is_past_server:
            if seen.is_llm:  # a proxy asks on behalf of that caller
                dropped.add(span.span_id)
        elif seen.kind is Kind.CALL:
            below[above.span_id].append(span)  # also a call inside a call: its attempts are both's, and where none show it is one itself
            has_call = True
        elif own.kind is Kind.CALL:
            pass
        elif own.kind is seen.kind is Kind.OURS:
            pass  # sent again with the first one's headers: two attempts
        elif own.kind is Kind.OURS or (seen.kind is Kind.HTTP and own.is_llm):
            dropped.add(above.span_id)  # two spans of one attempt: ours stands, else the inner one
        else:
            dropped.add(span.span_id)
    if not own.is_llm and not has_call:
        dropped.add(span.span_id)


def _above(span: SpanLike, by_id: Mapping[str, SpanLike]) -> list[SpanLike]:
    chain: list[SpanLike] = []
    seen = {span.span_id}
    parent = span.parent_span_id
    while parent and parent not in seen and len(chain) < MOST_ABOVE and (above := by_id.get(parent)) is not None:
        seen.add(parent)
        chain.append(above)
        parent = above.parent_span_id
    return chain


def _hand_down(call: SpanLike, values: Mapping[str, Any], attempts: Sequence[SpanLike], told: Mapping[str, _Told]) -> None:
    for attempt in attempts:
        is_last = attempt is attempts[-1]
        for name, value in values.items():
            if name in _NEVER_HANDED_DOWN or not (is_last or name in _OF_THE_ASKING):
                continue
            if name == c.CLIENT_FIRST_CONTENT_MS:  # counted from the call's start
                value -= (attempt.start - call.start) / 1000
                if value < 0:
                    continue
            told[attempt.span_id].values.setdefault(name, value)


def _read(span: SpanLike) -> _Told | None:
    """What a span tells as a caller's; None where it is none."""
    if span.scope == c.SCOPE_CLIENT:
        return _Told(Kind.OURS, True, {})
    if span.kind not in ("client", "internal", None) or span.scope in _NOT_CALLERS or span.name == c.SPAN_VLLM_REQUEST:
        return None
    known, attributes = _dialect(), span.attributes
    if _has_one(attributes, known.others):
        return None
    if _has_one(attributes, known.calls):
        return _Told(Kind.CALL, True, known.values(attributes))
    if span.kind == "internal":
        return None
    if any(name in attributes for name in known.limits):
        return _Told(Kind.HTTP, True, known.values(attributes))
    if any(name in attributes for name in known.models):
        return _Told(Kind.CALL, True, known.values(attributes))
    if span.kind == "client" and any(str(attributes.get(name, "")).upper() == "POST" for name in known.methods):
        return _Told(Kind.HTTP, known.is_llm(attributes), known.values(attributes))
    return None


def _has_one(attributes: Mapping[str, Any], marks: Mapping[str, frozenset[str]]) -> bool:
    return any(isinstance(value := attributes.get(name), str) and value in values for name, values in marks.items())


class _Dialect(NamedTuple):
    names: Mapping[str, Sequence[str]]  # column -> attributes, best first
    seconds: frozenset[str]  # those in seconds, where ours is in milliseconds
    calls: Mapping[str, frozenset[str]]  # an attribute and the values by which a call to a model is known
    others: Mapping[str, frozenset[str]]  # the same of what is none: agents, tools, chains
    methods: Sequence[str]
    urls: Sequence[str]

    @property
    def limits(self) -> Sequence[str]:
        return self.names["client_timeout_ms"]

    @property
    def models(self) -> Sequence[str]:
        return self.names["model"]

    def values(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """What these attributes say, under our names."""
        found = {}
        for column, names in self.names.items():
            ours = _OURS[column]
            read = (_value(ours, attributes[name], name in self.seconds) for name in names if name in attributes)
            if (value := next((each for each in read if each is not None), None)) is not None:
                found[ours] = value
        return found

    def is_llm(self, attributes: Mapping[str, Any]) -> bool:
        return any(_is_llm_path(urlsplit(str(attributes[name])).path) for name in self.urls if name in attributes)


def _value(ours: str, value: Any, is_seconds: bool) -> Any:
    """The value in our attribute's type and unit; None where it is none."""
    kind = c.ATTRIBUTES[ours].kind
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if kind in ("int", "double"):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _BEYOND:
            return None
        return int(value) if kind == "int" else float(value) * (1000 if is_seconds else 1)
    if kind == "string[]":
        return [str(each) for each in value] if isinstance(value, list | tuple) and value else [value] if isinstance(value, str) else None
    return str(value) if isinstance(value, str) and value else None


@cache
def _dialect() -> _Dialect:
    raw = tomllib.loads(files("lensd_collectors.dialects").joinpath("client.toml").read_text(encoding="utf-8"))
    marks = raw["client"]
    return _Dialect(
        names={column: tuple(names) for column, names in raw["spans"].items()},
        seconds=frozenset(marks["seconds"]),
        calls=_sets(marks["calls"]),
        others=_sets(marks["others"]),
        methods=tuple(marks["methods"]),
        urls=tuple(marks["urls"]),
    )


def _sets(raw: Mapping[str, Iterable[str]]) -> Mapping[str, frozenset[str]]:
    return {name: frozenset(values) for name, values in raw.items()}
