"""Requests by any of their names."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lensd.store.catalog import quoted
from lensd.store.interface import Cursor
from lensd.store.name_filters import Rows, beginning, rows_with
from lensd.store.queries import REVISIONS, last_revisions

MAX_MATCHES = 50
MOST_LOOKS = 60  # of rows of a place in one statement
REPLY_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "embd-", "pooling-", "classify-", "score-")
"""What vLLM puts before a caller's X-Request-Id to make the id of its reply. A completion's engine id ends in its prompt's index."""


def find_requests(cursor: Cursor, ident: str) -> list[dict[str, Any]]:
    """Every request of that name, newest first: its id, the engine's id for it, its trace, its span, the ids that vLLM makes of the
    name where only vLLM saw it, else whatever starts with it.

    An engine's internal suffix (`-` and 8 hex digits) and a completion's prompt index are taken off.
    """
    meanings = list(_meant(ident))
    for meant, places in zip(meanings, rows_with(cursor, [meant.names for meant in meanings]), strict=True):
        if found := _standing(cursor, places, meant.any_of):
            return found
    return []


class _Meant(NamedTuple):
    """What a name may mean: names that filters know, and conditions of which one holds. DuckDB's scans take one condition on one column
    two to four times as fast as several, and a text in the query faster than a parameter."""

    names: Sequence[str] | None
    any_of: Sequence[str]


def _meant(ident: str) -> Iterator[_Meant]:
    """The best first."""
    if "\0" in ident:
        return
    for name in dict.fromkeys((ident, external(ident))):
        named = [f"{column} = {quoted(name)}" for column in ("request_id", "trace_id", "span_id", "engine_request_id")]
        yield _Meant([name, f"{name}-0"], [*named, f"engine_request_id = {quoted(f'{name}-0')}"])
    made = engine_names(ident)
    listed = ", ".join(map(quoted, made))
    yield _Meant(made, [f"request_id in ({listed})", f"engine_request_id in ({listed})"])
    begun = [f"starts_with({column}, {quoted(ident)})" for column in ("request_id", "trace_id", "engine_request_id")]
    yield _Meant(beginning(ident), begun)


def _standing(cursor: Cursor, places: Sequence[Rows], any_of: Sequence[str]) -> list[dict[str, Any]]:
    """Requests of which the last revision is so, newest first."""
    most = REVISIONS * MAX_MATCHES
    looks = [
        f"(select request_key, epoch_us(started_at) from {rows} and {condition} order by started_at desc limit {most})"
        for rows in places
        for condition in any_of
    ]
    found: list[tuple[int, int]] = []
    for first in range(0, len(looks), MOST_LOOKS):
        found += cursor.execute(" union all ".join(looks[first : first + MOST_LOOKS])).fetchall()
    if not found:
        return []
    newest = sorted(found, key=lambda row: row[1], reverse=True)[:most]
    return last_revisions(cursor, newest, " or ".join(any_of))[:MAX_MATCHES]


def external(ident: str) -> str:
    """An engine's id without the internal suffix, where it has one."""
    head, _, tail = ident.rpartition("-")
    internal = head and len(tail) == 8 and all(ch in "0123456789abcdef" for ch in tail)
    return head if internal else ident


def engine_names(ident: str) -> list[str]:
    """What an engine may call a request whose caller, or whose reply, says `ident`."""
    names = [f"{prefix}{ident}" for prefix in REPLY_PREFIXES]
    return [*names, *(f"{name}-0" for name in (*names, ident) if name.startswith("cmpl-"))]
