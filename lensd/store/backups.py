"""What a store was before a migration or before a backup was put back: lists them, and puts one back."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from lensd.errors import NoStoreError, StoreFailedError, StoreVersionError
from lensd.store import marker, swap
from lensd.store.catalog import store_errors
from lensd.store.schema import SCHEMA_VERSION

_NAME: Final = re.compile(r"backup-v\d+-(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z(-\d+)?")


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup in a store's folder. `made_at` as in RFC 3339, UTC."""

    name: str
    schema_version: int | None  # None: its store.json is missing or damaged, so it cannot be put back
    made_at: str
    bytes: int


def backups(folder: Path) -> list[Backup]:
    """The backups of the store in this folder, newest first. Raises NoStoreError where there is no such folder."""
    if not folder.is_dir():
        raise NoStoreError(f"no store at {folder}: start the daemon there once or name another folder")
    found = []
    for path in folder.glob("backup-*"):
        if named := _NAME.fullmatch(path.name):
            year, month, day, hour, minute, second, _ = named.groups()
            at = f"{year}-{month}-{day}T{hour}:{minute}:{second}Z"
            found.append(Backup(name=path.name, schema_version=_version(path), made_at=at, bytes=swap.size_of(swap.content(path))))
    return sorted(found, key=lambda backup: (backup.made_at, backup.name), reverse=True)


def restore(folder: Path, name: str, clock: Callable[[], float] = time.time, *, free: swap.Free = swap.free_bytes) -> str:
    """Put the backup of this name back; the name of the backup that the present content becomes.

    The backup itself stays. Raises NoStoreError, StoreVersionError, StoreBusyError, StoreFailedError; the store is then as it was.
    """
    doing = f"put back {name} in store {folder}"
    swap.finish(folder)
    version = marker.read_version(folder)
    if version is None:
        raise NoStoreError(f"{doing}: there is no store in this folder")
    known = {backup.name: backup for backup in backups(folder)}
    if name not in known:
        raise StoreFailedError(f"{doing}: no backup of this name; `lensd store restore` lists them")
    kept = known[name].schema_version
    if kept is None or kept > SCHEMA_VERSION:
        why = "its store.json is missing or damaged" if kept is None else f"it has schema version {kept}, this lensd knows {SCHEMA_VERSION}"
        raise StoreVersionError(f"{doing}: {why}")
    with store_errors(doing), swap.alone(folder, doing):
        parts = swap.content(folder / name)
        made = swap.begin(folder, swap.size_of(parts), doing, free)
        for path in parts:
            swap.copy_in(path, made / path.name)
        return swap.commit(folder, version, clock)


def _version(folder: Path) -> int | None:
    try:
        return marker.read_version(folder)
    except StoreVersionError:
        return None
