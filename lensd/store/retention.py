"""Which days are deleted, and how: what incidents stand on is kept first, then the day is no longer shown, then its files go."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from lensd.store import kept
from lensd.store.catalog import store_errors
from lensd.store.config import StoreConfig
from lensd.store.day_files import DAY_US, date_of
from lensd.store.folder import FolderStore
from lensd.store.packing import Step, size

QUIET_S: Final = 7200.0
"""A day that rows still come to is not deleted for its age: a sender whose clock is wrong is looked into while it sends."""


class Due(NamedTuple):
    """A day that has to go, and the setting that says so."""

    day: int
    rule: str


class Gone(NamedTuple):
    """What was deleted, in bytes."""

    day: int
    bytes: int
    rule: str

    def __str__(self) -> str:
        return f"deleted {date_of(self.day)}: {self.bytes / 1e6:.1f} MB, by {self.rule}"


def due(config: StoreConfig, sizes: Mapping[int, int], other_bytes: int, now: float, quiet_s: Mapping[int, float]) -> Due | None:
    """The first day to delete. `sizes`: bytes by day; `quiet_s`: since when no rows have come to a day, in seconds.

    The oldest past day; with none left, and too many bytes, the farthest that a sender's wrong clock has put into the future.
    """
    today = int(now * 1e6) // DAY_US
    past = sorted(day for day in sizes if day < today)
    for day in past:
        if config.keep_days and day < today - config.keep_days and quiet_s.get(day, QUIET_S) >= QUIET_S:
            return Due(day, f"store.keep_days = {config.keep_days}")
    others = [*past, *sorted((day for day in sizes if day > today), reverse=True)]
    if others and config.keep_bytes and sum(sizes.values()) + other_bytes > config.keep_bytes:
        return Due(others[0], f"store.keep_bytes = {config.keep_bytes}")
    return None


def delete(store: FolderStore, what: Due, config: StoreConfig, now: float, step: Step = lambda name: None) -> Gone | None:
    """Delete a day but for what is kept of it; None where its rows are not all behind the journal's position yet. One at a time.

    Its files are removed by the store's next `release`, or by whoever opens the store next. Raises StoreError.
    """
    if store.progress_of(what.day) > store.position():
        return None  # the journal still has to tell of it: its rows would come again
    files = store.seal(what.day, hide=True)
    try:
        freed = sum(size(store.path / file.file) for file in files)
        with store_errors(f"delete {date_of(what.day)}"), store.cursor() as cursor:
            deletion = kept.Deletion(what.day, files, what.rule, int(now * 1e6))
            kept.keep(cursor.execute, deletion, config.keep_incidents_days)
        step("kept")
    except BaseException:
        store.unseal(files)
        raise
    store.replace(files, None)
    step("hidden")
    return Gone(what.day, freed, what.rule)
