"""Puts other content into a store's folder: whole, or not at all, wherever a kill comes.

The new content is put together in `swap.new/in`, of which nothing counts yet. Renaming `swap.new` to `swap` decides. From then on
there are only renames left: the old content into a backup folder, the new one into its place. Whoever opens the store next
does what a kill has left of them.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import duckdb

from lensd.errors import StoreBusyError, StoreFailedError
from lensd.store import marker, undo
from lensd.store.catalog import store_errors
from lensd.store.disk import RealDisk

log = logging.getLogger(__name__)

JOURNAL: Final = "journal"
_NEW: Final = "swap.new"
_READY: Final = "swap"
_IN: Final = "in"
_SPARE_BYTES: Final = 64 << 20

Free = Callable[[Path], int]
"""Bytes that are free where a folder lies."""


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@contextlib.contextmanager
def alone(folder: Path, doing: str) -> Iterator[None]:
    """Nobody else has the store open or moves its files, inside. Raises StoreBusyError."""
    if (folder / "main.duckdb").exists():
        _ask_for(folder / "main.duckdb", doing)  # says which process it is, also one that knows nothing of the lock
    with _locked(folder, fcntl.LOCK_EX, doing):
        yield


@contextlib.contextmanager
def held(folder: Path, version: int, doing: str) -> Iterator[None]:
    """Nobody moves the files of a store of this version, inside; whoever writes them stays inside as long. Raises StoreBusyError."""
    with _locked(folder, fcntl.LOCK_SH, doing):
        if (folder / _READY).exists() or marker.read_version(folder) != version:
            raise StoreBusyError(f"{doing}: its files were moved at this moment; try again")
        yield


@contextlib.contextmanager
def _locked(folder: Path, how: int, doing: str) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusyError(f"{doing}: another lensd uses or moves this store's files; try again when it is done") from None
        yield
    finally:
        os.close(handle)


def _ask_for(file: Path, doing: str) -> None:
    """StoreBusyError where a process has the file open for writing; a damaged file belongs to nobody."""
    with contextlib.suppress(StoreFailedError), store_errors(doing):
        duckdb.connect(str(file), read_only=True).close()


def content(folder: Path) -> list[Path]:
    """What of a folder is the store itself: marker, database files with their logs, journal; no token, no backup."""
    files = [path for path in folder.iterdir() if path.name.endswith((".duckdb", ".duckdb.wal"))]
    named = [path for path in (folder / marker.NAME, folder / JOURNAL) if path.exists()]
    return sorted([*files, *named])


def size_of(paths: list[Path]) -> int:
    """Bytes of files, and of what lies in folders."""
    return sum(size_of(list(path.iterdir())) if path.is_dir() else path.stat().st_size for path in paths)


def copy_in(source: Path, target: Path) -> None:
    """A copy that survives a crash once this returns; a journal's segments never change again, so they become links."""
    if source.is_dir():
        target.mkdir(mode=0o700)
        for each in source.iterdir():
            try:
                os.link(each, target / each.name)
            except OSError:
                copy_in(each, target / each.name)
        RealDisk().sync_folder(target)
        return
    shutil.copyfile(source, target)
    target.chmod(0o600)
    same_age(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def same_age(source: Path, target: Path) -> None:
    """Give a file the instant at which another was changed last: that of store.json says since when lensd is installed."""
    times = source.stat()
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def begin(folder: Path, need: int, doing: str, free: Free = free_bytes) -> Path:
    """An empty folder for the new content. `need`: bytes that will be written; raises StoreFailedError where they do not fit."""
    there = folder / _NEW
    shutil.rmtree(there, ignore_errors=True)  # of an attempt that a kill has ended
    has = free(folder)
    if has < need + _SPARE_BYTES:
        wanted, given = (f"{size / 1e9:.2f} GB" for size in (need + _SPARE_BYTES, has))
        raise StoreFailedError(f"{doing}: this needs {wanted} of disk and {given} are free; make room or move the store, then start again")
    (there / _IN).mkdir(mode=0o700, parents=True)
    return there / _IN


def commit(folder: Path, version: int, clock: Callable[[], float] = time.time) -> str:
    """Decide for what `begin` gave and put it in place; the name of the backup that the old content of this version becomes."""
    disk, name = RealDisk(), _backup_name(folder, version, clock())
    (folder / _NEW / name).mkdir(mode=0o700)
    for made in (folder / _NEW / _IN, folder / _NEW):
        disk.sync_folder(made)
    os.replace(folder / _NEW, folder / _READY)
    disk.sync_folder(folder)
    _finish(folder)
    return name


def finish(folder: Path) -> None:
    """Do what a kill has left of a swap that was decided, and take back checkpoints that it has cut short.

    Raises StoreBusyError where another process has the store, StoreFailedError where the folder cannot be written.
    """
    doing = f"open store {folder}"
    if (folder / _READY).is_dir() or undo.files_with_record(folder):
        with alone(folder, doing):
            for file in undo.files_with_record(folder):
                _settle(file, doing)
            _finish(folder)


def _settle(file: Path, doing: str) -> None:
    try:
        if undo.settle(file):
            log.info("%s: a checkpoint that was cut short is taken back", file)
    except OSError as error:
        raise StoreFailedError(
            f"{doing}: a checkpoint of {file.name} was cut short and is not taken back: {(error.strerror or str(error)).lower()};"
            " open the store once as a user who can write it"
        ) from error


def _finish(folder: Path) -> None:
    ready, disk = folder / _READY, RealDisk()
    for old in ready.glob("backup-*"):  # there as long as the old content is not all in it
        for path in content(folder):
            os.replace(path, old / path.name)
        disk.sync_folder(old)
        os.replace(old, folder / old.name)
        disk.sync_folder(folder)
    if (ready / _IN).is_dir():
        for path in (ready / _IN).iterdir():
            os.replace(path, folder / path.name)
        disk.sync_folder(folder)
    shutil.rmtree(ready, ignore_errors=True)


def _backup_name(folder: Path, version: int, now: float) -> str:
    first = f"backup-v{version}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
    name, number = first, 1
    while (folder / name).exists():
        number += 1
        name = f"{first}-{number}"
    return name
