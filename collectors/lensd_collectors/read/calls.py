"""Calls, one a line: JSON records of proxies and clients, CSV files of results, lines of `key=value` → exchanges."""

import csv
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lensd_collectors.read import json_lines
from lensd_collectors.read.answer_body import decoded, is_answer
from lensd_collectors.read.call_fields import again_of, exchange_of
from lensd_collectors.read.exchange import Exchange, finish, say
from lensd_collectors.read.http_lines import pairs_of
from lensd_collectors.read.lines import Clock, Unwrapped, unwrap
from lensd_collectors.read.series import is_series, samples_of
from lensd_collectors.read.strays import Strays
from lensd_collectors.rows import Event, HttpExchange, Row
from lensd_collectors.scrub import scrub

LONGEST: Final = 64 * 1024  # characters of a line
_FEWEST: Final = 2  # columns of a header that mean something


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
    """A CSV file whose rows are calls, by its header and its first row."""
    rows = [line for line in lines[:8] if not line.startswith("#")][:2]
    if len(rows) < 2:
        return False
    header, cells = _cells(rows[0]), _cells(rows[1])
    return _of_row(header, cells, None, "") is not None or (_fits(header, cells) and is_series(header))


def read_calls(text: str, *, name: str, engine: str | None = None, clock: Clock | None = None) -> CallRows:
    """All calls of a text; a line that is none is read as one of another product."""
    strays = Strays(name, engine, clock=clock)
    rows: list[Row] = []
    header: list[str] = []
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
        elif "," in line or ";" in line or "\t" in line:
            cells = _cells(line)
            found = _of_row(header, cells, engine, src, clock)
            if found is None and not line.startswith("#") and _means(cells):
                header = cells
                continue
            if found is None and _fits(header, cells):
                samples = samples_of(dict(zip(header, cells, strict=True)), engine=engine, name=name, number=number, clock=clock)
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


def _cells(line: str) -> list[str]:
    delimiter = next((one for one in (",", ";", "\t") if one in line), ",")
    try:
        return [cell.strip() for cell in next(csv.reader([line[:LONGEST]], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _of_row(header: Sequence[str], cells: Sequence[str], engine: str | None, src: str, clock: Clock | None = None) -> HttpExchange | None:
    if not _fits(header, cells):
        return None
    return exchange_of(dict(zip(header, cells, strict=True)), engine=engine, src=src, clock=clock)


def _fits(header: Sequence[str], cells: Sequence[str]) -> bool:
    return len(header) == len(cells) and _means(header)


def _means(header: Sequence[str]) -> bool:
    return len(header) >= _FEWEST and all(cell and not cell[:1].isdigit() and len(cell) <= 60 for cell in header)
