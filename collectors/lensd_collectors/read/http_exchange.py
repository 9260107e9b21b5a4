"""What people copied of requests and their answers (curl output, JSON captures, client logs and tracebacks) → exchanges."""

import re
from functools import cache
from typing import Final

from lensd_collectors.dialects import load
from lensd_collectors.read import http_lines as forms
from lensd_collectors.read.answer_body import decoded, is_whole
from lensd_collectors.read.call_fields import exchange_of, instant_of
from lensd_collectors.read.copied import LONGEST
from lensd_collectors.read.error_body import shorten
from lensd_collectors.read.exchange import Exchange, HttpRows, finish, joined, waited_for
from lensd_collectors.read.http_capture import captures, read_captures
from lensd_collectors.read.http_lines import CURL, STATUS
from lensd_collectors.read.lines import Clock, dated, unwrap
from lensd_collectors.read.pasted_samples import PastedSamples
from lensd_collectors.read.remarks import remarks, streamed_call
from lensd_collectors.read.settings import Origin
from lensd_collectors.read.slots import read_slots
from lensd_collectors.read.told_calls import ToldCalls
from lensd_collectors.rows import ConfigFact

__all__ = ["CURL", "STATUS", "read_http"]

_CHAINED: Final = ("direct cause of the following exception", "During handling of the above exception")
_ID: Final = re.compile(r'"?[\w][\w./:-]{1,199}"?')
_HEADING: Final = re.compile(r"(?:[ \t]*(?:#|//)[^\n]*\n|[ \t]*\n)+")  # what somebody wrote above the documents
_GROUP: Final = re.compile(r"\(\?P<\w+>")
_LONGEST_DATE: Final = 40
_CONSOLE: Final = re.compile(
    r"^ (?:[⨯✓○⚠] (?=\S)|(?=(?:GET|POST|PUT|DELETE) /\S* [1-5]\d\d ))"
)  # what a web framework's console sets before its lines
_LOGFMT: Final = re.compile(r"(?:time|ts|t|timestamp)=\"?(?P<at>\d{4}-\d\d-\d\d[T ][^\s\"]+)")
_BEHIND: Final = re.compile(
    r"\b(?:[Uu]pstream|[Bb]ackend) (?:\w+ ){0,2}(?:complete|completed|finished|ended|drained|done|consumed)\b"
    r"|\b(?:[Uu]pstream|[Bb]ackend) (?:response|answer|reply)\b(?=.*[tT]okens)"
)
_MEMBERS: Final = 6  # lines between the members of one printed error
_PUT_RIGHT: Final = re.compile(r"\bHTTP/\d(?:\.\d)? 2\d\d\b")  # behind a refusal, in one remark: asked again, and served
_CLOSE: Final = 60  # lines between a call's own line and the traceback that tells of it once more


def read_http(text: str, *, name: str, engine: str | None = None, clock: Clock | None = None) -> HttpRows:
    """All exchanges of a text or JSON capture; `places` of each say which line a column was read from. `clock`: of lines without a day."""
    if '"is_processing"' in text and text.lstrip()[:1] == "[":
        first = text[: len(text) - len(text.lstrip())].count("\n") + 1
        slots = read_slots(text, engine=engine, src=f"{name}:{first}", number=first, at=None)
        if slots:
            return HttpRows(exchanges=[], facts=slots, unread_lines=0)
    headed = _HEADING.match(text)
    begins = text[headed.end() if headed else 0 :].lstrip()[:1]
    found, end = captures(text) if begins in ("{", "[") else ([], 0)
    if not found:
        return _Text(name, engine, clock or Clock(None)).read(text)
    told = read_captures(found, name=name, engine=engine)
    if not text[end:].strip():
        return told
    rest = _Text(name, engine, clock or Clock(None)).read("\n" * text.count("\n", 0, end) + text[end:])
    return HttpRows(exchanges=[*told.exchanges, *rest.exchanges], facts=[*told.facts, *rest.facts], unread_lines=rest.unread_lines)


class _Text(ToldCalls):
    """Walks copied text; a request line, a curl command or a status line begins something new."""

    def __init__(self, name: str, engine: str | None, clock: Clock) -> None:
        super().__init__(name, engine, clock)
        self._samples = PastedSamples(name, engine)

    def read(self, text: str) -> HttpRows:
        hints = []
        for number, raw in enumerate(text.split("\n"), 1):
            document = decoded(raw) if raw[:1] == "{" and len(raw) <= LONGEST and self._open is None else None
            if document is not None and (told := self._strays.record(document, raw, number)):
                self._facts += told
                continue
            whole = unwrap(raw)
            self._at = whole.at or self._at
            line = forms.as_curl(_CONSOLE.sub("", whole.text.partition("\n")[0]))
            hint = forms.first_ms(self._limits, line)
            if hint:
                self._limit = (hint, number)
                hints.append(self._limit)
            if self._open is None and self._samples.take(line, number, self._at):
                continue
            self._facts += self._samples.rows() if line.strip() else ()
            known = len(self._facts)
            self._line(line, number, known=bool(hint))
            self._echo(line, self._facts[known:])
        self._close()
        self._facts += self._samples.rows()
        if len({limit for limit, _ in hints}) == 1:  # the only limit in sight, though it stands below
            for one in self._done:
                if one.row.status is None and one.row.limit_ms is None and "timeout" in (one.row.error_code or ""):
                    one.row.limit_ms, one.places["limit_ms"] = hints[0]
        return HttpRows(exchanges=joined(self._done), facts=self._facts, unread_lines=self._unread)

    def _line(self, line: str, number: int, *, known: bool) -> None:
        if len(line) > LONGEST:
            return self._long(line, number)
        if self._command:
            return self._continued(line)
        self._setting(line, number)
        if title := forms.TITLE.match(line):
            self._close()
            self._request, self._request_places = {}, {}
            self._at = forms.instant_of(title["at"], self._clock) or self._at
            if (match := forms.REQUEST.match(title["rest"])) is not None:
                return self._titled(title["rest"], number, match)
            if title["mark"] != "#":
                return None
        if match := STATUS.match(line):
            return self._answer(int(match["status"]), number, match["rest"])
        if forms.ANSWERED.match(line) and self._access(line, number):
            return None
        if (match := forms.REQUEST.match(line)) or CURL.match(line):
            self._close()
            if match and not match["status"] and self._access(line, number):  # it tells of the answer too
                self._request, self._request_places = {}, {}
                return None
            self._asked(line, number, match)
            if match and match["status"]:
                self._answer(int(match["status"]), number, "")
            return None
        if match := forms.HEADING.match(line):
            self._close()
            self._asked(line, number, match)
            return None
        if forms.PROMPT.match(line):
            self._close()
            self._request, self._request_places = {}, {}
            if not self._shown(line):
                self._facts += self._strays.read(line, number, self._at, apart=True) or ()
            return None
        if self._streamed(line, number) or self._body_asked(line, number):
            return None
        if len(line) < _LONGEST_DATE and (day := dated(line.strip())) is not None:
            self._at = day
            return None
        if begins := _LOGFMT.match(line):
            self._at = instant_of(begins["at"], None) or self._at
        stamp = forms.STAMP.match(line)
        self._at = (forms.instant_of(stamp["at"], self._clock) if stamp else None) or self._at
        text = stamp["rest"] if stamp else line
        if stamp and (match := STATUS.match(text)):
            self._answer(int(match["status"]), number, match["rest"])
            if self._open is not None and (took := forms.took_ms(match["rest"])) is not None:
                self._open.row.duration_ms, self._open.places["duration_ms"] = took, number
            return None
        if self._failed is not None and line.lstrip().startswith("code:"):
            self._failed.places["error_code"] = number
            return None
        if self._open is None and (address := forms.ADDRESS.match(line)) is not None:
            return self._addressed(address, number)
        if (not line[:1].isspace() or forms.CAUSE.match(line) or forms.RAISED.match(line)) and (
            self._access(text, number) or self._told(line, text, number)
        ):
            return None
        if line[:1].isspace() and self._open is None and len(forms.PAIR.findall(line)) > 1 and self._paired(line.strip(), number):
            return None
        if any(words in line for words in _CHAINED):
            self._chained = True
        elif match := forms.RESULT.search(line):
            self._result(number, status=int(match["status"]), duration_ms=float(match["seconds"]) * 1000)
        elif all_written := self._write_out.read(line):
            for written in all_written:
                self._written(line, written, number)
        elif self._remark(line, number) or self._took(line, number) or self._listed(line, number):
            return None
        elif self._open:
            if self._is_next(line):
                self._close(keep_request=True)
                self._keep_form(line, number)
            if self._open is None and line[:1] == "{":
                self._answer(None, number, "")
            if self._open is not None:
                self._part(line, number)
        elif line.lstrip()[:1] in ("{", "[") and (self._request or ((one := decoded(line.strip())) is not None and is_whole(one))):
            self._answer(None, number, "")
            self._part(line, number)
        elif line.strip() and not known:
            self._stray(line, number)
        return None

    def _remark(self, line: str, number: int) -> bool:
        """Figures of the answer before, or of the failure after, that its recorder worked out."""
        found = remarks(line) if len(line) < 400 else {}
        if not found:
            return False
        last = self._open or self._failed or (self._done[-1] if self._done and self._done[-1].row.status is not None else None)
        if last is None and (rows := self._strays.read(line, number, self._at, apart=True)):  # of calls that are not told one by one
            self._facts += rows
            return True
        if last is None or "before" in line:  # it comes before what it tells of
            self._keep(found, number)
            return True
        for column, value in found.items():
            if getattr(last.row, column) in (None, value) or column == "ttfb_ms":
                setattr(last.row, column, value)
                last.places[column] = number
        return True

    def _listed(self, line: str, number: int) -> bool:
        """A line of what jq made of `/v1/models`, or a heading above it that names the server."""
        heading = forms.SERVER.match(line)
        if heading:
            self._server = heading["server"]
            return False
        if line[:1] in ("{", "[") and '"is_processing"' in line:
            slots = read_slots(line, engine=self._engine, src=f"{self._name}:{number}", number=number, at=self._at)
            self._facts += slots
            return bool(slots)
        document = decoded(line) if line[:1] == "{" and len(line) < 2000 else None
        if document is not None and isinstance(document.get("count"), int) and "max_model_len" in document:  # `/tokenize`
            self._keep({"path": "/tokenize"}, number)
            self._result(number, status=200, prompt_tokens=document["count"], context_limit=document["max_model_len"])
            return True
        if document is not None and "id" not in document:
            document = None
        plain = _ID.fullmatch(line.strip()) if ".id" in self._asked_line and "/models" in self._asked_line else None
        if plain is None and (
            document is None
            or not ("root" in document or "parent" in document or "max_model_len" in document or document.get("object") == "model")
        ):
            return False
        name = plain[0].strip('"') if plain else str((document or {}).get("id"))
        subject, src = self._server or self._engine, f"{self._name}:{number}"
        self._facts.append(ConfigFact(subject=subject, name="served_model_name", value=name[:200], src=src, origin=Origin.EFFECTIVE))
        if document is not None and isinstance(document.get("max_model_len"), int):
            length = str(document["max_model_len"])
            self._facts.append(ConfigFact(subject=subject, name="max_model_len", value=length, src=src, origin=Origin.EFFECTIVE))
        if document is not None and document.get("parent"):
            self._facts.append(ConfigFact(subject=subject, name="adapter", value=name[:200], src=src, origin=Origin.EFFECTIVE))
        return True

    def _explains(self, body: str, number: int) -> bool:
        """Whether the line is the error's body of the call that was told on the line before."""
        last = self._done[-1]
        if last.row.error_message is not None or (last.row.status or 0) < 400 or number - _line_of(last) != 1:
            return False
        last.body, last.body_lines, last.body_line = [forms.as_json(body)], [number], number
        finish(last, last.body[0])
        return True

    def _titled(self, line: str, number: int, match: re.Match[str]) -> None:
        """A call that a heading tells of, with who asked, and perhaps with how it was answered."""
        self._asked(line, number, match)
        if came := forms.CAME_FROM.search(line):
            self._keep({"peer": came["peer"]}, number)
            if came["status"]:
                self._answer(int(came["status"]), number, "")

    def _addressed(self, match: re.Match[str], number: int) -> None:
        """Where the call went that a printed error tells of, before its status or after it."""
        columns = {"method": "POST", "path": match["path"], "upstream": match["upstream"]}
        last = self._failed or (self._done[-1] if self._done else None)
        if last is None or last.row.path is not None or number - _line_of(last) > _MEMBERS:
            self._close()
            self._request, self._request_places = columns, dict.fromkeys(columns, number)
            return
        for column, value in columns.items():
            if getattr(last.row, column) is None:
                setattr(last.row, column, value)
                last.places[column] = number

    def _told(self, line: str, rest: str, number: int) -> bool:
        """A line of a log or the last of a traceback that tells of one call."""
        is_told = told_by_clients().search(line) is not None
        said = next((found for one in self._statuses if (found := one.regex.search(line))), None) if is_told else None
        said = None if said is not None and _PUT_RIGHT.search(line, said.end()) else said
        if said is not None and int(said["status"]) >= 400:  # an answer, whatever its words say of a timeout
            self._status(said, line, number)
            return True
        failures = self._failures if is_told else ()
        code, failure = next(((one.code, found) for one in failures if (found := one.regex.search(line))), (None, None))
        if failure and code:
            self._failure(code, failure, line, number)
            return True
        if (data := forms.DATA.match(line)) and self._done and not self._open:
            last = self._done[-1]
            if last.row.error_message is None and (last.row.status or 0) >= 400:
                body = forms.as_json(data["body"]) if data["body"] else data["text"] or data["plain"]
                last.body, last.body_lines, last.body_line = [body], [number], number
                finish(last, last.body[0])
                return True
        if (behind := forms.BODY_BEHIND.search(line)) and self._done and not self._open and self._explains(behind["body"], number):
            return True
        if said is not None:
            self._status(said, line, number)
            return True
        if begun := forms.BEGINS.match(rest):
            kept, places = self._request, self._request_places
            self._asked(rest, number, begun)
            self._request, self._request_places = {**kept, **self._request}, {**places, **self._request_places}
            return True
        if _BEHIND.search(rest) and (rows := self._strays.read(line, number, self._at, apart=True)):  # a gateway of its own call
            self._facts += rows
            return True
        if self._failed is None and self._open is None and (streamed := streamed_call(rest)):
            self._result(number, status=200, streaming=True, **streamed)
            return True
        return self._paired(rest, number)

    def _status(self, match: re.Match[str], line: str, number: int) -> None:
        groups = match.groupdict()
        status = int(groups["status"])
        exchange = self._known_by(status, number) if self._in_traceback or not groups.get("path") else None
        if exchange is None:
            self._close(keep_request=True)
            exchange = self._new(number, status=status)
            self._done.append(exchange)
        row = exchange.row
        for column in ("method", "path", "upstream"):
            if groups.get(column) and getattr(row, column) is None:
                setattr(row, column, groups[column].partition("?")[0] or None)
                exchange.places[column] = number
        self._lasted(exchange, forms.took_ms(line), number)
        body = forms.as_json(groups.get("body") or "")
        exchange.body, exchange.body_lines, exchange.body_line = ([body], [number], number) if body else ([], [], 0)
        if body:
            finish(exchange, body)
        elif groups.get("message") and row.error_message is None:
            finish(exchange, f'{{"error": {{"message": {_quoted(groups["message"])}}}}}')
            exchange.places |= dict.fromkeys(("error_message", "body_shape"), number)
        self._in_traceback = False

    def _lasted(self, exchange: Exchange, waited: float | None, number: int) -> None:
        told, self._waited = self._waited, None
        if waited is None and told is not None and number - told[1] <= _CLOSE:
            waited, number = told
        if waited is not None and exchange.row.duration_ms is None:
            exchange.row.duration_ms, exchange.places["duration_ms"] = waited, number

    def _known_by(self, status: int, number: int) -> Exchange | None:
        """The exchange of which a line told just before, and now its traceback does."""
        last = self._done[-1] if self._done and not self._open else None
        if last is None or last.row.status != status or last.row.error_message is not None:
            return None
        return last if number - _line_of(last) <= _CLOSE else None

    def _failure(self, code: str, match: re.Match[str], line: str, number: int) -> None:
        limit, waited = forms.ms_of(match, "limit"), forms.ms_of(match, "waited") or forms.took_ms(line)
        if self._failed and self._chained:  # httpcore's, httpx's and openai's word for one failure
            limit = limit or self._failed.row.limit_ms
            waited = waited or self._failed.row.duration_ms
            self._failed = None
        if self._open is not None and self._open.stream is not None:  # a stream that broke off
            return self._broke_off(code, line, number)
        self._close(keep_request=True)
        exchange = self._new(number, error_code=code, error_message=shorten(line.strip()))
        if forms.OF_PROXY.search(line) and "timeout" in code:
            self._gave_up_on(exchange, line, number)
        if limit is not None:
            exchange.row.limit_ms, exchange.places["limit_ms"] = limit, number
        elif self._limit and "timeout" in code:
            exchange.row.limit_ms, exchange.places["limit_ms"] = self._limit
        pairs = forms.pairs_of(line)
        self._failed = exchange
        if len(pairs) > 1 and (told := exchange_of({**pairs, "finish_reason": "error"}, engine=None, src="")) is not None:
            self._further(told, number)
        key = next((pairs[one] for one in forms.CALL_IDS if pairs.get(one) in self._begun), None)
        if key is not None:  # it told of the call when it began
            self._merge(exchange.row, key)
            exchange.places |= self._merged
            began = self._begun_at.get(key)
            if waited is None and began is not None and self._at is not None and self._at >= began:
                waited = (self._at - began) / 1000
        self._lasted(exchange, waited, number)
        self._failed, self._chained = exchange, False
        return None

    def _gave_up_on(self, exchange: Exchange, line: str, number: int) -> None:
        """A hop in front says that the one behind it was too slow, and perhaps what it answered instead."""
        row = exchange.row
        row.hop = "proxy"
        row.limit_kind = waited_for(line)
        told = exchange_of(forms.pairs_of(line), engine=None, src="", hop="proxy")
        for column in ("status", "path", "method", "bytes", "peer", "request_id") if told is not None else ():
            if getattr(row, column) is None and (value := getattr(told, column)) is not None:
                setattr(row, column, value)
                exchange.places[column] = number

    def _broke_off(self, code: str, line: str, number: int) -> None:
        assert self._open is not None
        row = self._open.row
        row.error_code, row.error_message = code, shorten(line.strip())
        row.status = row.status or 200
        self._open.places |= dict.fromkeys(("error_code", "error_message"), number)
        self._close(keep_request=True)


def _line_of(exchange: Exchange) -> int:
    return int((exchange.row.src or ":0").rpartition(":")[2])


@cache
def told_by_clients() -> re.Pattern[str]:
    """Found in each line by which a client tells of a failure or a status."""
    client = load()["client"]
    return re.compile("|".join(f"(?:{_GROUP.sub('(?:', one.regex.pattern)})" for one in (*client.failures, *client.statuses)))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", " ") + '"'
