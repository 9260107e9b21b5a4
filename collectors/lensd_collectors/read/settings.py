"""Settings as programs print them (Python dict, `a=1, b='x'`, JSON) → name and value as text; never a key.

Whichever line says a setting, and whoever reads it, it has one name and one spelling: settings of two starts are compared as text.
"""

import ast
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

_SECRET: Final = re.compile(r"key(?!s?_?cache|_value_heads)|token$|secret|password|credential|authorization", re.IGNORECASE)
_ASSIGNMENT: Final = re.compile(r"(?<![\w.])(?P<name>[a-z_]\w*)=(?P<value>'[^']*'|\"[^\"]*\"|[\w.:/+-]+)")
_NUMBER: Final = re.compile(r"(?<![\w.])(?P<name>[a-z_]\w*)=(?P<value>-?\d+(?:\.\d+)?)(?![\w.])")
_PAIR: Final = re.compile(r"'(\w+)': ('[^'\\]*'|-?\d+(?:\.\d+)?|True|False|None)(?=[,}])")
LONGEST: Final = 200  # characters of a value
MOST_CHARS: Final = 64 * 1024  # of a dict that is looked at
# One thing has one name, whichever line it was printed on.
_ALIASES: Final = {
    "max_seq_len": "max_model_len",
    "context_length": "max_model_len",
    "context_len": "max_model_len",
    "session_len": "max_model_len",
    "ollama_context_length": "num_ctx",
    "n_parallel": "parallel",
    "tp_size": "tensor_parallel_size",
    "num_shard": "tensor_parallel_size",
    "model_tag": "model",
    "kv_cache_dtype": "cache_dtype",
    "torch_dtype": "dtype",
    "kv_cache_size_tokens": "kv_cache_tokens",
    "kv_cache_max_concurrency": "kv_max_concurrency",
}
_NESTED: Final = {
    "kv_transfer_config": "kv_connector",
    "override_generation_config": "max_new_tokens",
}  # a setting that is too much for one value, and what of it is one
INTEGERS: Final = frozenset(
    {
        "max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override", "block_size", "tensor_parallel_size",
        "pipeline_parallel_size", "data_parallel_size", "kv_cache_memory_bytes", "max_num_partial_prefills",
    }
)  # fmt: skip
_FLOATS: Final = frozenset({"gpu_memory_utilization", "swap_space", "cpu_offload_gb"})
_SHORT_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_UNITS: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MEASURED: Final = frozenset(
    {
        "weights_bytes", "kv_cache_bytes", "kv_cache_tokens", "num_gpu_blocks", "activation_bytes", "non_torch_bytes", "graph_bytes",
        "kv_max_concurrency", "requested_bytes", "device_free_bytes", "device_total_bytes", "checkpoint_bytes", "num_cpu_blocks",
        "layers_offloaded", "layers_total",
    }
)  # fmt: skip
"""What an engine finds out at its start rather than is told."""


class Origin(StrEnum):
    """Who says a fact; only facts of one origin are compared with each other."""

    FLAG = "flag"  # as it was given: command line, environment, the arguments an engine prints
    EFFECTIVE = "effective"  # as the engine resolved it
    MODEL = "model"  # the model's config.json
    MEASURED = "measured"
    DERIVED = "derived"  # computed from the others
    DEVICE = "device"


def name_of(raw: str) -> str:
    """The canonical name of a setting: snake case, aliases resolved."""
    name = raw.strip().lstrip("-").replace("-", "_")
    return _ALIASES.get(name, name)


def origin_of(name: str, *, given: bool) -> Origin:
    """Whose word a setting of an engine's log or metrics is; `given`: it stands among the arguments."""
    if given:
        return Origin.FLAG
    return Origin.MEASURED if name in MEASURED else Origin.EFFECTIVE


def is_secret(name: str) -> bool:
    return _SECRET.search(name.replace("-", "_")) is not None


def spelled(name: str, text: str) -> str:
    """A value in its one spelling: `32k`, `32,768` and `32768`, `0.90` and `0.9`, `torch.bfloat16` and `bfloat16` are each the same.

    Suffixes are vLLM's: `k` is 1,000 and `K` is 1,024 (vllm/engine/arg_utils.py, human_readable_int, 0.9 to 0.32).
    """
    if text in ("True", "False"):
        return text.lower()
    if name in INTEGERS:
        return _whole(text)
    if name in _FLOATS:
        try:
            return f"{float(text):g}"
        except ValueError:
            return text
    return text.removeprefix("torch.") if name.endswith("dtype") else text


def _whole(text: str) -> str:
    plain = text.replace(",", "").replace("_", "")
    if re.fullmatch(r"-?\d{1,30}", plain):
        return str(int(plain))
    found = _SHORT_NUMBER.fullmatch(plain)
    return str(round(float(found[1]) * _UNITS[found[2]])) if found else text


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
    return text if 0 < len(text) <= LONGEST else None


def value_of(name: str, value: object) -> str | None:
    """The value of the setting `name` (canonical) as text, in its one spelling; None for what is no setting."""
    text = text_of(value)
    return None if text is None else spelled(name, text)


def from_mapping(settings: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw, value in settings.items():
        name = name_of(str(raw))
        text = None if is_secret(str(raw)) else value_of(name, value)
        if text is not None:
            found[name] = text
    return found


def from_dict_text(text: str) -> dict[str, str]:
    """From a Python dict as it prints itself. A value that is no literal is taken as its text; of what is no expression, plain values."""
    if len(text) > MOST_CHARS:
        return {}
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return from_mapping({name: ast.literal_eval(raw) for name, raw in _PAIR.findall(text)})
    if not isinstance(tree, ast.Dict):
        return {}
    named = _pairs(tree)
    found = {name: _literal(value) for name, value in named.items()}
    found |= {own: _literal(inner[own]) for name, own in _NESTED.items() if own in (inner := _pairs(named.get(name)))}
    return from_mapping(found)


def _pairs(node: ast.expr | None) -> dict[str, ast.expr]:
    """Of a dict or of a call's keywords, as objects print themselves; nothing of what is neither."""
    if isinstance(node, ast.Call):
        return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.unparse(node)


def from_assignments(text: str) -> dict[str, str]:
    """From `model='x', max_seq_len=8192, quantization=None`; None is no setting. The first of a name counts: later ones are nested."""
    found: dict[str, str] = {}
    for match in _ASSIGNMENT.finditer(text):
        value = match["value"].strip("'\"")
        name = name_of(match["name"])
        if name in found or value in ("", "None") or is_secret(name) or len(value) > LONGEST:
            continue
        found[name] = spelled(name, value)
    return found


def numbers(text: str) -> dict[str, int | float]:
    """The `name=number` pairs of a text, such as sampling parameters."""
    return {match["name"]: float(match["value"]) if "." in match["value"] else int(match["value"]) for match in _NUMBER.finditer(text)}


READERS: Final = {"dict": from_dict_text, "assignments": from_assignments}
