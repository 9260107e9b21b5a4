"""What a set of rules is judged on: which requests, which time, which engine."""

from datetime import datetime, timedelta
from typing import Final

from lensd_collectors.rows import TABLES

from lensd.records import Record

SUBJECTS: Final = "subjects"
PUBLIC: Final = frozenset({*TABLES, SUBJECTS})
BEFORE: Final = timedelta(minutes=10)
AFTER: Final = timedelta(seconds=60)
EPOCH: Final = datetime(1970, 1, 1)
DECIDED: Final = ("requests", "findings", "incidents", "deliveries")
TIMED: Final = ("engine_samples", "gpu_samples", "points", "events", "http_exchanges")
BY_ENGINE: Final = tuple(name for name, row in TABLES.items() if "engine" in row.__struct_fields__ and name not in DECIDED)
BY_MODEL: Final = ("engine_samples", "http_exchanges")


class Scope(Record, frozen=True, kw_only=True):
    """Requests by key, by an SQL condition over `requests`, or none (window rules only); instants in microseconds since the epoch.

    `from_us` None: each window rule looks back its own `window` from `to_us`, as at a tick. Request rules get the time of
    their subjects, 10 min before the first begins to 60 s after the last ends. `engine`, else `models`, keeps rows of others
    out; rows that do not say are kept. `undated`: rows without an instant count, one microsecond apart in the order of `seq`.
    """

    to_us: int
    from_us: int | None = None
    keys: tuple[int, ...] | None = None
    where: str | None = None
    engine: str | None = None
    models: tuple[str, ...] = ()
    gpu: str | None = None
    undated: bool = False


def instant(us: int) -> datetime:
    """A naive UTC datetime, as DuckDB's TIMESTAMP takes it."""
    return EPOCH + timedelta(microseconds=us)


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)
