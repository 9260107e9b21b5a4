"""Packs the files of a UTC day that is over into one, while rows come and are read.

Rows that come meanwhile go to the day's next part. The packed file is made aside and gets its name when it is
whole and on the disk; from then on it stands for the files it was made of, whatever is killed when (see day_files).
"""

import os
from typing import NamedTuple

from lensd.store.catalog import store_errors
from lensd.store.day_files import DayFile, date_of
from lensd.store.disk import RealDisk
from lensd.store.folder import FolderStore
from lensd.store.packing import Step, pack, remove, size


class Packed(NamedTuple):
    """What a roll-over made of which files, in bytes."""

    day: int
    file: str
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        return f"packed {date_of(self.day)}: {self.bytes_before / 1e6:.1f} MB are {self.bytes_after / 1e6:.1f} MB in {self.file}"


def roll_over(store: FolderStore, day: int, step: Step = lambda name: None) -> Packed | None:
    """Pack a day; None where it has nothing that is not packed. One at a time.

    Raises StoreError where it did not come to an end (a full disk, a store that was closed): all is then as it was before.
    """
    files = store.seal(day)
    if all(file.packed for file in files):
        store.unseal(files)
        return None
    made = DayFile(day, max(file.number + (not file.packed) for file in files), packed=True)
    target = store.path / made.file
    aside = target.with_name(f"{target.name}.new")
    try:
        with store_errors(f"pack {date_of(day)}"):
            remove(aside)
            with store.cursor() as cursor:
                pack(cursor.execute, files, aside, store.progress_of(day), step)
            sizes = sum(size(store.path / file.file) for file in files), size(aside)
            step("made")
            os.replace(aside, target)
            RealDisk().sync_folder(store.path)
            step("named")
        store.replace(files, made)
    except BaseException:
        if not store.holds(made):
            remove(aside)
            remove(target)
            store.unseal(files)
        raise
    step("shown")
    return Packed(day, made.file, *sizes)
