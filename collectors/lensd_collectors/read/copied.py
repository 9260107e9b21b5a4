"""Requests and answers as people copied them: what was asked, what came back, piece by piece → one exchange after another."""

import re
from typing import Any, Final

from lensd_collectors.dialects import load
from lensd_collectors.read import http_lines as forms
from lensd_collectors.read.answer_body import asked, asked_by_name, decoded, is_request, is_whole
from lensd_collectors.read.exchange import MODEL, Exchange, finish, header, models_listed
from lensd_collectors.read.lines import Clock
from lensd_collectors.read.strays import Strays
from lensd_collectors.read.stream import CHUNK, CUT, EVENT, HEADER, SUMMARY, TIMED, ReadTable, Stream
from lensd_collectors.read.write_out import WriteOut
from lensd_collectors.rows import ConfigFact, Event, HttpExchange, Instant, Row

_UNBUFFERED: Final = re.compile(r"\bcurl\b.*\s(?:-[a-zA-Z]*N[a-zA-Z]*|--no-buffer)(?=\s)")  # so that pieces are seen as they come
_DIGITS: Final = re.compile(r"\d+")
_LONGEST_FORM: Final = 1000
MOST_SETTINGS: Final = 1000
_BODY_LIMIT: Final = 4 << 20
LONGEST: Final = 64 * 1024  # characters of a line that is anything but a body
_FORM: Final = re.compile(
    r"(?P<free>\bplain\b|\bfree[ -](?:text|form)|\b(?:without|no|drop\w*|minus) +(?:\w+ +){0,2}(?:schema|grammar|response_format|guided))"
    r"|response_format|json_schema|json_object|guided_\w+|structured_outputs?|\b(?:schema|grammar)\b",
    re.IGNORECASE,
)
_LONGEST_GAP: Final = re.compile(
    r"\b(?:max|longest|largest|biggest)\w*[ _-]*(?:gap|itl|silence|pause|stall|inter)|\b(?:gap|itl)\w*[ _-]*max", re.IGNORECASE
)
_ECHO: Final = re.compile(r"\s*\^[A-Z\\]\s*")  # as a terminal shows Ctrl-C
_SAVED: Final = re.compile(r"\bcurl\b.*\s(?:-o|--output)[ =]?['\"]?(?!/dev/null\b)(?P<file>[^\s'\"]+)")
_SHOWN: Final = re.compile(r"^\S+ (?:cat|jq \S+|less|head|tail)(?: -\S+)* ['\"]?(?P<file>[^\s'\"|;]+)")
_FAILED: Final = re.compile(r"\b(?:fail\w*|error|timed? ?out|aborted|gave up|giving up)\b", re.IGNORECASE)


class Copied:
    """Holds what is known of the request and of the answer that the present line belongs to."""

    def __init__(self, name: str, engine: str | None, clock: Clock) -> None:
        self._name, self._engine, self._clock = name, engine, clock
        client = load()["client"]
        self._failures, self._limits, self._statuses = client.failures, client.limits, client.statuses
        self._strays = Strays(name, engine, of_callers=True, clock=clock)
        self._done: list[Exchange] = []
        self._facts: list[Row] = []
        self._request: dict[str, Any] = {}
        self._request_places: dict[str, int] = {}
        self._open: Exchange | None = None
        self._failed: Exchange | None = None
        self._table: ReadTable | None = None
        self._write_out = WriteOut("")
        self._saved = ""  # where the last command put its answer
        self._echoed: list[Row] = []
        self._command = self._asked_line = ""
        self._server: str | None = None
        self._begun: dict[str, tuple[dict[str, Any], int]] = {}  # calls by their own id
        self._begun_at: dict[str, Instant] = {}
        self._merged: dict[str, int] = {}
        self._unset: set[str] = set()  # forms of lines that set nothing
        self._settings: set[tuple[str | None, str | None, str | None]] = set()
        self._chained = self._in_traceback = False
        self._limit: tuple[float, int] | None = None
        self._waited: tuple[float, int] | None = None  # a failure's duration, told before it
        self._at: Instant | None = None
        self._unread = 0

    def _echo(self, line: str, rows: list[Row]) -> None:
        """What a terminal echoes of somebody's key happened when the next line was written, not the one before."""
        if _ECHO.fullmatch(line):
            self._echoed = rows
        elif self._echoed and self._at is not None and forms.STAMP.match(line):
            for row in self._echoed:
                if isinstance(row, Event):
                    row.seen_at = self._at
            self._echoed = []

    def _shown(self, command: str) -> bool:
        """Whether a command prints the answer that the call before had put into a file: its body comes now."""
        shown = _SHOWN.match(command)
        last = self._done[-1] if self._done else None
        if shown is None or shown["file"] != self._saved or last is None or last.body or last.row.src is None:
            return False
        self._open = self._done.pop()
        self._open.in_body = True
        return True

    def _long(self, line: str, number: int) -> None:
        """A line that can be nothing but a body, or a piece of a stream."""
        text = re.sub("^<(?: |$)", "", line[:_BODY_LIMIT])
        if text.startswith("data:") and self._streamed(text, number):
            return
        if self._open is None and text[:1] in ("{", "[") and self._request:
            self._answer(None, number, "")
        if self._open is not None:
            self._open.in_body = True
            self._part(text, number)
        else:
            self._unread += 1

    def _stray(self, line: str, number: int) -> None:
        self._in_traceback = self._in_traceback or line.startswith("Traceback (")
        waited = forms.took_ms(line) if _FAILED.search(line) else None
        self._waited = (waited, number) if waited is not None else self._waited
        rows = self._strays.read(line, number, self._at, apart="=" in line or ":" in line)
        self._facts += rows or ()
        self._unread += rows is None

    def _setting(self, line: str, number: int) -> None:
        """Settings of the client stand also in lines that say something else."""
        if self._open is not None or line[:1] in ("{", "[", "<") or not ("=" in line or ":" in line):
            return
        form = _DIGITS.sub("0", line) if len(line) < _LONGEST_FORM else ""
        if form and form in self._unset:
            return
        found = self._strays.settings(line, number)
        if form and not found and len(self._unset) < MOST_SETTINGS:
            self._unset.add(form)
        for row in found:
            told = (row.subject, row.name, row.value) if isinstance(row, ConfigFact) else None
            if told is not None and told not in self._settings and len(self._settings) < MOST_SETTINGS:
                self._settings.add(told)
                self._facts.append(row)

    def _asked(self, line: str, number: int, match: re.Match[str] | None) -> None:
        target = forms.TARGET.search(line)
        path = target["path"] if target else (match["target"].partition("?")[0] if match else None)
        has_body = "curl" not in line or re.search(r"\s(?:-d|--data\S*|--json)[\s=]", line)
        named = match.groupdict().get("method") if match else None
        method = named or ("POST" if match and "stream" in line else None) if match else _option(line) or ("POST" if has_body else "GET")
        self._request = {"method": method, "path": path}
        if target and (host := target["host"] or target["bare"]):
            self._request["upstream"] = host.rpartition("@")[2]
        groups = match.groupdict() if match else {}
        if peer := groups.get("peer") or groups.get("from"):
            self._request["peer"] = peer
        if groups.get("at"):
            self._at = forms.instant_of(groups["at"], self._clock) or self._at
        self._request_places = dict.fromkeys(self._request, number)
        self._asked_line = line
        if (key := forms.key_of(line)) is not None:
            self._request["key_id"] = key
            self._request_places["key_id"] = number
        self._write_out = WriteOut(line) if match is None else self._write_out
        self._saved = saved["file"] if (saved := _SAVED.search(line)) is not None else ""
        if match is None and _UNBUFFERED.search(line):
            self._request["streaming"], self._request_places["streaming"] = True, number
        self._command = line if line.endswith("\\") and match is None else ""
        self._keep(asked(decoded(inline["body"]) or {}) if (inline := forms.INLINE.search(line)) else {}, number)
        self._keep_model(line, number)
        self._keep(_asked_in_words(line) | asked_by_name(line), number)

    def _continued(self, line: str) -> None:
        self._command = f"{self._command[:-1]} {line.strip()}"[:LONGEST]
        if not line.endswith("\\"):
            command, self._command = self._command, ""
            places = self._request_places
            self._asked(command, places.get("method", 1), None)

    def _body_asked(self, line: str, number: int) -> bool:
        match = forms.ASKED.match(line)
        if match is None and line[:1] == "{" and (document := decoded(line)) is not None and is_request(document):
            self._close(keep_request=self._request.get("method") is not None and self._open is None)
            self._keep(asked(document), number)
            self._keep_model(line, number)
            return True
        if match is None:
            if line.startswith("> ") and (key := forms.key_of(line)) is not None:
                self._keep({"key_id": key}, number)
            return False
        self._keep(asked(decoded(match["body"] or match["sent"]) or {}), number)
        self._keep_model(line, number)
        return True

    def _keep(self, columns: dict[str, Any], number: int) -> None:
        for column, value in columns.items():
            if column not in self._request:
                self._request[column] = value
                self._request_places[column] = number

    def _keep_model(self, line: str, number: int) -> None:
        model = MODEL.search(line)
        if model and self._request:
            self._keep({"model": model["model"]}, number)

    def _new(self, number: int, **columns: Any) -> Exchange:
        row = HttpExchange(engine=self._engine, hop="client", src=f"{self._name}:{number}", seen_at=self._at)
        for column, value in {**self._request, **columns}.items():
            setattr(row, column, value)
        return Exchange(row=row, places={**self._request_places, **dict.fromkeys(columns, number)}, body=[], body_lines=[])

    def _answer(self, status: int | None, number: int, rest: str) -> None:
        if status is not None and status < 200:
            return
        self._close(keep_request=True)
        self._open = self._new(number, status=status)
        if status is not None:
            for part in re.split(r"  +", rest):
                if named := forms.HEADER.match(part.strip()):
                    header(self._open, named["name"], named["value"], number)

    def _part(self, line: str, number: int) -> None:
        """A header or a part of the body of the open answer."""
        exchange = self._open
        assert exchange is not None
        named = None if exchange.in_body else forms.HEADER.match(line)
        if named:
            header(exchange, named["name"], named["value"], number)
            return
        if forms.NOISE.match(line):
            return
        if exchange.in_body and line.startswith("#"):
            self._stray(line, number)
            return
        text = re.sub("^<(?: |$)", "", line)
        exchange.in_body = exchange.in_body or not text.strip() or text.lstrip()[:1] in ("{", "[", "d")
        if text.strip() and sum(map(len, exchange.body)) < _BODY_LIMIT:
            exchange.body_line = exchange.body_line or number
            exchange.body.append(text)
            exchange.body_lines.append(number)

    def _is_next(self, line: str) -> bool:
        """Whether the open answer is whole, and the line is another answer or a remark on the next call."""
        if self._open is None or self._open.stream is not None or line[:1] not in ("{", "#"):
            return False
        whole = any(part[:1] == "{" and (one := decoded(part)) is not None and is_whole(one) for part in self._open.body[-1:])
        return whole and (line[:1] == "#" or ((other := decoded(line)) is not None and is_whole(other)))

    def _keep_form(self, line: str, number: int) -> None:
        """Whether a remark says that the call asks for an answer of a given form."""
        if line[:1] == "#" and (said := _FORM.search(line)) is not None:
            self._request["structured"], self._request_places["structured"] = said["free"] is None, number

    def _streamed(self, line: str, number: int) -> bool:
        """A piece of a stream, with its time or without."""
        event, chunk = EVENT.match(line), CHUNK.match(line) or TIMED.match(line)
        if head := HEADER.match(line):
            if self._open is not None and self._open.stream is not None:
                self._close(keep_request=True)
            self._table = ReadTable(line) if head["time"] or head["unit"] else None
            return True
        read = self._table.read(line) if self._table is not None else None
        if event is None and chunk is None and read is None:
            stream = self._open.stream if self._open is not None else None
            if self._open is not None and stream is not None and SUMMARY.match(line):  # says it in one line
                self._open.places |= dict.fromkeys(
                    ("chunks", "ttfb_ms", "duration_ms", *(("max_gap_ms",) if _LONGEST_GAP.search(line) else ())), number
                )
                return True
            if stream is not None and CUT.match(line):
                stream.cut()
                return True
            return False
        timed = float(chunk["at"]) * (1 if (chunk["unit"] or "s").lower() == "ms" else 1000) if chunk else read[0] if read else None
        if timed is not None and self._open is not None and self._open.stream is not None and self._open.stream.is_before(timed):
            self._close()
        if self._open is None:
            self._open = self._new(number)
        exchange = self._open
        exchange.in_body = True
        if exchange.stream is None:
            exchange.stream = Stream(is_whole="| tail" not in self._asked_line)
            exchange.places |= dict.fromkeys(("chunks", "max_gap_ms", "ttfb_ms"), number)
        if event is not None:
            exchange.stream.event(event)
            if '"error"' in line and sum(map(len, exchange.body)) < _BODY_LIMIT:
                exchange.body.append(line)
                exchange.body_lines.append(number)
            exchange.places["done_seen"] = number
            if re.search(r'_reason"\s*:\s*"', line):
                exchange.places["finish_reason"] = number
            if '_tokens"' in line or '_count"' in line:
                exchange.places |= dict.fromkeys(("completion_tokens", "prompt_tokens", "cached_tokens"), number)
            elif '"arguments"' in line or '"content"' in line:
                exchange.places |= dict.fromkeys(("content_chars", "json_broken"), number)
        elif chunk is not None and timed is not None:
            number_of = int(chunk["number"]) if chunk["number"] else None
            size = chunk["bytes"] or chunk.groupdict().get("size")
            exchange.stream.chunk(timed, int(size) if size else None, number_of)
        elif read is not None:
            exchange.stream.chunk(*read)
        if exchange.stream.is_longest:
            exchange.places["max_gap_ms"] = number
        return True

    def _written(self, line: str, written: dict[str, Any], number: int) -> None:
        """What curl wrote after the answer; before it on the same line may stand the last of its body."""
        if written.get("status") == 0:  # there was no answer
            written = {**written, "status": None, "ttfb_ms": None, **self._gave_up(written.get("duration_ms"))}
            self._open = None
        if self._open is None:
            return self._result(number, **{column: value for column, value in written.items() if value is not None})
        before = line[: line.rfind("}") + 1]
        if before:
            self._part(before, number)
        for column, value in written.items():
            if getattr(self._open.row, column) is None:
                setattr(self._open.row, column, value)
                self._open.places[column] = number
        return self._close(keep_request=True)

    def _gave_up(self, waited_ms: float | None) -> dict[str, Any]:
        """Of a call without an answer: whether it was its caller's limit that ended it."""
        limit = forms.first_ms(self._limits, self._asked_line)
        if limit is not None and waited_ms is not None and abs(waited_ms - limit) <= max(0.02 * limit, 100):
            return {"error_code": "timeout", "limit_ms": limit}
        return {"error_code": "no_answer"}

    def _took(self, line: str, number: int) -> bool:
        """How long the call before took, on a line of its own."""
        took = forms.took_ms(line) if len(line) < 200 and not forms.STAMP.match(line) else None
        if took is None or not (self._open or self._done or self._request) or len(forms.PAIR.findall(line)) > 2:
            return False
        self._close(keep_request=True)
        last = self._done[-1] if self._done else None
        asked_at = self._request_places.get("method", 0)
        if asked_at and (last is None or int((last.row.src or ":0").rpartition(":")[2]) < asked_at) and line.startswith("real"):
            self._result(number, duration_ms=took, **self._gave_up(took))  # nothing came back
            return True
        if last is None or (last.row.duration_ms is not None and (not line.startswith("real") or last.row.duration_ms > 1.05 * took)):
            return False
        last.row.duration_ms, last.places["duration_ms"] = took, number
        return True

    def _result(self, number: int, **columns: Any) -> None:
        self._close(keep_request=True)
        self._done.append(self._new(number, **columns))

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
            self._table = None
        self._open = self._failed = None
        self._chained = False


def _option(line: str) -> str | None:
    match = re.search(r"\s(?:-X|--request)[ =]?([A-Z]+)\b", line)
    return match[1] if match else None


def _asked_in_words(line: str) -> dict[str, Any]:
    """`stream=true max_tokens=600`, beside a request's line."""
    pairs = forms.pairs_of(line)
    found: dict[str, Any] = {}
    if pairs.get("max_tokens", "").isdigit():
        found["max_tokens"] = int(pairs["max_tokens"])
    if pairs.get("stream") in ("true", "false", "True", "False"):
        found["streaming"] = pairs["stream"].lower() == "true"
    return found
