"""The store that is asked: made once under .bench, in some minutes, and taken again for a day."""

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import msgspec
import pyarrow as pa

from lensd.store.folder import FolderStore
from lensd.timeline.assemble import request_key
from query import calls, hosts

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = ROOT / ".bench" / "query"
VERSION: Final = 2  # of the rows that are made: another one makes the store anew
HOURS: Final = 48
CHUNK: Final = 20_000  # requests made in one go
SECOND: Final = 1_000_000
STALE_S: Final = 20 * 3600  # after which a daemon would take the store's newest hours for long gone


class Made(NamedTuple):
    """A store of `requests` requests that began evenly from `begin` to `end` (microseconds since the epoch)."""

    folder: Path
    requests: int
    begin: int
    end: int

    @property
    def spacing(self) -> int:
        return (self.end - self.begin) // self.requests

    def names(self, number: int) -> dict[str, str]:
        """What people call the request of that number."""
        trace = hashlib.md5(str(number).encode()).hexdigest()
        own = trace if number % 2 == 0 else f"order-{number}-{trace[:8]}"
        engine = f"chatcmpl-{own}"
        return {
            "request id": own,
            "trace id": trace,
            "engine id": engine,
            "engine's internal id": f"{engine}-{trace[-8:]}",
            "prefix": own[:18],
        }

    def at(self, number: int) -> int:
        return self.begin + number * self.spacing


def made(requests: int, now: float | None = None) -> Made:
    """The store, from the disk where it is there and fresh."""
    now = time.time() if now is None else now
    folder = PLACE / f"{requests}-v{VERSION}"
    told = folder.with_suffix(".json")
    if told.is_file():
        begin, end = msgspec.json.decode(told.read_bytes(), type=tuple[int, int])
        if now - end / SECOND < STALE_S:
            return Made(folder, requests, begin, end)
    PLACE.mkdir(parents=True, exist_ok=True)
    for old in PLACE.glob(f"{requests}-*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    end = int(now) // 60 * 60 * SECOND
    store = Made(folder, requests, end - HOURS * 3600 * SECOND, end)
    _fill(store)
    told.write_bytes(msgspec.json.encode((store.begin, store.end)))
    return store


def _fill(store: Made) -> None:
    into = FolderStore(store.folder, memory_limit="4GiB")
    maker = duckdb.connect()
    try:
        for batch in _batches(maker, store):
            into.append(batch)
    finally:
        maker.close()
        into.close()


def _batches(maker: duckdb.DuckDBPyConnection, store: Made) -> Iterator[dict[str, pa.Table]]:
    for lo in range(0, store.requests, CHUNK):
        hi = min(lo + CHUNK, store.requests)
        maker.register("keys", _keys(lo, hi))
        maker.execute(calls.CALLS, {"begin": store.begin, "spacing": store.spacing})
        yield {table: maker.sql(sql).to_arrow_table() for table, sql in calls.TABLES.items()}
        seconds = [(store.at(number) - store.begin) // SECOND for number in (lo, hi)]
        maker.execute(hosts.SECONDS, {"begin": store.begin, "lo": seconds[0], "hi": seconds[1]})
        sql = {table: text.replace("$begin", str(store.begin)) for table, text in hosts.TABLES.items()}
        yield {table: maker.sql(text).to_arrow_table() for table, text in sql.items()}


def _keys(lo: int, hi: int) -> pa.Table:
    """Trace ids, the gateway's span ids, and the keys that an assembler makes of them."""
    numbers = range(lo, hi)
    traces = [hashlib.md5(str(n).encode()).hexdigest() for n in numbers]
    spans = [hashlib.md5(f"{n}gateway".encode()).hexdigest()[:16] for n in numbers]
    keys = [request_key(trace, span) for trace, span in zip(traces, spans, strict=True)]
    return pa.table({"i": pa.array(numbers, pa.int64()), "trace_id": traces, "span_id": spans, "request_key": pa.array(keys, pa.uint64())})
