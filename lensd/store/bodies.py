"""What is kept of each body that was acknowledged, so that it is known when it is sent again: a hash, and when it came in.

It lies in a table of main.duckdb that is no public one: readers see nothing of it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from lensd.store.interface import Cursor
from lensd.store.segments import Record, Signal

BODIES: Final = "bodies"
_SCHEMA: Final = pa.schema([("hash", pa.uint64()), ("received_at", pa.timestamp("us"))])
_AT_ONCE: Final = 10_000


def hash_of(kind: Signal, payload: bytes) -> int:
    """64 bits that stand for a signal and a payload as the journal keeps it."""
    made = hashlib.blake2b(bytes((kind,)), digest_size=8)
    made.update(payload)
    return int.from_bytes(made.digest(), "little")


def bodies_of(records: Iterable[Record]) -> pa.Table:
    """The rows that stand for journal records."""
    found = [(hash_of(record.kind, record.payload), record.received_at_us) for record in records]
    hashes, received = zip(*found, strict=True) if found else ((), ())
    return pa.Table.from_arrays([pa.array(hashes, pa.uint64()), pa.array(received, pa.timestamp("us"))], schema=_SCHEMA)


def create_bodies(schema: str) -> str:
    """The statement that makes the table in `schema` (a database, or database.schema) where it is not there."""
    return f"CREATE TABLE IF NOT EXISTS {schema}.{BODIES} (hash UBIGINT, received_at TIMESTAMP)"


def read_bodies(cursor: Cursor, places: Sequence[str], since_us: int, most: int) -> Iterator[tuple[int, int]]:
    """Hash and time of receipt of the latest `most` rows of the tables `places`, received at `since_us` or later; oldest first."""
    every = " UNION ALL ".join(f"SELECT hash, received_at FROM {place}" for place in places)
    cursor.execute(
        f"SELECT hash, epoch_us(received_at) FROM (SELECT * FROM ({every}) WHERE received_at >= make_timestamp(?)"
        " ORDER BY received_at DESC LIMIT ?) ORDER BY received_at",
        [since_us, most],
    )
    while rows := cursor.fetchmany(_AT_ONCE):
        yield from rows
