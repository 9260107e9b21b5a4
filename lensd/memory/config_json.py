"""Reading a model's `config.json`: its language model's part, and numbers that are numbers."""

from collections.abc import Mapping
from typing import Any, Final

from lensd.errors import EvidenceError, UsageError

Config = Mapping[str, Any]
MOST: Final = 1 << 40
"""Larger than any number of a model's that is no mistake."""


def text_config(config: Config) -> Config:
    """The language model's part of a configuration."""
    inner = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), Mapping)), None)
    if inner is None:
        return config
    return {**{key: config[key] for key in ("architectures", "model_type") if key in config}, **inner}


def whole(config: Config, *names: str) -> int | None:
    """The first of these that is given and neither null nor 0. Raises UsageError where it is no positive whole number."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            raise UsageError(f"config.json: {name} = {str(value)[:60]!r} is not a whole number")
        if value:
            return value
    return None


def needed(config: Config, *names: str) -> int:
    """The same. Raises EvidenceError where none is given."""
    value = whole(config, *names)
    if value is None:
        raise EvidenceError(f"could not tell what a layer keeps: config.json has no {names[0]}")
    return value
