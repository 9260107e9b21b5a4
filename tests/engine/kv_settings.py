"""Settings under which a real engine prints how large its KV cache is, as data: what it is started with, and what lensd is told of it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from checkout import ENGINE

from lensd.memory import kv
from lensd.memory.kv import Capacity
from lensd.memory.serving import Serving
from lensd.memory.shape import Shape

GIB = 1 << 30
VERSION = "0.32.0"
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "dtype": "bfloat16", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 448, "sliding_window": 256,
    "sliding_window_pattern": 6, "max_position_embeddings": 32768, "query_pre_attn_scalar": 32, "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0, "rms_norm_eps": 1e-06, "hidden_activation": "gelu_pytorch_tanh", "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
"""Five layers with a window to one that attends to all: as Gemma 3, but small."""
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "dtype": "float16", "hidden_size": 128, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 448, "sliding_window": 512,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "tie_word_embeddings": True,
}  # fmt: skip
"""One key-value head, and a window in every layer."""
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "dtype": "bfloat16", "hidden_size": 64,
    "intermediate_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 448,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 2, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-06, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
"""Latent attention: one vector a token and layer."""


class Setting(NamedTuple):
    """`config` None: the model of `model_dir`, else a model of that configuration with weights of chance."""

    name: str
    max_model_len: int = 512
    model_dir: str = "model"
    config: dict[str, Any] | None = None
    block_size: int | None = None
    kv_dtype: str = "auto"
    blocks: int | None = None
    batched_tokens: int = 2048

    def start(self, starter: Any, folder: Path) -> Any:
        """The engine, which has only begun to start."""
        given = {"--block-size": self.block_size, "--num-gpu-blocks-override": self.blocks}
        options = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        options += ["--kv-cache-dtype", self.kv_dtype, "--max-num-batched-tokens", str(self.batched_tokens)]
        if self.config is not None:
            options += ["--load-format", "dummy", "--dtype", "auto"]  # its own type: it is only started, and asked nothing
        return starter.start(
            self.name, options=tuple(options), model_dir=self._folder(folder), max_model_len=self.max_model_len,
            environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
        )  # fmt: skip

    def _folder(self, folder: Path) -> str:
        if self.config is None:
            return self.model_dir
        shutil.copytree(ENGINE / "model", folder / self.name, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
        (folder / self.name / "config.json").write_text(json.dumps(self.config))
        return str(folder / self.name)

    def predicted(self, block_size: int = 128) -> Capacity:
        """By lensd's arithmetic from config.json and these settings: 1 GiB for the cache, as every engine of the tests has.

        `block_size` where none is asked for: 128 tokens on a CPU, 16 for latent attention on one without AMX (vllm/platforms/cpu.py).
        """
        config = self.config or json.loads((ENGINE / self.model_dir / "config.json").read_text())
        shape = Shape.from_config(config)
        size = self.block_size or block_size
        serving = Serving(block_size=size, kv_dtype=self.kv_dtype, batched_tokens=self.batched_tokens, batches=1)
        return kv.capacity(shape, serving, GIB, self.max_model_len, version=VERSION, blocks_override=self.blocks)


class Printed(NamedTuple):
    """What an engine has said of its cache: at start in its log, and in `vllm:cache_config_info`."""

    tokens: int
    concurrency: str  # two digits
    blocks: int
    exact_concurrency: float
    block_size: int


_LINE = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x")
_REFUSED = re.compile(
    r"max seq len \((\d+)\), \(([\d.]+) GiB KV cache is needed, which is larger than the available KV cache memory \(([\d.]+) GiB\)\. "
    r"(?:Based on the available memory, the estimated maximum model length is (\d+)\.)?"
)


def printed(log: str, metrics: str) -> Printed:
    """Of an engine that runs."""
    tokens, concurrency = _LINE.findall(log)[-1]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', next(line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info"))))
    return Printed(
        int(tokens.replace(",", "")), concurrency, int(labels["num_gpu_blocks"]), float(labels["kv_cache_max_concurrency"]),
        int(labels["block_size"]),
    )  # fmt: skip


class Refused(NamedTuple):
    """Why an engine did not start: sizes in GiB as it prints them."""

    max_model_len: int
    need: float
    available: float
    longest: int


def refused(log: str) -> Refused | None:
    """None where it says nothing of that."""
    found = _REFUSED.search(log)
    return Refused(int(found[1]), float(found[2]), float(found[3]), int(found[4] or 0)) if found else None


def in_gib(size: int) -> float:
    """As vLLM prints it (vllm/utils/mem_utils.py format_gib, 0.32.0)."""
    return round(size / GIB, 2)
