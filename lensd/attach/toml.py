"""The lensd.toml that watches an engine: written where there is none, never over another."""

import os
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any

from lensd_collectors.host.look import Looked

from lensd.config import as_toml
from lensd.errors import ConfigError, UsageError


class Written(StrEnum):
    WRITTEN = "written"
    THERE = "there"  # a file says the same already
    DIFFERS = "differs"  # a file says something else: left as it is


def entry(looked: Looked, api_key_file: str = "") -> dict[str, str]:
    """The engine as `[[agent.engines]]` has it."""
    given = {
        "name": looked.engine,
        "url": looked.url,
        "kind": looked.kind if looked.kind != "vllm" else "",
        "log": looked.log.spec,
        "model_dir": looked.model_dir,
        "api_key_file": api_key_file,
    }
    return {name: value for name, value in given.items() if value}


def text(engine: dict[str, str]) -> str:
    return as_toml({"agent": {"engines": [engine]}})


def write(path: Path, engine: dict[str, str]) -> Written:
    """Make the file; one that is there stays as it is, and may say more of the engine.

    Raises ConfigError, UsageError where it can't be read or written.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        there = any(isinstance(each, dict) and engine.items() <= each.items() for each in _engines(path))
        return Written.THERE if there else Written.DIFFERS
    except OSError as error:
        raise UsageError(f"cannot write {path}: {(error.strerror or '').lower()}; name another file by --out") from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text(engine))
    return Written.WRITTEN


def _engines(path: Path) -> list[Any]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("agent", {}).get("engines", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no lensd.toml'}") from None
    return list(found) if isinstance(found, list) else []
