# ruff: noqa: E501  (lines as programs print them)
"""What vLLM prints of its memory from 0.6 to 0.33, as small builders: a start up to a stage, and what fails there."""

from collections.abc import Iterator
from dataclasses import dataclass

ERAS = ("0.6.6", "0.8.5", "0.9.2", "0.11.0", "0.15.1", "0.22.1", "0.33.0")
STAGES = ("started", "loading", "loaded", "profiled", "capturing", "captured", "ready")
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@dataclass(frozen=True)
class Era:
    """How one version prints. `day` is `mm-dd`: a line has neither year nor zone."""

    version: str
    day: str = "11-18"

    @property
    def _at(self) -> tuple[int, int]:
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)

    def line(
        self, clock: str, text: str, *, level: str = "INFO", source: str = "gpu_worker.py:298", process: str = "EngineCore_DP0 pid=77"
    ) -> str:
        if self._at < (0, 8):
            return f"{level} {self.day} {clock} {source}] {text}"
        if self._at < (0, 10):
            return f"{level} {self.day} {clock} [{source}] {text}"
        return f"({process}) {level} {self.day} {clock} [{source}] {text}"

    def start(
        self, hour: str, until: str = "ready", *, model: str = MODEL, weights: float = 14.99, kv: float = 54.95, args: str = ""
    ) -> Iterator[str]:
        """The lines of one start that comes as far as `until`. `hour`: `hh:mm`."""
        wanted = STAGES[: STAGES.index(until) + 1]
        for second, (stage, text) in enumerate(self._stages(model, weights, kv, args)):
            if stage in wanted:
                yield text if text.startswith("INFO:  ") or "Capturing CUDA" in text else self.line(f"{hour}:{second:02d}", text)

    def _stages(self, model: str, weights: float, kv: float, args: str) -> Iterator[tuple[str, str]]:
        old = self._at < (0, 8)
        yield (
            "started",
            f"vLLM {'API ' if self._at < (0, 33) else ''}server version {self.version}"
            + ("" if self._at < (0, 33) else f", serving model {model}"),
        )
        if args:
            yield "started", f"args: Namespace({args})" if old else "non-default args: {" + args + "}"
        if not old:
            yield (
                "started",
                f"Initializing a V1 LLM engine (v{self.version}) with config: model='{model}', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, quantization=None",
            )
        yield "loading", f"Starting to load model {model}..."
        if old:
            yield "loaded", f"Loading model weights took {weights:.4f} GB"
        else:
            yield "loaded", f"Model loading took {weights:.2f} GiB {'memory ' if self._at >= (0, 15) else ''}and 5.123456 seconds"
        yield from (("profiled", text) for text in self._profile(weights, kv))
        yield (
            "capturing",
            "Capturing cudagraphs for decoding. This may lead to unexpected consequences if the model is not static."
            if old
            else "Capturing CUDA graph shapes:   3%|1         | 1/35 [00:01<00:43,  1.28s/it]",
        )
        yield "captured", "Graph capturing finished in 21 secs, took 0.52 GiB"
        yield "ready", f"init engine (profile, create kv cache, warmup model) took 12.34 {'s' if self._at >= (0, 22) else 'seconds'}"
        yield "ready", "INFO:     Application startup complete."

    def _profile(self, weights: float, kv: float) -> Iterator[str]:
        tokens = int(kv * (1 << 30) / 131072)
        concurrency = f"Maximum concurrency for 8,192 tokens per request: {tokens / 8192:.2f}x"
        if self._at < (0, 8):
            yield "Memory profiling takes 5.00 seconds"
            yield "the current vLLM instance can use total_gpu_memory (79.15GiB) x gpu_memory_utilization (0.90) = 71.24GiB"
            yield f"model weights take {weights}GiB; non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 1.20GiB; the rest of the memory reserved for KV Cache is {kv}GiB."
            yield f"# cuda blocks: {tokens // 16}, # CPU blocks: 2048"
            yield concurrency.replace("8,192", "8192")
            return
        if self._at >= (0, 9):
            yield f"Available KV cache memory: {kv} GiB"
        if self._at >= (0, 30):
            yield f"GPU KV cache size: {tokens:,} tokens, {concurrency}"
        else:
            yield f"GPU KV cache size: {tokens:,} tokens"
            yield concurrency

    def raised(
        self, clock: str, error: str, *frames: str, file: str = "core.py:586", process: str = "EngineCore_DP0 pid=77"
    ) -> Iterator[str]:
        """A traceback as the logger prints it, its calls outermost first."""
        yield self.line(clock, "Traceback (most recent call last):", level="ERROR", source=file, process=process)
        for frame in frames:
            yield self.line(
                clock,
                f'  File ".../vllm/v1/worker/gpu_model_runner.py", line 2020, in {frame}',
                level="ERROR",
                source=file,
                process=process,
            )
        yield self.line(clock, error, level="ERROR", source=file, process=process)

    def stats(self, clock: str, running: int, kv: float = 40.0) -> str:
        head = "" if self._at < (0, 8) else "Engine 000: "
        held = (
            f"Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: {kv}%, CPU KV cache usage: 0.0%."
            if self._at < (0, 8)
            else f"Waiting: 0 reqs, GPU KV cache usage: {kv}%, Prefix cache hit rate: 0.0%"
        )
        return self.line(
            clock,
            f"{head}Avg prompt throughput: 812.0 tokens/s, Avg generation throughput: 301.0 tokens/s, Running: {running} reqs, {held}",
            source="loggers.py:118",
            process="APIServer pid=1",
        )

    def dead(self, clock: str) -> Iterator[str]:
        yield self.line(clock, "AsyncLLM output_handler failed.", level="ERROR", source="async_llm.py:399", process="APIServer pid=1")
        yield "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."

    def refused(self, clock: str) -> Iterator[str]:
        yield self.line(clock, "EngineCore failed to start.", level="ERROR", source="core.py:586")
        yield "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}"


def oom(
    want: str = "448.00 MiB",
    free: str = "211.88 MiB",
    *,
    total: str = "79.15 GiB",
    gpu: int = 0,
    allocated: str = "77.90 GiB",
    unallocated: str = "12.02 MiB",
    holders: str = "",
    kind: str = "torch.OutOfMemoryError",
) -> str:
    """What torch says since 2.1. `holders`: what it was told of the processes on the card, each with a blank at its end."""
    return (
        f"{kind}: CUDA out of memory. Tried to allocate {want}. GPU {gpu} has a total capacity of {total} of which {free} is free. {holders}"
        f"Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
        "Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


LOADING_CALLS = ("load_model", "initialize_model", "__init__", "create_weights")
PROFILING_CALLS = ("determine_available_memory", "profile_run", "_dummy_run", "forward")
CAPTURE_CALLS = ("compile_or_warm_up_model", "capture_model", "_capture_cudagraphs", "_dummy_run")
SERVING_CALLS = ("run_busy_loop", "step", "execute_model", "compute_logits")


def page(*parts: str | Iterator[str]) -> str:
    return "".join(f"{line}\n" for part in parts for line in ((part,) if isinstance(part, str) else part))
