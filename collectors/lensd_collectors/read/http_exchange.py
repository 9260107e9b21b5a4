"""What people copied of a request and its answer (curl output, JSON captures, client tracebacks) → exchanges."""

import re
from typing import Any, Final

from lensd_collectors.dialects import FailurePattern, load
from lensd_collectors.read.error_body import shorten
from lensd_collectors.read.exchange import MODEL, Exchange, HttpRows, finish, models_listed
from lensd_collectors.read.http_capture import captures, read_captures
from lensd_collectors.rows import HttpExchange, Row

STATUS: Final = re.compile(r"^(?:< )?HTTP/\d(?:\.\d)? (?P<status>\d{3})\b")
REQUEST: Final = re.compile(r"^(?:> )?(?P<method>GET|POST|PUT|DELETE|PATCH|OPTIONS|HEAD) (?P<target>(?:https?://|/|\$)\S*)")
CURL: Final = re.compile(r"^\s*(?:[$#>%] ?)?curl\s")
_TARGET: Final = re.compile(r"(?:https?://[^\s/'\"]+|\$\{?\w+\}?)(?P<path>/[^\s'\"?]*)")
_NOISE: Final = re.compile(r"^(?:[*>](?: |$)|[{}] \[\d+ bytes data\])")  # curl -v speaking of itself
_RESULT: Final = re.compile(r"-> (?P<status>\d{3}) in (?P<seconds>[\d.]+) ?s\b")
_HEADER: Final = re.compile(r"^(?:< )?(?P<name>[A-Za-z][\w-]*): (?P<value>.*)$")
_CHAINED: Final = ("direct cause of the following exception", "During handling of the above exception")
_BODY_LIMIT: Final = 64 * 1024


def read_http(text: str, *, name: str, engine: str | None = None) -> HttpRows:
    """All exchanges of a text or JSON capture; `places` of each say which line a column was read from."""
    found = list(captures(text)) if text.lstrip()[:1] in ("{", "[") else []
    if found:
        return read_captures(found, name=name, engine=engine)
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
        model = MODEL.search(line)
        if model and self._request and "model" not in self._request:
            self._request["model"] = model["model"]
            self._request_places["model"] = number

    def _new(self, number: int, **columns: Any) -> Exchange:
        row = HttpExchange(engine=self._engine, hop="client", src=f"{self._name}:{number}")
        for column, value in {**self._request, **columns}.items():
            setattr(row, column, value)
        return Exchange(row=row, places={**self._request_places, **dict.fromkeys(columns, number)}, body=[], body_lines=[])

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
        if _NOISE.match(line):
            return
        text = line if exchange.in_body else re.sub("^<(?: |$)", "", line)
        exchange.in_body = exchange.in_body or not text.strip() or text.lstrip()[:1] in ("{", "[", "d")
        if text.strip() and sum(map(len, exchange.body)) < _BODY_LIMIT:
            exchange.body_line = exchange.body_line or number
            exchange.body.append(text)
            exchange.body_lines.append(number)

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


def _first_ms(patterns: tuple[FailurePattern, ...], line: str) -> float | None:
    return next((ms for one in patterns if (match := one.regex.search(line)) and (ms := _ms(match, "limit"))), None)


def _ms(match: re.Match[str], what: str) -> float | None:
    groups = match.groupdict()
    if groups.get(f"{what}_ms"):
        return float(groups[f"{what}_ms"])
    return _seconds(groups.get(f"{what}_s"))


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) * 1000 if text else None
    except ValueError:
        return None


def _option(line: str) -> str | None:
    match = re.search(r"\s(?:-X|--request)[ =]?([A-Z]+)\b", line)
    return match[1] if match else None
