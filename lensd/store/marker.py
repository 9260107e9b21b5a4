"""store.json: the file that makes a folder a store, and says which schema version its files have."""

import os
from pathlib import Path
from typing import Final

import msgspec

from lensd.errors import StoreVersionError
from lensd.store.disk import RealDisk

NAME: Final = "store.json"


class _Marker(msgspec.Struct):
    schema_version: int


def read_version(folder: Path) -> int | None:
    """The schema version of the store in this folder; None where there is none. Raises StoreVersionError for a damaged file."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=_Marker).schema_version
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise StoreVersionError(f"open store {folder}: {NAME} is damaged ({error})") from error


def write_version(folder: Path, version: int) -> None:
    """Written aside, synced and renamed: a crash leaves the old file or the new one."""
    aside = folder / f"{NAME}.new"
    with aside.open("wb") as file:
        file.write(msgspec.json.encode(_Marker(schema_version=version)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, folder / NAME)
    RealDisk().sync_folder(folder)
