"""How an engine is set to serve: what of its settings decides how large its KV cache must be."""

import re
from typing import Final

import msgspec

from lensd.errors import EvidenceError, UsageError

DEFAULT_BLOCK_SIZE: Final = 16
"""vLLM 0.32.0 config/cache.py; CPU and some attention backends take another, printed at start and in `cache_config_info`."""
DTYPE_BYTES: Final = {
    "float32": 4, "float": 4, "fp32": 4,
    "float16": 2, "half": 2, "fp16": 2, "bfloat16": 2, "bf16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1,
}  # fmt: skip
"""Bytes an element of a KV cache, by the engine's or our own name of the type (vLLM 0.32.0 utils/torch_utils.py)."""
LATENT_BYTES: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes a token and layer of packed latent formats (vLLM 0.32.0 model_executor/layers/attention/mla_attention.py)."""
MOST: Final = 1 << 40


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that decide a KV cache. Sizes are per rank: what one GPU of a tensor- and pipeline-parallel group holds."""

    kv_dtype: str = "auto"
    """`auto`: the model's own."""
    tp: int = 1
    pp: int = 1
    block_size: int = DEFAULT_BLOCK_SIZE
    batched_tokens: int = 8192
    """`max_num_batched_tokens`."""
    batches: int = 2
    """Steps in flight at once: 2 with asynchronous scheduling, else the pipeline's stages (vLLM 0.32.0 config/vllm.py)."""
    hybrid: bool = True
    """False with `--disable-hybrid-kv-cache-manager`: every attention layer keeps all tokens."""
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "block_size", "batched_tokens", "batches"):
            if not 0 < getattr(self, name) <= MOST:
                raise UsageError(f"{name} = {getattr(self, name)} is not a number from 1 on")

    @property
    def in_flight(self) -> int:
        """Tokens that may be scheduled and not yet settled (vLLM's `max_in_flight_tokens`)."""
        return self.batches * self.batched_tokens


def element_bytes(kv_dtype: str, model_dtype: str) -> int:
    """Bytes of one element. Raises EvidenceError for a type whose scales are packed in with it."""
    name = model_dtype if kv_dtype == "auto" else kv_dtype.removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise EvidenceError(f"could not tell the bytes of a KV cache of type {name!r}: take its size from the engine's start-up log")
    return DTYPE_BYTES[name]


def reserves_null_block(version: str | None) -> bool | None:
    """Whether the engine counts its null block when it checks that a request fits; None where it is not known.

    One block of the pool never holds tokens. vLLM 0.32.0 takes it off before the check and the estimate
    (v1/core/kv_cache_utils.py get_kv_cache_configs); the change was made after 2026-07-01 (vllm-project/vllm pull request 47272), and
    up to 0.22 a request of exactly the pool's size passes the check and never runs.
    """
    release = _release(version)
    if release is None:
        return None
    if release >= (0, 32):
        return True
    return False if release <= (0, 22) else None


def _release(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})(?:\D|$)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


def stages(layers: int, pp: int) -> list[range]:
    """Which layers each pipeline stage holds (vLLM 0.32.0 distributed/utils.py get_pp_indices): what is over goes to the middle ones."""
    if pp > layers:
        raise UsageError(f"{pp} pipeline stages for {layers} layers: a stage would be empty")
    counts = [layers // pp] * pp
    for back in range(2, layers % pp + 2):
        counts[-back] += 1
    starts = [sum(counts[:stage]) for stage in range(pp)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
