"""Settings as programs print them (Python dict, `a=1, b='x'`, JSON) → name and value as text; never a key."""

import ast
import re
from collections.abc import Mapping
from typing import Final

_SECRET: Final = re.compile(r"(?:^|_)(?:api_keys?|token|secret|password|keyfile|authorization)$", re.IGNORECASE)
_ASSIGNMENT: Final = re.compile(r"(?<![\w.])(?P<name>[a-z_]\w*)=(?P<value>'[^']*'|\"[^\"]*\"|[\w.:/+-]+)")
_NUMBER: Final = re.compile(r"(?<![\w.])(?P<name>[a-z_]\w*)=(?P<value>-?\d+(?:\.\d+)?)(?![\w.])")
_LONGEST: Final = 200
# One thing has one name, whichever line it was printed on.
_ALIASES: Final = {"max_seq_len": "max_model_len", "model_tag": "model", "kv_cache_dtype": "cache_dtype", "torch_dtype": "dtype"}


def name_of(raw: str) -> str:
    """The canonical name of a setting: snake case, aliases resolved."""
    name = raw.strip().lstrip("-").replace("-", "_")
    return _ALIASES.get(name, name)


def is_secret(name: str) -> bool:
    return _SECRET.search(name.replace("-", "_")) is not None


def text_of(value: object) -> str | None:
    """A scalar, or a list of scalars, as text; None for what is no setting (nested, empty or too long)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        text = str(value)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, int | float | str) for item in value):
        text = " ".join(str(item) for item in value)
    else:
        return None
    return text if 0 < len(text) <= _LONGEST else None


def from_mapping(settings: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw, value in settings.items():
        text = None if is_secret(str(raw)) else text_of(value)
        if text is not None:
            found[name_of(str(raw))] = text
    return found


def from_dict_text(text: str) -> dict[str, str]:
    """From a Python dict as it prints itself; what does not parse gives the assignments and pairs that can be read."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pairs = re.findall(r"'(\w+)': ('[^']*'|[\w.+-]+)", text)
        value = {name: raw.strip("'") for name, raw in pairs}
    return from_mapping(value) if isinstance(value, dict) else {}


def from_assignments(text: str) -> dict[str, str]:
    """From `model='x', max_seq_len=8192, quantization=None`; None is no setting. The first of a name counts: later ones are nested."""
    found: dict[str, str] = {}
    for match in _ASSIGNMENT.finditer(text):
        value = match["value"].strip("'\"")
        name = name_of(match["name"])
        if name in found or value in ("", "None") or is_secret(name) or len(value) > _LONGEST:
            continue
        found[name] = value.lower() if value in ("True", "False") else value
    return found


def numbers(text: str) -> dict[str, int | float]:
    """The `name=number` pairs of a text, such as sampling parameters."""
    return {match["name"]: float(match["value"]) if "." in match["value"] else int(match["value"]) for match in _NUMBER.finditer(text)}


READERS: Final = {"dict": from_dict_text, "assignments": from_assignments}
