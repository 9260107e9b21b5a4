"""Calls, one a line: JSON records of proxies and clients, CSV files of results, lines of `key=value` → exchanges."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lensd_collectors.read import json_lines
from lensd_collectors.read.answer_body import decoded, is_answer
from lensd_collectors.read.beginnings import Beginnings
from lensd_collectors.read.call_fields import again_of, exchange_of
from lensd_collectors.read.exchange import Exchange, finish, say
from lensd_collectors.read.http_lines import pairs_of
from lensd_collectors.read.lines import Clock, Unwrapped, unwrap
from lensd_collectors.read.series import is_series, samples_of
from lensd_collectors.read.sheet import DELIMITERS, MOST_LOOKED_AT, Sheet, cells_of, delimiter_of, is_header
from lensd_collectors.read.strays import Strays
from lensd_collectors.rows import Event, HttpExchange, Row
from lensd_collectors.scrub import scrub

LONGEST: Final = 64 * 1024  # characters of a line
RULE: Final = re.compile(r"^\s*[|+]?[\s:]*-{2,}[\s:]*(?:[|+][\s:]*-{2,}[\s:]*)+[|+]?\s*$")


class CallRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def is_call(line: str) -> bool:
    """A line of JSON that tells of one call, or of an engine or a process at one instant."""
    document = decoded(line.strip().rstrip(",").lstrip("[")) if len(line) <= LONGEST else None
    if document is None or is_answer(document):
        return False
    return exchange_of(document, engine=None, src="") is not None or bool(samples_of(document, engine=None, name="", number=1))


def is_pairs(line: str) -> bool:
    pairs = pairs_of(line) if line.count("=") > 1 and len(line) <= LONGEST else {}
    return len(pairs) > 1 and exchange_of(pairs, engine=None, src="") is not None


def is_table(lines: Sequence[str]) -> bool:
    """A table whose rows are calls, or of a series, by its header and its first row."""
    rows = [line for line in lines[:8] if not line.startswith("#") and not RULE.match(line)][:2]
    if len(rows) < 2:
        return False
    delimiter = delimiter_of(rows[0])
    header, cells = cells_of(rows[0], delimiter), cells_of(rows[1], delimiter)
    if len(header) != len(cells) or not is_header(header):
        return False
    sheet = Sheet(header, delimiter, [cells])
    if delimiter != "|" and _of_row(header, cells, None, "") is not None:
        return True
    if sheet.is_long:
        return bool(samples_of(sheet.record(cells), engine=None, name="", number=1, is_row=True))
    return is_series(sheet.record(cells)) or bool(sheet.scraped(cells, 1, engine=None, name="", clock=None))


def read_calls(text: str, *, name: str, engine: str | None = None, clock: Clock | None = None) -> CallRows:
    """All calls of a text; a line that is none is read as one of another product."""
    strays = Strays(name, engine, clock=clock)
    beginnings = Beginnings(name, engine)
    rows: list[Row] = []
    tables = Tables(text)
    unread = 0
    for number, raw in enumerate(text.split("\n"), 1):
        whole = Unwrapped(raw, None) if raw.lstrip()[:1] in ("{", "[") and json_lines.read(raw.strip()) is None else unwrap(raw)
        if whole.text[:1] not in ("{", "[") and raw.lstrip()[:1] == "{" and is_call(raw):  # one that a logger's record would hide
            whole = Unwrapped(raw, None)
        line = whole.text.strip()
        line = line.rstrip(",") if line[:1] in ("{", "[") else line
        if not line.strip(","):
            continue
        src = f"{name}:{number}"
        found: HttpExchange | None = None
        said: list[Row] = []
        if line[:1] in ("{", "["):
            document = decoded(line.lstrip("[").rstrip("]")) if len(line) <= LONGEST else None
            rows += beginnings.record(document, line, number) if document is not None else []
            said = strays.record(document, line, number) if document is not None else []
            rows += said
            found = exchange_of(document, engine=engine, src=src, clock=clock) if document is not None else None
            if found is None and document is not None and not said:
                said = strays.settings(line, number)
                rows += said
            if (
                found is None
                and document is not None
                and (samples := samples_of(document, engine=engine, name=name, number=number, clock=clock))
            ):
                rows += samples
                continue
            if found is not None and document is not None and ("usage" in document or "choices" in document):
                finish(Exchange(row=found, places={}, body=[], body_lines=[], body_line=number), line)
        elif any(sign in line for sign in DELIMITERS):
            cells = tables.cells(line, number)
            if cells is None:  # a header, or a rule below it
                continue
            found = _of_row(tables.header, cells, engine, src, clock)
            rows += beginnings.record(dict(zip(tables.header, cells, strict=True)), line, number) if found is not None else []
            if found is None and tables.sheet is not None and len(cells) == len(tables.header):
                figures = tables.sheet.record(cells)
                is_row = tables.sheet.is_long or is_series(figures)
                samples = tables.sheet.scraped(cells, number, engine=engine, name=name, clock=clock)
                samples += samples_of(figures, engine=engine, name=name, number=number, clock=clock, is_row=is_row)
                if samples:
                    rows += samples
                    continue
        elif raw.lstrip()[:1] == "{" and (record := decoded(raw.strip())) is not None:  # a logger's record that is no call
            said = strays.record(record, raw, number) or strays.settings(raw.strip(), number)
            rows += said
        if found is not None:
            say(found)
            found.seen_at = found.seen_at or whole.at
            rows.append(found)
            rows += _again(found, line if line[:1] == "{" else raw.strip(), number)
            continue
        is_record = raw.lstrip()[:1] == "{" and len(raw) <= LONGEST
        other = [] if said else strays.read((_fault(decoded(raw.strip()) or {}) if is_record else None) or raw, number, whole.at)
        rows += other or ()
        unread += other is None and not line.startswith("#")
    return CallRows(rows=rows, unread_lines=unread)


def _again(row: HttpExchange, line: str, number: int) -> list[Row]:
    """That a caller tried once more what had failed, where its record counts its tries."""
    document = decoded(line) if row.hop == "client" and (row.status or 500) >= 400 and line[:1] == "{" else None
    tries = again_of(document) if document is not None else None
    if tries is None:
        return []
    fields = f'{{"number":{tries}}}'
    event = Event(seen_at=row.seen_at, seq=number, engine=row.engine, name="client.retry", severity="info", fields=fields, src=row.src)
    event.line = scrub(line)[:500]
    return [event]


def _fault(document: dict[str, Any]) -> str | None:
    """The error that a record holds, as its language would print it."""
    error: dict[str, Any] = next((document[key] for key in ("err", "error", "exception") if isinstance(document.get(key), dict)), {})
    kind, message = error.get("type") or error.get("name"), error.get("message")
    return f"{kind or 'Error'}: {message}" if isinstance(message, str) else None


class Tables:
    """The tables of a text, one after another: the cells of a line, by the header above it."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n", MOST_LOOKED_AT)[:MOST_LOOKED_AT]
        self._delimiter = ","
        self.header: list[str] = []
        self.sheet: Sheet | None = None

    def cells(self, line: str, number: int) -> list[str] | None:
        """None for a header, which holds for what follows, and for a rule."""
        if RULE.match(line):
            return None
        cells = cells_of(line[:LONGEST], self._delimiter)
        if self.sheet is not None and len(cells) == len(self.header) and not is_header(cells):
            return cells
        delimiter = delimiter_of(line)
        names = cells_of(line[:LONGEST], delimiter)
        if line.startswith("#") or not is_header(names):
            return cells
        self._delimiter, self.header = delimiter, names
        self.sheet = Sheet(names, delimiter, (cells_of(below[:LONGEST], delimiter) for below in self._lines[number:]))
        return None


def _of_row(header: Sequence[str], cells: Sequence[str], engine: str | None, src: str, clock: Clock | None = None) -> HttpExchange | None:
    if len(header) != len(cells) or not header:
        return None
    return exchange_of(dict(zip(header, cells, strict=True)), engine=engine, src=src, clock=clock)
