"""What a running engine set aside for its KV cache, and how much of that was ever used."""

import re
from pathlib import Path
from typing import Final

import msgspec
from lensd_collectors.host.engine import Engine, Fetch, FetchError
from lensd_collectors.host.facts import from_models
from lensd_collectors.host.scrape import PREFIXES, Value, parse

from lensd.errors import EvidenceError, ServerError, UsageError
from lensd.memory import kv, model_dir
from lensd.memory.lengths import Lengths
from lensd.memory.serving import DEFAULT_BLOCK_SIZE, Serving, ceil_div
from lensd.memory.shape import Shape
from lensd.memory.units import binary

INFO: Final = "vllm:cache_config_info"
SPARE: Final = 4 / 3
"""What was used should be three quarters of what is set aside."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as it is set up, in its own words; None: it does not say."""

    url: str
    version: str | None = None
    max_model_len: int | None = None
    model: str | None = None
    """What it serves, by the first of its names."""
    model_dir: str = ""
    """Where it says its model lies, on its own host."""
    block_size: int | None = None
    blocks: int | None = None
    tokens: int | None = None
    """`KV cache size`: what all requests together may hold."""
    kv_bytes: int | None = None
    utilization: float | None = None
    kv_dtype: str = "auto"


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """What is set aside, what was used of it at most times, and what lies idle; None: not to be told."""

    schema_version: int = 1
    engine: Running
    measured: Lengths
    used_tokens: int | None = None
    """The longest 99 of 100 requests × as many at once as 99 of 100 scrapes saw, in whole blocks."""
    idle_tokens: int | None = None
    idle_share: float | None = None
    idle_bytes: int | None = None
    longest_seen: int | None = None
    advice: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def look(engine: Engine, fetch: Fetch) -> Running:
    """Ask it: three GETs, nothing is changed. Raises ServerError where it does not answer, EvidenceError where it is no vLLM."""
    try:
        text = fetch(engine, "/metrics").decode(errors="replace")
    except FetchError as error:
        raise ServerError(f"no engine at {engine.url}: {error.said or error}") from None
    try:
        labels = next((each.labels for each in parse(text, PREFIXES["vllm"]) if isinstance(each, Value) and each.name == INFO), None)
    except ValueError:
        labels = None
    if labels is None:
        raise EvidenceError(f"{engine.url}/metrics has no {INFO}: only vLLM tells how its KV cache is set up")
    facts, root = _models(engine, fetch)
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    tokens = _whole(labels.get("kv_cache_size_tokens"))
    return Running(
        url=engine.url,
        version=_version(engine, fetch),
        max_model_len=_whole(facts.get("max_model_len")),
        model=facts.get("served_model_name", "").partition(" ")[0] or None,
        model_dir=root,
        block_size=size,
        blocks=blocks,
        tokens=tokens if tokens is not None else blocks * size if blocks is not None and size is not None else None,
        kv_bytes=_whole(labels.get("kv_cache_memory_bytes")),
        utilization=_share(labels.get("gpu_memory_utilization")),
        kv_dtype=labels.get("cache_dtype", "auto"),
    )


def block_bytes(running: Running, place: str | None) -> int | None:
    """Bytes of a block of this engine's model: of the one at `place`, else of the one that it names, where that lies here too.

    Raises UsageError where `place` is given and holds no model.
    """
    serving = Serving(kv_dtype=running.kv_dtype, block_size=running.block_size or DEFAULT_BLOCK_SIZE)
    try:
        if place is None and not (running.model_dir and Path(running.model_dir, "config.json").is_file()):
            return None
        shape = Shape.from_config(model_dir.read(place or running.model_dir, weights=False).config)
        return kv.block_bytes(shape, serving)
    except (EvidenceError, OSError):
        return None
    except UsageError:
        if place is not None:
            raise
        return None


def waste(running: Running, lengths: Lengths, block_bytes: int | None = None) -> Waste:
    """What lies idle of an engine's KV cache. `block_bytes`: of its model, where that is known, else as it says itself."""
    missing = [
        name for name, value in (("kv_cache_size_tokens", running.tokens), ("requests.completion_tokens", lengths.tokens_p99)) if not value
    ]
    if not lengths.running_p99:
        missing.append("engine_samples.running")
    if not running.tokens or lengths.tokens_p99 is None or not lengths.running_p99:
        return Waste(engine=running, measured=lengths, longest_seen=lengths.tokens_max, missing=tuple(missing))
    block = running.block_size or 1
    used = min(running.tokens, lengths.running_p99 * ceil_div(lengths.tokens_p99, block) * block)
    share = 1 - used / running.tokens
    of_blocks = running.blocks * block_bytes if running.blocks and block_bytes else running.kv_bytes
    idle = None if of_blocks is None else round(of_blocks * share)
    return Waste(
        engine=running,
        measured=lengths,
        used_tokens=used,
        idle_tokens=running.tokens - used,
        idle_share=share,
        idle_bytes=idle,
        longest_seen=lengths.tokens_max,
        advice=tuple(_advice(running, lengths, used)),
    )


def _advice(running: Running, lengths: Lengths, used: int) -> list[str]:
    said = []
    assert running.tokens is not None
    if used * SPARE <= running.tokens / 2:
        said.append(f"{round(used * SPARE):,} tokens of KV cache would do: a smaller share of the card, or more requests on it")
    elif used * SPARE > running.tokens:
        said.append("less than a quarter is spare: nothing to take away")
    if running.max_model_len and lengths.tokens_max and lengths.tokens_max * 2 <= running.max_model_len:
        seen = f"the longest request took {lengths.tokens_max:,} of {running.max_model_len:,} tokens"
        said.append(f"{seen}: a lower --max-model-len takes no longer one in, and costs nothing else")
    return said


def as_text(found: Waste) -> str:
    """A few lines, sizes in powers of two only."""
    running, lengths = found.engine, found.measured
    lines = [f"{running.url} (vLLM {running.version or 'of an unknown version'})", "", "What it set aside"]
    kv = "" if running.kv_bytes is None else f", {binary(running.kv_bytes)}"
    lines.append(f"  KV cache         {_told(running.tokens)} tokens{kv}")
    lines.append(f"  longest request  {_told(running.max_model_len)} tokens")
    lines += ["", "What was used", f"  {lengths.told}"]
    if lengths.running_p99:
        lines.append(f"  measured over {lengths.samples:,} scrapes: 99 of 100 saw at most {lengths.running_p99:,} requests at once")
    lines += ["", "What lies idle"]
    if found.idle_tokens is None or found.idle_share is None:
        lines.append(f"  could not tell: {', '.join(found.missing)} not measured")
    else:
        size = "" if found.idle_bytes is None else f", {binary(found.idle_bytes)}"
        lines.append(f"  {found.idle_tokens:,} tokens of KV cache ({found.idle_share:.1%}){size}")
    return "\n".join([*lines, *(f"  {line}" for line in found.advice)]) + "\n"


def _told(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


def _models(engine: Engine, fetch: Fetch) -> tuple[dict[str, str], str]:
    try:
        return from_models(fetch(engine, "/v1/models"))
    except FetchError:
        return {}, ""


def _version(engine: Engine, fetch: Fetch) -> str | None:
    try:
        told = msgspec.json.decode(fetch(engine, "/version"), type=dict[str, object]).get("version")
    except (FetchError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return told if isinstance(told, str) and re.fullmatch(r"[\w.+-]{1,60}", told) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 19 else None


def _share(text: str | None) -> float | None:
    found = re.fullmatch(r"[01](?:\.\d+)?", text or "")
    return None if found is None else float(found[0])
