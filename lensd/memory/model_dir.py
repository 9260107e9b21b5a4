"""A model as it lies on a disk: its config.json, what to call it, and its weights' files."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from lensd.errors import UsageError
from lensd.memory.weights import Weights, from_headers

MOST_BYTES: Final = 4 * 1024 * 1024


class ModelDir(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    config: dict[str, Any]
    weights: Weights | None = None
    """As the files' headers have them; None: there are none."""


def read(place: str) -> ModelDir:
    """A folder with a config.json, or that file alone. Raises UsageError for what is neither."""
    given = Path(place).expanduser()
    path = given / "config.json" if given.is_dir() else given
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        config = json.loads(text) if len(text) <= MOST_BYTES else None
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or type(error).__name__).lower()}; give a model's config.json or its folder") from None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UsageError(f"{path} is no model's config.json")
    name = str(config.get("_name_or_path") or "") or path.resolve().parent.name
    return ModelDir(
        name=name if given.is_dir() or name else path.stem, config=config, weights=from_headers(given) if given.is_dir() else None
    )
