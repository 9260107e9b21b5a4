"""How a server was started (command line, environment), or what was changed in that, and what its model's config.json says → facts."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from lensd_collectors.read import settings
from lensd_collectors.read.lines import rfc3339
from lensd_collectors.read.revisions import Rank, compare, rank_of
from lensd_collectors.read.settings import Origin
from lensd_collectors.rows import ConfigFact, Instant, Row
from lensd_collectors.scrub import is_placeholder, scrub

_OBJECT: Final = re.compile(r"^\s*(\{)", re.MULTILINE)
_ENVIRONMENT: Final = re.compile(
    r"^\s*(?:export\s+|-e\s+|ENV\s+|Environment=[\"']?)?(?P<name>(?:VLLM|CUDA|NCCL|HF|OTEL|PYTORCH|LENSD|OLLAMA|SGLANG|TRTLLM|LLAMA_ARG)_\w+)[=:]\s*(?P<value>.+?)\s*$"
)
_ENV_ARRAY: Final = re.compile(r"^\s*\[\s*\"[A-Z][A-Z0-9_]*=.*\]\s*$")
_ENV_ITEM: Final = re.compile(r"\"((?:VLLM|CUDA|NCCL|HF|OTEL|PYTORCH|LENSD|OLLAMA|SGLANG|NVIDIA)_\w+)=([^\"]*)\"")
_FLAG: Final = re.compile(r"^--?[A-Za-z][\w.-]*(?:=.*)?$", re.DOTALL)
_PROGRAM: Final = re.compile(r"\bllama-server\b|\.gguf\b|\bvllm\s+serve\b|\bapi_server\b|\bsglang\b|^\s*--\w")
_SHORT: Final = {"-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "-q": "quantization"}
_LLAMACPP: Final = {
    "-c": "ctx_size", "-np": "parallel", "-ngl": "n_gpu_layers", "-b": "batch_size", "-ub": "ubatch_size", "-m": "model", "-t": "threads",
    "-fa": "flash_attn", "-ctk": "cache_type_k", "-ctv": "cache_type_v", "-ot": "override_tensor", "-n": "n_predict",
}  # fmt: skip
_ARRAY: Final = re.compile(r"\[\s*(?:[\"'][^\"']*[\"']\s*,\s*[\"']|--\w)")  # arguments as JSON, or YAML's flow, lists them
_ARRAY_MARKS: Final = re.compile(r"[\[\]]|(?<=[\"']),|,(?=\s*-)")
_LONE_FLAG: Final = re.compile(r"^(?P<indent>\s*)(?P<mark>- +)?[\"']?--?[A-Za-z][\w-]*[\"']?,?$")
_LONE_VALUE: Final = re.compile(r"^(?P<indent>\s*)(?P<mark>- +)?(?:\"[^\"]*\"|'[^']*'|[^\s\"'\-:{\[#][^\s:]*),?$")
LONGEST_COMMAND: Final = 32_768  # characters; what is longer was typed by nobody, and splitting it as a shell does would take minutes
MODEL_KEYS: Final = (
    "max_position_embeddings", "model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim",
    "sliding_window", "torch_dtype", "dtype", "vocab_size", "kv_lora_rank", "qk_rope_head_dim", "num_experts", "num_local_experts",
    "_name_or_path", "use_sliding_window", "max_window_layers", "sliding_window_pattern", "attention_chunk_size", "qk_nope_head_dim",
    "v_head_dim", "intermediate_size", "moe_intermediate_size", "n_routed_experts", "tie_word_embeddings", "num_kv_heads", "n_head_kv",
    "multi_query_group_num", "num_attention_groups", "n_layer", "n_head", "n_embd", "attn_layer_period", "attn_layer_offset",
    "full_attention_interval", "index_topk", "layer_group_size", "num_kv_shared_layers", "global_head_dim", "is_encoder_decoder",
    "num_layers", "n_shared_experts", "first_k_dense_replace", "q_lora_rank", "shared_expert_intermediate_size", "decoder_sparse_step",
)  # fmt: skip
LENGTHS: Final = ("max_seq_len", "max_sequence_length", "n_positions", "seq_length", "n_ctx")  # of models before they agreed on one name
NESTED: Final = ("compress_ratios", "block_configs", "linear_attn_config", "cross_attention_layers")  # kept is only that they are there
COUNTED: Final = ("layer_types", "hybrid_override_pattern")  # one entry a layer: kept as how many there are of each
QUANTISATION: Final = {"quant_method": "quant_method", "bits": "quant_bits", "w_bit": "quant_bits"}
_SETTING: Final = r"(?=\s*(?:- +)?[\"']?(?:--\w|vllm\b|python|export\b|[A-Z_]+[=:]|Environment=|ExecStart=))"
_ADDED: Final = re.compile(rf"^\+{_SETTING}")
_REMOVED: Final = re.compile(rf"^-{_SETTING}")
SPLIT: Final = re.compile(  # a flag that stayed, and below it the old and the new value, as manifests list them
    r"^ (?P<indent>\s*)- +[\"']?(?P<flag>--[\w-]+)[\"']?\n-(?P=indent)- +(?P<was>[^\s-]\S*)\n\+(?P=indent)- +(?P<now>[^\s-]\S*)$",
    re.MULTILINE,
)
_DATED: Final = re.compile(r"^\s*(?:#+\s*)?(?P<at>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(?P<zone>Z|[+-]\d\d:?\d\d)?\b[\s:,-]*")


_ARROW: Final = re.compile(  # a change on one line, as Nomad and Terraform plan it
    r"^\s*(?:\+/-|[~!])\s+\"?(?P<key>[\w.-]+?)(?:\[\d+\])?\"?\s*[:=]\s*\"?(?P<was>[^\"\n]*?)\"?\s*(?:=>|->)\s*\"?(?P<now>[^\"\n]*?)\"?\s*(?:#.*)?$"
)
_LISTED_FLAG: Final = re.compile(r"(?:^|[\s\"':])(?P<flag>--[A-Za-z][\w-]*)[\"']?,?\s*$")
_OF_ARGUMENTS: Final = frozenset({"args", "command", "arguments", "cmd"})


class FlagRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def read_flags(text: str, *, name: str, engine: str | None = None) -> FlagRows:
    """Facts of command lines and environment lines; a key is never kept, but that it is an untouched example is.

    A date before a command, on its own line or a comment's, is the instant of the facts below it. Of a unified diff the new
    value is the fact, and the old one what it was; a setting that is only taken away is a fact without a value. So it is with
    commands below lines that say which is the older (`# rev 41`, `# before`).
    """
    lines = _joined(SPLIT.sub(_both_sides, text))
    if any(_ADDED.match(line) for _, line in lines):
        return _diff(lines, name=name, engine=engine)
    rows: list[Row] = []
    unread = 0
    at: Instant | None = None
    flag: str | None = None
    groups: list[tuple[Rank | None, list[ConfigFact]]] = [(None, [])]
    for number, line in lines:
        dated = _DATED.match(line)
        if dated:
            at = rfc3339(f"{dated['at'].replace(' ', 'T')}{dated['zone'] or 'Z'}") or at
            line = line[dated.end() :] if not line.lstrip().startswith("#") else line
        turned = _turned(line, flag)
        flag = listed["flag"] if (listed := _LISTED_FLAG.search(line)) else None
        if turned is not None:
            rows = [row for row in rows if not (isinstance(row, ConfigFact) and row.name in turned and row.src == f"{name}:{number - 1}")]
            rows += [_fact(key, now, engine, f"{name}:{number}", was=was) for key, (was, now) in turned.items()]
            continue
        found = _settings(line)
        if not found and line.strip() and not line.lstrip().startswith(("#", "$")):
            unread += 1
        if not found and line.strip() and (rank := rank_of(line)) is not None:
            groups.append((rank, []))
        facts = [_fact(key, value, engine, f"{name}:{number}", at=at) for key, value in found.items()]
        groups[-1][1].extend(fact for fact in facts if at is None)
        rows += facts
    return FlagRows(rows=[*rows, *compare([group for group in groups if group[1]])], unread_lines=unread)


def _diff(lines: list[tuple[int, str]], *, name: str, engine: str | None) -> FlagRows:
    """Both sides of a diff: what stands on neither changed side is as it was."""
    kept: dict[str, tuple[str, int]] = {}
    old: dict[str, tuple[str, int]] = {}
    new: dict[str, tuple[str, int]] = {}
    unread = 0
    for number, line in lines:
        added, removed = _ADDED.match(line), _REMOVED.match(line)
        side, mark = (new, added) if added else (old, removed) if removed else (kept, None)
        found = _settings(line[mark.end() :] if mark else line)
        side.update({key: (value, number) for key, value in found.items()})
        unread += not found and bool(line.strip()) and not line.startswith(("#", "$", "@@", "--- ", "+++ ", "diff ", "index "))
    rows: list[Row] = []
    for key in {**kept, **old, **new}:
        before = old.get(key) or kept.get(key)
        value, number = new.get(key) or (kept[key] if key in kept else (None, old[key][1]))
        was = before[0] if before is not None and before[0] != value else None
        rows.append(_fact(key, value, engine, f"{name}:{number}", was=was))
    return FlagRows(rows=rows, unread_lines=unread)


def _turned(line: str, flag: str | None) -> dict[str, tuple[str, str]] | None:
    """What a line says was one value and is another: of a key, of a flag beside it, or of the flag on the line before."""
    arrow = _ARROW.match(line)
    if arrow is None:
        return None
    was, now = arrow["was"], arrow["now"]
    if was.startswith("--") and now.startswith("--"):
        before, after = _settings(was), _settings(now)
        return {key: (before[key], after[key]) for key in before.keys() & after.keys() if before[key] != after[key]}
    name = settings.name_of(flag if flag and arrow["key"] in _OF_ARGUMENTS else arrow["key"])
    if name in _OF_ARGUMENTS or settings.is_secret(name):
        return {}
    return {name: (settings.spelled(name, was), settings.spelled(name, now))}


def _both_sides(match: re.Match[str]) -> str:
    was, now = (match[side].strip("\"'") for side in ("was", "now"))
    return f"\n-{match['indent']}- {match['flag']}={was}\n+{match['indent']}- {match['flag']}={now}"


def _settings(line: str) -> dict[str, str]:
    if (array := _ENV_ARRAY.match(line)) is not None:
        found: dict[str, str] = {}
        for name, value in _ENV_ITEM.findall(array[0]):
            found |= _variable(name, value)
        return found
    variable = _ENVIRONMENT.match(line)
    if variable:
        return _variable(variable["name"], variable["value"].strip("'\""))
    if len(line) <= LONGEST_COMMAND and ("--" in line or _PROGRAM.search(line)):
        return _command(line)
    return {}


def _fact(name: str, value: str | None, engine: str | None, src: str, *, at: Instant | None = None, was: str | None = None) -> ConfigFact:
    return ConfigFact(seen_at=at, subject=engine, name=name, value=value, was=was, src=src, origin=Origin.FLAG)


def read_model_config(text: str, *, name: str, engine: str | None = None) -> FlagRows:
    """Facts of a model's config.json, its text model's where it has several."""
    try:
        document = json.JSONDecoder().raw_decode(text, first.start(1) if (first := _OBJECT.search(text)) else 0)[0]
    except (ValueError, RecursionError):
        return FlagRows(rows=[], unread_lines=text.count("\n") + 1)
    if not isinstance(document, dict):
        return FlagRows(rows=[], unread_lines=text.count("\n") + 1)
    inner: dict[str, object] = next((document[key] for key in ("text_config", "llm_config") if isinstance(document.get(key), dict)), {})
    rows: list[Row] = []
    for key, fact, value in _of_model({**document, **inner}):
        line = text.count("\n", 0, max(0, text.find(f'"{key}"'))) + 1
        rows.append(ConfigFact(subject=engine, name=fact, value=value, src=f"{name}:{line}", origin=Origin.MODEL))
    return FlagRows(rows=rows, unread_lines=0)


def _of_model(document: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Key as it is written, name and value of each fact."""
    found: list[tuple[str, str, str | None]] = []
    for key in MODEL_KEYS:
        fact = "name_or_path" if key == "_name_or_path" else settings.name_of(key)
        found.append((key, fact, settings.value_of(fact, document.get(key))))
    if document.get("max_position_embeddings") is None:
        key = next((key for key in LENGTHS if document.get(key) is not None), LENGTHS[0])
        found.append((key, "max_position_embeddings", settings.value_of("max_position_embeddings", document.get(key))))
    found += [(key, key, _counted(document.get(key))) for key in COUNTED]
    found += [(key, key, "given") for key in NESTED if document.get(key)]
    quantised = document.get("quantization_config")
    if isinstance(quantised, dict):
        found += [(key, fact, settings.text_of(quantised.get(key))) for key, fact in QUANTISATION.items()]
    return [(key, fact, value) for key, fact, value in found if value is not None]


def _counted(value: object) -> str | None:
    """`full_attention=10 sliding_attention=52` of a list with one kind a layer, or of a text with one letter a layer."""
    if not (isinstance(value, str) or (isinstance(value, list) and all(isinstance(kind, str) for kind in value))):
        return None
    counts = Counter(value)
    return settings.text_of([f"{kind}={counts[kind]}" for kind in sorted(counts)])


def _joined(text: str) -> list[tuple[int, str]]:
    """Lines with their number, those ending in a backslash joined to the next, at the first one's number."""
    lines: list[tuple[int, str]] = []
    is_diff = any(_ADDED.match(line) for line in text.split("\n"))
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if lines and lines[-1][1].endswith("\\") and is_diff:  # each side of it has lines of its own
            lines[-1] = (lines[-1][0], lines[-1][1].rstrip("\\ "))
            lines.append((number, line))
        elif lines and lines[-1][1].endswith("\\"):
            lines[-1] = (lines[-1][0], lines[-1][1][:-1] + " " + line.strip())
        elif (
            lines and (flag := _LONE_FLAG.match(lines[-1][1])) and (value := _LONE_VALUE.match(line)) and flag["indent"] == value["indent"]
        ):
            lines[-1] = (lines[-1][0], lines[-1][1].rstrip(",") + " " + line.strip().removeprefix("- ").rstrip(","))
        else:
            lines.append((number, line))
    return lines


def _variable(name: str, value: str) -> dict[str, str]:
    key = settings.name_of(name.lower().removeprefix("llama_arg_"))
    if not settings.is_secret(key):
        return {key: settings.spelled(key, scrub(value)[: settings.LONGEST])}
    return {key.removeprefix("vllm_"): value if is_placeholder(value) else "***"}


def _command(line: str) -> dict[str, str]:
    if _ARRAY.search(line):
        line = _ARRAY_MARKS.sub(" ", line)
    words = _words(line)
    short = {**_SHORT, **_LLAMACPP} if any(word.endswith(".gguf") or "llama-server" in word or word == "-ngl" for word in words) else _SHORT
    found: dict[str, str] = {}
    model = _served(words)
    if model:
        found["model"] = model
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _FLAG.match(word) or (not word.startswith("--") and word not in short):
            continue
        flag, _, value = word.partition("=")
        values = [value] if value else []
        while not value and at < len(words) and not _FLAG.match(words[at]):
            values.append(words[at])
            at += 1
        key = short.get(flag) or settings.name_of(flag)
        off = key.startswith("no_") and not values
        text = " ".join(values) or ("false" if off else "true")
        text = scrub(text) if not settings.is_secret(key) else text if is_placeholder(text) else "***"
        key = key.removeprefix("no_") if off else key
        found[key] = settings.spelled(key, text[: settings.LONGEST])
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
