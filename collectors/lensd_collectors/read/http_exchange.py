"""What people copied of a request and its answer (curl output, request and response text, JSON captures, client tracebacks) → exchanges."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lensd_collectors.dialects import FailurePattern, load
from lensd_collectors.read.error_body import read_error, shorten
from lensd_collectors.rows import ConfigFact, HttpExchange, Instant, Row

STATUS: Final = re.compile(r"^(?:< )?HTTP/\d(?:\.\d)? (?P<status>\d{3})\b")
REQUEST: Final = re.compile(r"^(?:> )?(?P<method>GET|POST|PUT|DELETE|PATCH|OPTIONS|HEAD) (?P<target>(?:https?://|/|\$)\S*)")
CURL: Final = re.compile(r"^\s*(?:[$#>%] ?)?curl\s")
_TARGET: Final = re.compile(r"(?:https?://[^\s/'\"]+|\$\{?\w+\}?)(?P<path>/[^\s'\"?]*)")
_RESULT: Final = re.compile(r"-> (?P<status>\d{3}) in (?P<seconds>[\d.]+) ?s\b")
_MODEL: Final = re.compile(r"\\?\"model\\?\"\s*:\s*\\?\"(?P<model>[^\"\\]+)\\?\"")
_HEADER: Final = re.compile(r"^(?:< )?(?P<name>[A-Za-z][\w-]*): (?P<value>.*)$")
_CHAINED: Final = ("direct cause of the following exception", "During handling of the above exception")
_BODY_LIMIT: Final = 64 * 1024


class Exchange(msgspec.Struct, kw_only=True):
    """A row while it is read, with the line of each of its columns."""

    row: HttpExchange
    places: dict[str, int] = {}
    body: list[str] = []
    body_line: int = 0
    in_body: bool = False


class HttpRows(msgspec.Struct, frozen=True, kw_only=True):
    exchanges: list[Exchange]
    facts: list[Row]
    unread_lines: int

    @property
    def rows(self) -> list[Row]:
        return [*(one.row for one in self.exchanges), *self.facts]


def read_http(text: str, *, name: str, engine: str | None = None) -> HttpRows:
    """All exchanges of a text or JSON capture; `places` of each say which line a column was read from."""
    captures = list(_captures(text)) if text.lstrip()[:1] in ("{", "[") else []
    if captures:
        return _Captures(name, engine).read(captures)
    return _Text(name, engine).read(text)


class _Text:
    """Walks copied text; a request line, a curl command or a status line begins something new."""

    def __init__(self, name: str, engine: str | None) -> None:
        self._name, self._engine = name, engine
        client = load()["client"]
        self._failures, self._limits = client.failures, client.limits
        self._done: list[Exchange] = []
        self._facts: list[Row] = []
        self._request: dict[str, Any] = {}
        self._request_places: dict[str, int] = {}
        self._open: Exchange | None = None
        self._failed: Exchange | None = None
        self._chained = False
        self._limit: tuple[float, int] | None = None
        self._unread = 0

    def read(self, text: str) -> HttpRows:
        hints = []
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.rstrip("\r")
            hint = _first_ms(self._limits, line)
            if hint:
                self._limit = (hint, number)
                hints.append(self._limit)
            self._line(line, number, known=bool(hint))
        self._close()
        if len({limit for limit, _ in hints}) == 1:  # the only limit in sight, though it stands below
            for one in self._done:
                if one.row.status is None and one.row.limit_ms is None and "timeout" in (one.row.error_code or ""):
                    one.row.limit_ms, one.places["limit_ms"] = hints[0]
        return HttpRows(exchanges=self._done, facts=self._facts, unread_lines=self._unread)

    def _line(self, line: str, number: int, *, known: bool) -> None:
        if match := STATUS.match(line):
            return self._answer(int(match["status"]), number)
        if (match := REQUEST.match(line)) or CURL.match(line):
            self._close()
            return self._asked(line, number, match)
        code, failure = next(((one.code, found) for one in self._failures if (found := one.regex.search(line))), (None, None))
        if failure and code and not line[:1].isspace():
            return self._failure(code, failure, line, number)
        if any(words in line for words in _CHAINED):
            self._chained = True
        elif match := _RESULT.search(line):
            self._result(int(match["status"]), float(match["seconds"]) * 1000, number)
        elif self._open:
            self._part(line, number)
        elif line.lstrip()[:1] in ("{", "[") and self._request:
            self._answer(None, number)
            self._part(line, number)
        elif line.strip() and not known:
            self._unread += 1

    def _asked(self, line: str, number: int, match: re.Match[str] | None) -> None:
        target = _TARGET.search(line)
        path = target["path"] if target else (match["target"].partition("?")[0] if match else None)
        has_body = re.search(r"\s(?:-d|--data\S*|--json)[\s=]", line)
        method = match["method"] if match else _option(line) or ("POST" if has_body else "GET")
        self._request = {"method": method, "path": path}
        self._request_places = {"method": number, "path": number}
        self._keep_model(line, number)

    def _keep_model(self, line: str, number: int) -> None:
        model = _MODEL.search(line)
        if model and self._request and "model" not in self._request:
            self._request["model"] = model["model"]
            self._request_places["model"] = number

    def _new(self, number: int, **columns: Any) -> Exchange:
        row = HttpExchange(engine=self._engine, hop="client", src=f"{self._name}:{number}")
        for column, value in {**self._request, **columns}.items():
            setattr(row, column, value)
        return Exchange(row=row, places={**self._request_places, **dict.fromkeys(columns, number)}, body=[])

    def _answer(self, status: int | None, number: int) -> None:
        if status is not None and status < 200:
            return
        self._close()
        self._open = self._new(number, status=status)

    def _part(self, line: str, number: int) -> None:
        """A header or a part of the body of the open answer."""
        exchange = self._open
        assert exchange is not None
        header = None if exchange.in_body else _HEADER.match(line)
        if header:
            if header["name"].lower() == "x-request-id":
                exchange.row.request_id = header["value"].strip()[:128]
            return
        text = line.removeprefix("< ")
        exchange.in_body = exchange.in_body or not text.strip() or text.lstrip()[:1] in ("{", "[", "d")
        if text.strip() and sum(map(len, exchange.body)) < _BODY_LIMIT:
            exchange.body_line = exchange.body_line or number
            exchange.body.append(text)

    def _failure(self, code: str, match: re.Match[str], line: str, number: int) -> None:
        limit, waited = _ms(match, "limit"), _ms(match, "waited")
        if self._failed and self._chained:  # httpcore's, httpx's and openai's word for one failure
            limit = limit or self._failed.row.limit_ms
            self._failed = None
        self._close(keep_request=True)
        exchange = self._new(number, error_code=code, error_message=shorten(line.strip()))
        if limit is not None:
            exchange.row.limit_ms, exchange.places["limit_ms"] = limit, number
        elif self._limit and "timeout" in code:
            exchange.row.limit_ms, exchange.places["limit_ms"] = self._limit
        exchange.row.duration_ms = waited
        self._failed, self._chained = exchange, False

    def _result(self, status: int, duration_ms: float, number: int) -> None:
        self._close(keep_request=True)
        self._done.append(self._new(number, status=status, duration_ms=duration_ms))

    def _close(self, *, keep_request: bool = False) -> None:
        if self._failed:
            self._done.append(self._failed)
        if self._open:
            body = "\n".join(self._open.body)
            finish(self._open, body)
            self._facts += models_listed(body, f"{self._name}:{self._open.body_line}", self._engine)
            if self._open.row.status is not None or self._open.row.error_message:
                self._done.append(self._open)
            if not keep_request:
                self._request, self._request_places = {}, {}
        self._open = self._failed = None
        self._chained = False


class _Captures:
    """JSON documents of the form {request: {method, path, headers, body}, status, headers, body}."""

    def __init__(self, name: str, engine: str | None) -> None:
        self._name, self._engine = name, engine

    def read(self, captures: list[tuple[dict[str, Any], str, int]]) -> HttpRows:
        exchanges, facts = [], []
        for document, text, first_line in captures:
            exchange = self._exchange(document, text, first_line)
            body = document.get("body")
            exchanges.append(exchange)
            finish(exchange, body if isinstance(body, str) else json.dumps(body) if body else "")
            if isinstance(body, str):
                facts += models_listed(body, f"{self._name}:{exchange.body_line}", self._engine)
        return HttpRows(exchanges=exchanges, facts=facts, unread_lines=0)

    def _exchange(self, document: dict[str, Any], text: str, first: int) -> Exchange:
        request = document.get("request")
        request = request if isinstance(request, dict) else {}
        asked = request.get("body")
        model = _MODEL.search(asked) if isinstance(asked, str) else None
        answered = _offset(text, "status", 0)
        places = {
            "status": first + text.count("\n", 0, answered),
            "method": first + text.count("\n", 0, _offset(text, "method", 0)),
            "path": first + text.count("\n", 0, _offset(text, "path", 0)),
            "model": first + text.count("\n", 0, _offset(text, "body", 0)),
        }
        headers = {**_headers(request.get("headers")), **_headers(document.get("headers"))}
        started, elapsed = _float(document.get("t_start")), _float(document.get("elapsed"))
        status = document.get("status")
        row = HttpExchange(
            seen_at=Instant(round(started * 1e6)) if started and 0 < started < 1e11 else None,
            request_id=headers.get("x-request-id"),
            engine=self._engine,
            model=model["model"] if model else None,
            hop="client",
            method=_text(request.get("method")),
            path=(_text(request.get("path")) or "").partition("?")[0] or None,
            status=status if isinstance(status, int) else None,
            duration_ms=elapsed * 1000 if elapsed is not None else None,
            src=f"{self._name}:{places['status']}",
        )
        length = headers.get("content-length", "")
        row.bytes = int(length) if length.isdigit() else None
        return Exchange(row=row, places=places, body=[], body_line=first + text.count("\n", 0, _offset(text, "body", answered)))


def finish(exchange: Exchange, body: str) -> None:
    """Adds what the answer's body means; the body itself is not kept."""
    row = exchange.row
    error = read_error(row.status, body, row.path)
    if error is None:
        return
    row.error_code, row.error_message = error.code, error.message
    line = exchange.body_line
    offset = next((at for at, part in enumerate(exchange.body) if '"error"' in part or '"message"' in part or '"detail"' in part), 0)
    exchange.places |= dict.fromkeys(("error_code", "error_message", "body_shape"), line + offset if line else exchange.places.get("status", 0))
    if error.meaning:
        row.body_shape = error.meaning.decision.value
        row.model = row.model or error.meaning.named.get("model")


def models_listed(body: str, src: str, engine: str | None) -> list[Row]:
    """Facts of a `/v1/models` answer: the ids served and their context lengths."""
    try:
        document = msgspec.json.decode(body.strip() or "null")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    if not isinstance(document, dict) or document.get("object") != "list" or not isinstance(document.get("data"), list):
        return []
    facts: list[Row] = []
    for model in document["data"]:
        if not isinstance(model, dict) or model.get("object") != "model" or not isinstance(model.get("id"), str):
            continue
        facts.append(ConfigFact(subject=engine, name="served_model_name", value=model["id"], src=src))
        if isinstance(model.get("max_model_len"), int):
            facts.append(ConfigFact(subject=engine, name="max_model_len", value=str(model["max_model_len"]), src=src))
    return facts


def _captures(text: str) -> Iterator[tuple[dict[str, Any], str, int]]:
    """The capture documents of a file (one, a list, or one after another), each with its text and first line."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        blank = re.compile(r"[\s,\[\]]*").match(text, at)
        at = blank.end() if blank else at
        try:
            document, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        if isinstance(document, dict) and ("request" in document and "status" in document):
            yield document, text[at:end], text.count("\n", 0, at) + 1
        elif isinstance(document, dict) and "resourceSpans" not in document and read_error(None, text[at:end]):
            yield {"body": text[at:end]}, text[at:end], text.count("\n", 0, at) + 1
        at = max(end, at + 1)


def _offset(text: str, key: str, start: int) -> int:
    match = re.compile(rf'"{key}"\s*:').search(text, start)
    return match.start() if match else start


def _headers(raw: object) -> dict[str, str]:
    pairs: list[Any] = list(raw.items()) if isinstance(raw, Mapping) else raw if isinstance(raw, list) else []
    return {str(pair[0]).lower(): str(pair[1]) for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2}


def _first_ms(patterns: tuple[FailurePattern, ...], line: str) -> float | None:
    return next((ms for one in patterns if (match := one.regex.search(line)) and (ms := _ms(match, "limit"))), None)


def _ms(match: re.Match[str], what: str) -> float | None:
    groups = match.groupdict()
    if groups.get(f"{what}_ms"):
        return float(groups[f"{what}_ms"])
    return _float(groups.get(f"{what}_s"), 1000)


def _float(value: object, scale: float = 1) -> float | None:
    try:
        return float(str(value)) * scale if value is not None else None
    except ValueError:
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _option(line: str) -> str | None:
    match = re.search(r"\s(?:-X|--request)[ =]?([A-Z]+)\b", line)
    return match[1] if match else None
