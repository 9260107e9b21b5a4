"""One call as whoever logs it names its parts: keys of JSON logs, headers of CSV files, `key=value` lines → columns of an exchange."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from lensd_collectors.dialects import milliseconds
from lensd_collectors.read.answer_body import decoded
from lensd_collectors.read.cells import instant_of as written
from lensd_collectors.read.columns import is_when
from lensd_collectors.read.lines import Clock, dated, rfc3339
from lensd_collectors.rows import HttpExchange, Instant
from lensd_collectors.scrub import scrub

_TEXTS: Final = {
    "method": ("method", "requestmethod", "httpmethod", "httprequestmethod", "clientrequestmethod", "verb"),
    "path": (
        "path", "uri", "requesturi", "requestpath", "xenvoyoriginpath", "urlpath", "httptarget", "endpoint", "httpurl", "requesturl", "url",
        "clientrequestpath", "clientrequesturi", "resourcepath",
    ),
    "request_id": ("requestid", "xrequestid", "reqid", "req", "rid", "callid", "litellmcallid", "responseid"),
    "upstream": (
        "upstreamhost", "upstreamaddr", "upstreamaddress", "serviceurl", "serviceaddr", "targetipport", "backendaddr", "apibase",
        "upstream", "backend", "upstreamcluster", "upstreamuri", "balancerip",
    ),
    "peer": (
        "clienthost", "remoteaddr", "remoteaddress", "remoteip", "clientip", "clientaddr", "clientipaddress", "downstreamremoteaddress",
        "peer", "requesteripaddress", "useripaddress", "srcip", "client",
    ),
    "model": ("model", "modelname", "requestedmodel", "modelgroup", "ginrequestmodel"),
    "finish_reason": ("finishreason", "donereason", "stopreason", "finish"),
    "key_id": (
        "keyalias", "userapikeyalias", "keyname", "keyid", "consumerusername", "consumername",
        "username", "subject", "authuser", "remoteuser",
        "jwtsub", "jwtsubject",
    ),
    "error_code": ("responseflags", "statusdetails", "errorcode", "errortype", "exceptiontype"),
    "error_message": ("responsecodedetails", "errormessage", "err", "error", "exception"),
}  # fmt: skip
_COUNTS: Final = {
    "status": (
        "status", "statuscode", "httpstatus", "httpstatuscode", "responsecode", "responsestatus", "downstreamstatus", "httpcode", "code",
        "edgeresponsestatus",
    ),
    "upstream_status": ("upstreamstatus", "originstatus", "targetstatuscode", "upstreamstatuscode", "us"),
    "bytes": (
        "bytes", "bytessent", "bodybytessent", "bytesout", "responsesize", "downstreamcontentsize", "responsebytes", "sentbytes", "size",
    ),
    "received_bytes": (
        "bytesreceived", "requestlength", "requestsize", "requestcontentsize", "bytesin", "bytesread", "receivedbytes", "rl",
    ),
    "prompt_tokens": ("prompttokens", "inputtokens", "promptevalcount", "promptn", "tokensin", "prompttokencount", "tokenizercount",
                      "tokensprompt"),
    "completion_tokens": ("completiontokens", "outputtokens", "generatedtokens", "evalcount", "tokensout", "tokenscompletion", "tokens"),
    "cached_tokens": ("cachedtokens", "cachen", "cachereadinputtokens"),
    "reasoning_tokens": ("reasoningtokens",),
    "max_tokens": ("maxtokens", "maxnewtokens", "maxcompletiontokens", "numpredict", "maxoutputtokens"),
    "chunks": ("chunks", "ssechunks", "chunkindex"),
    "tool_calls": ("toolcalls",),
    "content_chars": (
        "contentchars", "chars", "characters", "outputchars", "answerchars", "responsechars", "argumentschars", "argumentsbytes",
        "argumentslen", "argumentslength", "argslen", "argschars", "argsbytes", "lenarguments",
    ),
}  # fmt: skip
# Durations: the name without its unit, and what a bare number means: s, ms, ns, or "" for not known.
_SPANS: Final = {
    "ttfb_ms": {
        "ttft": "", "timetofirsttoken": "", "firsttoken": "", "firsttokenafter": "", "firstcontentafter": "", "timetofirstbyte": "",
        "ttfb": "", "promptevalduration": "ns", "prefill": "", "prefilltime": "",
        "upstreamheadertime": "s", "uht": "s", "timestarttransfer": "s", "firstchunkafter": "", "firstbyte": "", "headersafter": "",
        "firstchunk": "", "firstcontent": "", "firsttext": "", "firstdelta": "", "firstword": "", "firstoutput": "",
        "latenciesproxy": "ms", "edgetimetofirstbyte": "ms",
    },
    "upstream_ms": {
        "originduration": "ns", "upstreamresponsetime": "s", "urt": "s", "xenvoyupstreamservicetime": "ms", "upstreamservicetime": "ms",
        "upstreamduration": "", "upstream": "", "targetprocessingtime": "s", "upstreamlatency": "",
        "integrationlatency": "ms", "originresponseduration": "ms",
    },
    "duration_ms": {
        "duration": "", "requesttime": "s", "rt": "s", "latency": "", "elapsed": "s", "total": "", "totaltime": "s", "timetotal": "s",
        "responsetime": "", "took": "", "totalduration": "ns", "e2elatency": "", "wall": "", "lastchunkafter": "", "time": "", "ms": "ms",
        "latenciesrequest": "ms", "responselatency": "ms", "timetaken": "s", "httprequestlatency": "s",
    },
    "limit_ms": {"timeout": "s"},
    "retry_after_ms": {"retryafter": "s"},
    "max_gap_ms": {
        "maxgap": "", "longestgap": "", "gap": "", "lastchunkage": "", "sincelastchunk": "", "lastchunkago": "", "gapmsmax": "ms",
        "gapmax": "", "maxgapms": "ms", "gapp99": "", "p99gap": "", "gapp95": "", "p95gap": "",
    },
}  # fmt: skip
# Of each token but the first.
_EACH: Final = {"tpot": "", "timeperoutputtoken": "", "itl": "", "intertokenlatency": "", "mspertoken": "ms", "timepertoken": ""}
_TOKENS_FIRST: Final = (
    "ttft",
    "timetofirsttoken",
    "firsttoken",
    "firsttokenafter",
    "firstcontentafter",
    "firstchunk",
    "firstcontent",
    "firsttext",
    "firstdelta",
    "firstword",
    "firstoutput",
    "promptevalduration",
    "prefill",
    "prefilltime",
)
_SAID: Final = ("msg", "message", "detail", "reason")
_SHAPES: Final = ("responseformat", "responseformattype", "format", "kind", "mode", "shape", "constraint")
_STRUCTURED: Final = ("json", "schema", "grammar", "guided", "structured", "regex")
_WHEN: Final = (
    "starttime",
    "startedat",
    "startutc",
    "ts",
    "timestamp",
    "time",
    "timelocal",
    "timeiso8601",
    "at",
    "datetime",
    "date",
    "createdat",
    "when",
    "sent",
    "sentat",
    "requesttime",
    "edgestarttimestamp",
)
_BEGUN: Final = ("starttime", "startedat", "startutc", "edgestarttimestamp", "start")
_OVER: Final = ("endtime", "endedat", "endutc", "finishedat", "completedat", "edgeendtimestamp", "end")
_SERVED: Final = ("success", "succeeded", "ok")  # words for a status
_UNITS: Final = {"ms": 1.0, "s": 1e3, "seconds": 1e3, "sec": 1e3, "secs": 1e3, "ns": 1e-6, "us": 1e-3, "millis": 1.0, "milliseconds": 1.0}
_TIME: Final = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?")
_NOT_NAME: Final = re.compile(r"[^a-z0-9]+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NONE: Final = ("", "-", "None", "null", "nil", "-1")
_PROXYS: Final = frozenset({"upstream", "upstream_status", "upstream_ms"})
_LOGGERS: Final = ("logger", "loggername", "component", "service", "servicename", "app", "module", "source")
_OF_HOP: Final = re.compile(r"prox(?:y|ies)|router|gateway|ingress|balancer|apisix|\bkong\b|envoy|traefik", re.IGNORECASE)
_PASSED_ON: Final = "via_upstream"  # Envoy: the status is that of what stands behind it
_SERVED_BY: Final = "resstatuscode"  # a server's own log, as Node's loggers nest it
_LONGEST_MS: Final = 1e9
_ANSWERED: Final = "response_sent_by"  # Google's balancer: who wrote the answer
_NANOSECONDS: Final = "downstreamstatus"  # a log with this key, Traefik's, counts in nanoseconds
_MILLISECONDS: Final = "apisixlatency"
MOST_KEYS: Final = 200
STREAM: Final = ("stream", "streaming", "isstream")


def asked_of(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """What the pairs say of a call that begins: columns of its exchange."""
    named = _flat(pairs)
    found: dict[str, Any] = {}
    for column in ("prompt_tokens", "max_tokens", "received_bytes"):
        if (number := _whole(_first(named, _COUNTS[column]))) is not None:
            found[column] = number
    if isinstance(model := _first(named, _TEXTS["model"]), str):
        found["model"] = scrub(model)[:200]
    return found


_OWN_SERVER: Final = re.compile(r"(?i)caddy|nginx|traefik|envoy|haproxy|apisix|kong|cloudflare|awselb")


def exchange_of(
    pairs: Mapping[str, Any], *, engine: str | None, src: str, hop: str | None = None, clock: Clock | None = None
) -> HttpExchange | None:
    """The exchange that the pairs tell of; None where they tell of none. `clock`: of an instant without a day.

    They do with a status, a reason why the answer ended, or its tokens and their time, and beside it a path, a duration or tokens.
    """
    named = _flat(pairs)
    row = HttpExchange(engine=engine, src=src)
    for column, names in _TEXTS.items():
        value = _first(named, names)
        if isinstance(value, str) and value not in _NONE:
            setattr(row, column, scrub(value)[:500])
    for column, names in _COUNTS.items():
        if (found := next((number for one in names if (number := _whole(named.get(one))) is not None), None)) is not None:
            setattr(row, column, found)
    for column, spans in _SPANS.items():
        span = _span(named, spans, "ns" if _NANOSECONDS in named else "ms" if _MILLISECONDS in named else "")
        if span is not None:
            setattr(row, column, span)
    stream = _first(named, STREAM)
    row.streaming = {"true": True, "false": False, "on": True, "off": False}.get(str(stream).lower(), _way(named))
    if row.status is not None and not 100 <= row.status <= 599:
        row.status = None
    shape = str(_first(named, _SHAPES) or "").lower()
    row.structured = any(word in shape for word in _STRUCTURED) if shape else False if "responseformat" in named else None
    if row.duration_ms is None and (begun := instant_of(_first(named, _BEGUN), clock)) is not None:
        over = instant_of(_first(named, _OVER), clock)
        row.duration_ms = (over - begun) / 1000 if over is not None and over >= begun else None
    each = _span(named, _EACH, "")
    if row.duration_ms is None and each is not None and row.ttfb_ms is not None and row.completion_tokens:
        row.duration_ms = round(row.ttfb_ms + each * (row.completion_tokens - 1), 3)
    timed = row.completion_tokens is not None and (row.duration_ms is not None or row.ttfb_ms is not None)
    timed = timed or (row.prompt_tokens is not None and (row.ttfb_ms is not None or row.cached_tokens is not None))
    if row.ttfb_ms is not None and row.streaming is None and any(named.get(name) is not None for name in _TOKENS_FIRST):
        row.streaming = True
    failed = row.error_code is not None and row.duration_ms is not None
    says_end = (
        row.status is not None
        or row.finish_reason is not None
        or timed
        or failed
        or (row.max_gap_ms is not None and row.chunks is not None)
    )
    says_end = says_end or (row.error_message is not None and row.duration_ms is not None and _is_of_call(row, named))
    if row.status is not None and row.status >= 400 and row.error_message is None and isinstance(said := _first(named, _SAID), str):
        row.error_message = scrub(said)[:500]
    if row.upstream_status is None and _passed_on(pairs):
        row.upstream_status = row.status
    row.seen_at = instant_of(_first(named, _WHEN), clock) or instant_of(_when(pairs), clock)
    if row.status is None and row.error_message is None and str(_first(named, _COUNTS["status"])).lower() in _SERVED:
        row.status = 200
    if row.status is None and row.error_message is None and row.error_code is None and (timed or row.finish_reason is not None):
        row.status = 200  # it tells of the answer
    known: tuple[str, ...] = ("path", "duration_ms", "ttfb_ms", "completion_tokens", "prompt_tokens", "max_tokens", "max_gap_ms")
    known += ("error_message",) if row.seen_at is not None else ()  # a body of an error says no more than that, and not when
    if not says_end or all(getattr(row, column) is None for column in known):
        return None
    hop = hop or ("proxy" if _SERVED_BY in named or _OF_HOP.search(str(_first(named, _LOGGERS) or "")) else None)
    if hop == "proxy" and row.request_id is None and isinstance(own := named.get("id"), str):
        row.request_id = scrub(own)[:200]
    _tidy(row, hop)
    return row


def _way(named: Mapping[str, Any]) -> bool | None:
    """Whether the answer came as a stream, of a record that says it by a word."""
    said = next((str(named[name]).lower().replace("_", "-") for name in ("mode", "kind", "way", "variant") if named.get(name)), "")
    if said in ("stream", "streamed", "streaming", "sse"):
        return True
    whole = ("plain", "whole", "blocking", "sync", "nonstream", "nonstreaming", "non-stream", "non-streaming", "non-streamed")
    return False if said in whole else None


def again_of(pairs: Mapping[str, Any]) -> int | None:
    """Which time it is that the caller tries, where it counts: the second or a later one."""
    number = _whole(_first(_flat(pairs), ("attempt", "attemptnumber", "tryno", "try", "retry", "retrycount", "retrynumber", "retries")))
    return number if number is not None and 2 <= number < 1000 else None


def is_key_of(key: str, column: str) -> bool:
    """Whether a record's key means this column of an exchange."""
    whole = _NOT_NAME.sub("", key.lower())
    names = (*_TEXTS.get(column, ()), *_COUNTS.get(column, ()), *_SPANS.get(column, ()))
    return whole in names or any(whole.removesuffix(unit) in names for unit in _UNITS)


def _is_of_call(row: HttpExchange, named: Mapping[str, Any]) -> bool:
    """Whether what failed was a call to a server: it has a path, a model or an id, or its error names the address."""
    told = (row.path, row.model, row.upstream, row.request_id, row.streaming)
    return any(one is not None for one in told) or "://" in (row.error_message or "") or "attempt" in named


def _tidy(row: HttpExchange, hop: str | None) -> None:
    if row.error_code is not None and row.error_code.startswith(_ANSWERED):
        row.error_code = None
    if row.error_message == _PASSED_ON:
        row.error_message, row.upstream_status = None, row.upstream_status or row.status
    if row.path is not None:
        row.path = re.sub(r"^[a-z]+://[^/]*", "", row.path).partition("?")[0] or "/"
    if row.upstream is not None:
        row.upstream = re.sub(r"^[a-z]+://", "", row.upstream).partition("/")[0]
    if row.peer is not None:
        row.peer = re.sub(r"(?<=[\d\]]):\d+$", "", row.peer.split(",")[0].strip())
    row.hop = hop or ("proxy" if row.peer is not None or any(getattr(row, column) is not None for column in _PROXYS) else "client")


def _passed_on(pairs: Mapping[str, Any]) -> bool:
    """Whether the answer's own headers name another server than the proxy that logs it."""
    headers = pairs.get("resp_headers")
    server = headers.get("Server", headers.get("server")) if isinstance(headers, dict) else None
    server = server[0] if isinstance(server, list) and server else server
    return isinstance(server, str) and _OWN_SERVER.match(server) is None


def _flat(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Names in lower case without signs; of nested ones the last part and the whole."""
    found: dict[str, Any] = {}
    todo: list[tuple[str, Any]] = list(pairs.items())
    while todo and len(found) < MOST_KEYS:
        name, value = todo.pop(0)
        if isinstance(value, str) and value[:1] == "{" and (document := decoded(value)) is not None:  # a cell of a table
            todo += [(f"{name}.{inner}", below) for inner, below in document.items()]
        if isinstance(value, dict):
            todo += [(f"{name}.{inner}", below) for inner, below in value.items()]
            continue
        if isinstance(value, list):
            continue
        whole, last, unit = _spelled(str(name))
        if unit is not None and _number(value) is not None:
            value, whole, last = _Timed(float(_number(value) or 0.0) * _UNITS[unit]), whole.removesuffix(unit), last.removesuffix(unit)
        found.setdefault(whole, value)
        found.setdefault(last, value)
        if str(name).count(".") > 1:  # `attributes.error.type`
            found.setdefault(_NOT_NAME.sub("", "".join(str(name).lower().split(".")[-2:])), value)
    return found


@lru_cache(4096)
def _spelled(name: str) -> tuple[str, str, str | None]:
    """The whole name and its last part without signs, and the unit that it ends in."""
    humps = _HUMP.sub("_", name).lower()
    unit = next((one for one in _UNITS if humps.endswith(one) and humps[: -len(one)][-1:] in ("_", ".", "-")), None)
    return _NOT_NAME.sub("", name.lower()), _NOT_NAME.sub("", name.lower().rpartition(".")[2]), unit


class _Timed(float):
    """Milliseconds, as the name's unit says."""


def _span(named: Mapping[str, Any], spans: Mapping[str, str], otherwise: str) -> float | None:
    for name, unit in spans.items():
        value = named.get(name)
        if isinstance(value, _Timed):
            return float(value)
        number = _number(value)
        unit = otherwise or unit
        if number is not None and number * _UNITS[unit or "ms"] > _LONGEST_MS:  # an instant
            continue
        if number is not None and number >= 0 and (unit or isinstance(value, int)):
            # a whole number without a unit is of milliseconds, as Envoy and most loggers write it
            return round(number * _UNITS[unit or "ms"], 3)
        if isinstance(value, float) and value >= 0:
            return round(value * 1e3, 3)  # Caddy
        if isinstance(value, str) and value[:1].isdigit() and value[-1:].isalpha():
            try:
                return float(milliseconds(value))
            except ValueError:
                continue
    return None


def _when(pairs: Mapping[str, Any]) -> Any:
    """What a column holds that names the instant in another language."""
    return next((value for key, value in pairs.items() if is_when(key) and value not in _NONE), None)


def _first(named: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((value for name in names if (value := named.get(name)) is not None and value not in _NONE), None)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _whole(value: object) -> int | None:
    number = None if isinstance(value, _Timed) else _number(value)
    return int(number) if number is not None and 0 <= number < 1 << 60 and number == int(number) else None


def instant_of(value: object, clock: Clock | None) -> Instant | None:
    """Of seconds, milliseconds, microseconds or nanoseconds since 1970, or of a date as text; `clock`: of one without a day."""
    number = _number(value)
    if number is not None:
        for least, factor in ((1e17, 1e-3), (1e14, 1.0), (1e11, 1e3), (1e8, 1e6)):
            if number >= least:
                return Instant(round(number * factor)) if number < 1e20 else None
        return None
    if not isinstance(value, str):
        return None
    if _TIME.fullmatch(value):
        return clock.at("", value) if clock is not None else None
    if len(value) < 10:
        return None
    return dated(value) or rfc3339(value.replace(",", ".").replace("/", "-")) or written(value)
