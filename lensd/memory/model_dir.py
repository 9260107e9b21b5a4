"""A model as it lies on a disk: its config.json, what to call it, and its weights' files."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from lensd.errors import UsageError
from lensd.memory.weights import Weights, from_headers

MOST_BYTES: Final = 4 * 1024 * 1024
MOST_NAME: Final = 200


class ModelDir(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    config: dict[str, Any]
    weights: Weights | None = None
    """As the files' headers have them; None: there are none."""


def read(place: str, *, weights: bool = True) -> ModelDir:
    """A folder with a config.json, or that file alone; `weights`: with what the headers of its files say.

    Raises UsageError for what is neither, and for files of weights that can't be read.
    """
    given, is_folder, text = _open(place)
    try:
        config = json.loads(text) if len(text) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        config = None
    path = given / "config.json" if is_folder else given
    if not isinstance(config, dict):
        told = "a pointer to a file that was not fetched" if text.startswith(b"version ") else "no model's config.json"
        raise UsageError(f"{path} is {told}")
    said = str(config.get("_name_or_path") or "")
    name = _printable(said) or _printable(path.resolve().parent.name if path.is_file() else "") or "the model"
    return ModelDir(name=name, config=config, weights=from_headers(given) if is_folder and weights else None)


def _open(place: str) -> tuple[Path, bool, bytes]:
    """The path, whether it is a folder, and the text of the configuration."""
    path = Path(place)
    try:
        path = path.expanduser()
        is_folder = path.is_dir()
        with (path / "config.json" if is_folder else path).open("rb") as file:
            return path, is_folder, file.read(MOST_BYTES + 1)
    except (OSError, RuntimeError) as error:
        why = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower().rstrip(".")
        raise UsageError(f"{place}: {why}; give a model's config.json or its folder") from None


def _printable(name: str) -> str:
    """As it goes into one line of a terminal."""
    return "".join(char if char.isprintable() else "?" for char in name)[:MOST_NAME]
