"""Which rows of the requests may have a name: a Bloom filter over each run of rows, in memory, made from the files while they are served.

A filter says of a name that no row of its run has it, or that one may. A run is known by its row ids, which stay as they are, since rows
are only ever appended to a day's file. Rows without a filter are all looked through: those that came last, and all of a store that
nobody keeps house of.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from lensd.store.catalog import FILTERS, PLACES
from lensd.store.interface import Cursor

ROWS: Final = 122_880
"""Of a run: as many as DuckDB keeps the least and the greatest values of."""
MOST_BYTES: Final = 256 << 20
"""Of all filters together; the oldest files are left without."""
LENGTHS: Final = (16, 8)
"""Beginnings of a name that are known too, in characters."""

_BITS_A_REQUEST: Final = 64  # for five to eight names and beginnings of it
_LEAST_BITS, _MOST_BITS = 1 << 10, 1 << 24
_SHIFTS: Final = (0, 13, 26, 39)  # of a name's hash, each giving the place of a bit
_PREFIXED: Final = ("request_id", "trace_id", "engine_request_id")
_KNOWN: Final = (
    *(f"hash({name})" for name in (*_PREFIXED, "span_id")),
    *(f"hash(left({name}, {length}))" for name in _PREFIXED for length in LENGTHS),
)
_MADE: Final = f"""
insert into {FILTERS}
with named as (select started_at, unnest([{", ".join(_KNOWN)}]) as name from {{rows}}),
shifts as (select unnest({list(_SHIFTS)}) as shift),
placed as (select ((name >> shift) & {{last}})::int as bit from (select distinct name from named), shifts)
select $place, $file, $low, $high, (select min(started_at) from named), (select max(started_at) from named), bitstring_agg(bit, 0, {{last}})
from placed
"""
_ATTACHED: Final = f"select place, database_oid as file from {PLACES} join duckdb_databases() on database_name = split_part(place, '.', 1)"
_ALL_SET: Final = " and ".join(f"get_bit(bits, ((name >> {shift}) & (bit_length(bits) - 1))::int) = 1" for shift in _SHIFTS)
_MAY_HAVE: Final = f"""
with attached as ({_ATTACHED}), asked as (select unnest($questions) as question, hash(unnest($names)) as name)
select distinct question, place, low, high, epoch_us(early), epoch_us(late) from {FILTERS} semi join attached using (file), asked
where {_ALL_SET}
union all
select null, place, coalesce(max(high), 0), null, null, null from attached left join {FILTERS} using (place, file) group by place
"""


class Rows(NamedTuple):
    """Rows of one place with ids from `low` on; where that is known below `high`, and begun in `early..late` (microseconds)."""

    place: str
    low: int
    high: int | None = None
    early: int | None = None
    late: int | None = None

    def __str__(self) -> str:
        """As SQL: the place, and what is asked of its rows. DuckDB passes over rows by their time, but not by their ids."""
        ids = f"{self.place} where rowid >= {self.low}" + ("" if self.high is None else f" and rowid < {self.high}")
        return ids if self.early is None else f"{ids} and started_at between make_timestamp({self.early}) and make_timestamp({self.late})"


def rows_with(cursor: Cursor, asked: Sequence[Sequence[str] | None]) -> list[list[Rows]]:
    """For each question the rows of requests that may have one of its names, as `beginning` gives them where they are not whole; None:
    any name."""
    numbered = [(number, name) for number, names in enumerate(asked) for name in names or ()]
    given = {"questions": [number for number, _ in numbered], "names": [name for _, name in numbered]}
    told = cursor.execute(_MAY_HAVE, given).fetchall()
    places = [Rows(*rest[:2]) for question, *rest in told if question is None]
    counts = " union all ".join(f"select {number}, count(*) from {rows.place}" for number, rows in enumerate(places))
    last = [places[number] for number, count in cursor.execute(counts).fetchall() if count > places[number].low]
    everything = [Rows(rows.place, 0) for rows in places]
    return [
        everything if names is None else [*last, *(Rows(*rest) for question, *rest in told if question == number)]
        for number, names in enumerate(asked)
    ]


def beginning(prefix: str) -> list[str] | None:
    """What to ask the filters of names that begin so; None: they do not know beginnings as short as that."""
    return next(([prefix[:length]] for length in LENGTHS if len(prefix) >= length), None)


def cover(cursor: Cursor, go_on: Callable[[], bool] = lambda: True, most_bytes: int = MOST_BYTES) -> None:
    """Make the filters of the days' files as they are now, the newest first, as long as `go_on` says so; those of other files go."""
    covered: list[int] = []
    for place, file in cursor.execute(f"from ({_ATTACHED}) where starts_with(place, 'day_') order by place desc").fetchall():
        covered.append(file)
        for rows in _missing(cursor, place, file, is_newest=len(covered) == 1):
            if not go_on():
                return
            if _bytes(cursor, covered) >= most_bytes:
                break
            _make(cursor, rows, file)
    others = f"select count(*) from {FILTERS} where not list_contains($files::bigint[], file)"
    if cursor.execute(others, {"files": covered}).fetchall() != [(0,)]:
        # Made anew, since a DELETE gives no memory back.
        cursor.execute(f"create or replace table {FILTERS} as from {FILTERS} where list_contains({covered}::bigint[], file)")


def _missing(cursor: Cursor, place: str, file: int, *, is_newest: bool) -> Iterator[Rows]:
    """Runs of a file that have no filter; of the newest file, to which rows come, those that are whole."""
    sql = f"select (select count(*) from {place}), coalesce(max(high), 0) from {FILTERS} where file = $file"
    [(rows, low)] = cursor.execute(sql, {"file": file}).fetchall()
    while rows - low >= (ROWS if is_newest else 1):
        high = min(rows, low + ROWS)
        yield Rows(place, low, high)
        low = high


def _make(cursor: Cursor, rows: Rows, file: int) -> None:
    [(requests,)] = cursor.execute(f"select approx_count_distinct(request_key) from {rows}").fetchall()
    bits = min(max(_LEAST_BITS, 1 << (_BITS_A_REQUEST * requests - 1).bit_length()), _MOST_BITS)
    given: dict[str, Any] = {"place": rows.place, "file": file, "low": rows.low, "high": rows.high}
    cursor.execute(_MADE.format(rows=rows, last=bits - 1), given)


def _bytes(cursor: Cursor, files: Sequence[int]) -> int:
    sizes = f"select coalesce(sum(octet_length(bits)), 0)::bigint from {FILTERS} where list_contains($files, file)"
    [(found,)] = cursor.execute(sizes, {"files": files}).fetchall()
    return int(found)
