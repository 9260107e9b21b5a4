"""Makes a store's files as small as they can be made now."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from lensd.errors import NoStoreError
from lensd.store import marker, swap
from lensd.store.day_files import DAY_US, date_of
from lensd.store.folder import FolderStore
from lensd.store.rollover import Packed, roll_over


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the store's database files, and the UTC days that were packed."""

    schema_version: int = 1  # of this document
    store: str
    packed: tuple[str, ...]
    bytes_before: int
    bytes_after: int


def compact(folder: Path, clock: Callable[[], float] = time.time, tell: Callable[[str], None] = lambda _: None) -> Compacted:
    """Pack every day before today's, also rows that came late, and write what the logs hold into the files.

    Raises NoStoreError, StoreBusyError while a daemon has the store, StoreFailedError.
    """
    folder = folder.resolve()
    if marker.read_version(folder) is None:
        raise NoStoreError(f"no store at {folder}: start the daemon there once or name another folder")
    before = _bytes(folder)
    store = FolderStore(folder, clock=clock)
    try:
        packed = _pack(store, int(clock() * 1e6) // DAY_US, tell)
        store.checkpoint()
    finally:
        store.close()
    days = tuple(str(date_of(each.day)) for each in packed)
    return Compacted(store=str(folder), packed=days, bytes_before=before, bytes_after=_bytes(folder))


def _pack(store: FolderStore, today: int, tell: Callable[[str], None]) -> list[Packed]:
    done = []
    for day, state in store.days().items():
        if day < today and state.loose_rows:
            tell(f"pack {date_of(day)}")
            if (packed := roll_over(store, day)) is not None:
                done.append(packed)
    store.release()
    return done


def _bytes(folder: Path) -> int:
    return swap.size_of([path for path in swap.content(folder) if path.name not in (swap.JOURNAL, marker.NAME)])
