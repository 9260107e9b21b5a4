"""The exact text behind a value that was read from a file: what an on-call engineer can search for in what they sent."""

import re
from itertools import chain, islice
from os import SEEK_CUR
from pathlib import Path
from typing import Final

from lensd_collectors.dialects import Dialect, load
from lensd_collectors.dialects.model import FieldKind
from lensd_collectors.read.call_fields import is_key_of
from lensd_collectors.read.engine_log import LONGEST_READ
from lensd_collectors.read.exchange import MODEL
from lensd_collectors.read.gpu_table import place_of
from lensd_collectors.read.http_exchange import read_http
from lensd_collectors.read.lines import unwrap
from lensd_collectors.read.prometheus import SAMPLE, metric_line
from lensd_collectors.read.recognise import HEAD_BYTES, LARGEST_DOCUMENT, TABULAR, Kind, judge, parts_of, text_lines
from lensd_collectors.read.series import is_engine_key
from lensd_collectors.read.settings import name_of
from lensd_collectors.scrub import scrub, segments

LONGEST_QUOTE: Final = 500
SHORT_LINE: Final = 200  # an entry of a list of models, quoted as it stands
BLOCK: Final = 1 << 20
Span = tuple[int, int]

_NOT_TEXT: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]+")
_LISTED: Final = {  # a fact of `/v1/models` -> where its answer says so
    "served_model_name": re.compile(r"\\?\"id\\?\"\s*:\s*\\?\"[^\"\\]+\\?\""),
    "max_model_len": re.compile(r"max_model_len\\?\"\s*:\s*\d+"),
    "max_position_embeddings": re.compile(r"\\?\"n_ctx_train\\?\"\s*:\s*\d+"),
}
_KEY: Final = re.compile(r'"(?P<key>[\w.-]+)"\s*:\s*(?:"[^"]*"|[^\s,}\]]+)')
_SPAN_ID: Final = re.compile(r'"(?:spanId|span_id|spanID|id)"\s*:\s*"')


class CiteError(LookupError):
    """A `src` that names no line of a file below the root."""


def quote(src: str, column: str, root: Path) -> tuple[str, str]:
    """The text behind `column` of the row that came from `src` (`file:line`), and where it stands (`file:line`).

    An exact substring of the file, at most 500 characters, cut around the value, and never through a prompt or a key. Of a wide row it
    is the line of the metric behind the column. Raises CiteError where `src` is not such a place.
    """
    name, _, number = src.rpartition(":")
    if not name or not number.isdigit() or name.startswith(("log:", "scrape:", "span:")):
        raise CiteError(f"{src!r} is not file:line")
    path = _file(name, root)
    line = int(number)
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    kind, dialect = judge(head)
    part = next((part for part in parts_of(path, head) if part.first <= line <= part.last), None)
    if part is not None:
        kind, dialect = part.kind, part.dialect
    if kind in TABULAR:
        with path.open("rb") as file:
            line = place_of(islice(chain([""], text_lines(file)), line - 1, None), line, column)
    if kind not in (Kind.SPANS, Kind.PROMETHEUS, Kind.HTTP_EXCHANGE, Kind.NOTES, Kind.UNKNOWN):
        raw = _line(path, line)
        focus = _log_focus(raw, column, dialect) if kind in (Kind.ENGINE_LOG, Kind.ACCESS_LOG, Kind.BENCHMARK) else None
        focus = focus or _named(raw, column) or (_keyed(raw, column) if kind is Kind.CALLS else None)
        return cut(raw, focus), f"{name}:{line}"
    if part is not None:
        text = part.text
    else:
        with path.open("rb") as file:
            text = file.read(LARGEST_DOCUMENT).decode("utf-8", "replace")
    if kind is Kind.SPANS:
        return _span_quote(text, line, column, name)
    return _document_quote(kind, text, line, column, name)


def cut(raw: str, focus: Span | None) -> str:
    """At most 500 characters of a line, around `focus`, without what is scrubbed."""
    pieces = [piece for start, end in segments(raw) for piece in _plain_pieces(raw, start, end)]
    if not pieces:
        return ""
    held = [piece for piece in pieces if focus and piece[0] <= focus[0] and focus[1] <= piece[1]]
    start, end = held[0] if held else max(pieces, key=lambda piece: piece[1] - piece[0])
    if end - start > LONGEST_QUOTE:
        middle = (focus[0] + focus[1]) // 2 if held and focus else start
        start = max(start, min(middle - LONGEST_QUOTE // 2, end - LONGEST_QUOTE))
        end = start + LONGEST_QUOTE
    return raw[start:end].strip()


def _plain_pieces(raw: str, start: int, end: int) -> list[Span]:
    pieces, at = [], start
    for match in _NOT_TEXT.finditer(raw, start, end):
        pieces.append((at, match.start()))
        at = match.end()
    pieces.append((at, end))
    return [piece for piece in pieces if piece[0] < piece[1]]


def _file(name: str, root: Path) -> Path:
    base = root if root.is_dir() else root.parent
    path = (base / name).resolve()
    if not path.is_relative_to(base.resolve()) or not path.is_file():
        raise CiteError(f"no file {name!r} below {root}")
    return path


def _line(path: Path, number: int) -> str:
    """One line of a file of any size."""
    with path.open("rb") as file:
        before = number - 1  # line ends still to be passed
        while before and (block := file.read(BLOCK)):
            ends = block.count(b"\n")
            if ends < before:
                before -= ends
                continue
            at = -1
            for _ in range(before):
                at = block.find(b"\n", at + 1)
            file.seek(at + 1 - len(block), SEEK_CUR)
            before = 0
        raw = file.readline(LONGEST_READ)
    if not raw:
        raise CiteError(f"{path.name} has no line {number}")
    return raw.decode("utf-8", "replace")


def _log_focus(raw: str, column: str, dialect: Dialect | None) -> Span | None:
    """Where in a log line the value of a column stands."""
    text = scrub(unwrap(raw).text)
    frame = next((match for pattern in (dialect.frames if dialect else ()) if (match := pattern.match(text))), None)
    body = frame["text"] if frame else text
    offset = raw.find(body)
    for pattern in dialect.events if dialect and offset >= 0 else ():
        match = pattern.search(body)
        if match:
            group = next((f.group for f in (*pattern.fields, *pattern.facts) if f.name == column and f.kind is not FieldKind.CONST), None)
            if group is None or match.start(group) < 0:
                return _named(raw, column) or (offset + match.start(), offset + match.end())
            return offset + match.start(group), offset + match.end(group)
    return _named(raw, column)


def _named(line: str, column: str) -> Span | None:
    """Where a line writes the column's own name, as a setting or as a flag, with the value after it."""
    spelled = "[_-]".join(re.escape(part) for part in name_of(column).split("_"))
    match = re.search(rf"{spelled}\b['\"]?[=: ]*['\"]?[^\s,'\"]*", line)
    return match.span() if match else None


def _keyed(raw: str, column: str) -> Span | None:
    """Where a record writes a key that means the column."""
    for match in _KEY.finditer(raw):
        if is_key_of(match["key"], column) or is_engine_key(match["key"], column):
            return match.span()
    return None


def _document_quote(kind: Kind, text: str, line: int, column: str, name: str) -> tuple[str, str]:
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        raise CiteError(f"{name} has no line {line}")
    focus = None
    if kind is Kind.PROMETHEUS:
        line = metric_line(lines, column, line) or line
    else:
        if SAMPLE.match(lines[line - 1].strip()):
            line = metric_line(lines, column, line) or line
        else:
            line = _exchange_line(text, line, column, name)
        pattern = MODEL if column == "model" else _LISTED.get(column)
        match = pattern.search(lines[line - 1]) if pattern else None
        if match:
            whole = lines[line - 1].strip() if len(lines[line - 1]) <= SHORT_LINE else ""
            listed = whole if whole[:1] == "{" and column in _LISTED and scrub(whole) == whole else match[0][:LONGEST_QUOTE]
            return listed, f"{name}:{line}"
    raw = lines[line - 1]
    return cut(raw, focus or _named(raw, column)), f"{name}:{line}"


def _exchange_line(text: str, line: int, column: str, name: str) -> int:
    for exchange in read_http(text, name=name).exchanges:
        if exchange.row.src == f"{name}:{line}":
            return exchange.places.get(column) or line
    return line


def _span_quote(text: str, line: int, column: str, name: str) -> tuple[str, str]:
    """The attribute of one span: from its own id to the next span's, since a span's own fields follow its id in every form read."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    own = _SPAN_ID.search(text, start)
    following = _SPAN_ID.search(text, own.end()) if own else None
    end = following.start() if following else len(text)
    begin = text.rfind("\n", 0, own.start()) + 1 if own else start
    wanted = [attribute for dialect in load().values() for attribute in dialect.spans.get(column, ())]
    for attribute in (*wanted, column):
        key = re.escape(attribute)
        match = re.compile(
            rf'"{key}"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[^\s,}}\]"]+)|"key"\s*:\s*"{key}"\s*,\s*"value"\s*:\s*\{{[^{{}}]*\}}'
        ).search(text, begin, end)
        if match:
            return _whole(match[0]), f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
    raw = text[begin : text.find("\n", begin) if "\n" in text[begin:] else len(text)]
    return cut(raw, None), f"{name}:{line}"


def _whole(found: str) -> str:
    """A short match as it is, line breaks included; of a long one what may be quoted."""
    return found if len(found) <= LONGEST_QUOTE and scrub(found) == found else cut(found, None)
