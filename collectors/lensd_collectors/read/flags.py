"""How a server was started (command line, environment) and what its model's config.json says → config facts."""

import json
import re
import shlex
from typing import Final

import msgspec

from lensd_collectors.read import settings
from lensd_collectors.rows import ConfigFact, Row
from lensd_collectors.scrub import is_placeholder, scrub

_ENVIRONMENT: Final = re.compile(
    r"^\s*(?:export\s+|-e\s+|ENV\s+)?(?P<name>(?:VLLM|CUDA|NCCL|HF|OTEL|PYTORCH|LENSD)_\w+)[=:]\s*(?P<value>.+?)\s*$"
)
_FLAG: Final = re.compile(r"^--?[A-Za-z][\w.-]*(?:=.*)?$", re.DOTALL)
_PROGRAM: Final = re.compile(r"\bvllm\s+serve\b|\bapi_server\b|\bsglang\b|^\s*--\w")
_SHORT: Final = {"-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "-q": "quantization"}
LONGEST_COMMAND: Final = 32_768  # characters; what is longer was typed by nobody, and splitting it as a shell does would take minutes
MODEL_KEYS: Final = (
    "max_position_embeddings", "model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim",
    "sliding_window", "torch_dtype", "dtype", "vocab_size", "kv_lora_rank", "qk_rope_head_dim", "num_experts", "num_local_experts",
    "_name_or_path",
)  # fmt: skip


class FlagRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def read_flags(text: str, *, name: str, engine: str | None = None) -> FlagRows:
    """Facts of command lines and environment lines; a key is never kept, but that it is an untouched example is."""
    rows: list[Row] = []
    unread = 0
    for number, line in _joined(text):
        variable = _ENVIRONMENT.match(line)
        if variable:
            found = _variable(variable["name"], variable["value"].strip("'\""))
        elif len(line) <= LONGEST_COMMAND and ("--" in line or _PROGRAM.search(line)):
            found = _command(line)
        else:
            found = {}
        if not found and line.strip() and not line.lstrip().startswith(("#", "$")):
            unread += 1
        rows += [ConfigFact(subject=engine, name=key, value=value, src=f"{name}:{number}") for key, value in found.items()]
    return FlagRows(rows=rows, unread_lines=unread)


def read_model_config(text: str, *, name: str, engine: str | None = None) -> FlagRows:
    """Facts of a model's config.json, its text model's where it has several."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return FlagRows(rows=[], unread_lines=text.count("\n") + 1)
    if not isinstance(document, dict):
        return FlagRows(rows=[], unread_lines=text.count("\n") + 1)
    inner: dict[str, object] = next((document[key] for key in ("text_config", "llm_config") if isinstance(document.get(key), dict)), {})
    rows: list[Row] = []
    for key in MODEL_KEYS:
        value = settings.text_of(inner.get(key, document.get(key)))
        if value is not None:
            line = text.count("\n", 0, max(0, text.find(f'"{key}"'))) + 1
            fact = "name_or_path" if key == "_name_or_path" else settings.name_of(key)
            rows.append(ConfigFact(subject=engine, name=fact, value=value, src=f"{name}:{line}"))
    return FlagRows(rows=rows, unread_lines=0)


def _joined(text: str) -> list[tuple[int, str]]:
    """Lines with their number, those ending in a backslash joined to the next, at the first one's number."""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if lines and lines[-1][1].endswith("\\"):
            lines[-1] = (lines[-1][0], lines[-1][1][:-1] + " " + line.strip())
        else:
            lines.append((number, line))
    return lines


def _variable(name: str, value: str) -> dict[str, str]:
    key = name.lower()
    if not settings.is_secret(key):
        return {key: scrub(value)[:200]}
    return {key.removeprefix("vllm_"): value if is_placeholder(value) else "***"}


def _command(line: str) -> dict[str, str]:
    words = _words(line)
    found: dict[str, str] = {}
    model = _served(words)
    if model:
        found["model"] = model
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _FLAG.match(word) or (not word.startswith("--") and word not in _SHORT):
            continue
        flag, _, value = word.partition("=")
        values = [value] if value else []
        while not value and at < len(words) and not _FLAG.match(words[at]):
            values.append(words[at])
            at += 1
        key = _SHORT.get(flag) or settings.name_of(flag)
        off = key.startswith("no_") and not values
        text = " ".join(values) or ("false" if off else "true")
        if settings.is_secret(key):
            text = text if is_placeholder(text) else "***"
        found[key.removeprefix("no_") if off else key] = text[:200]
    return found


def _served(words: list[str]) -> str | None:
    """The model of `vllm serve MODEL`."""
    for at, word in enumerate(words[:-1]):
        if word == "serve" and not words[at + 1].startswith("-"):
            return words[at + 1]
    return None


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote without its twin
        return line.split("#", 1)[0].split()
