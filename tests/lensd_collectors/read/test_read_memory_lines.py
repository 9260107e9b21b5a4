# ruff: noqa: E501  (lines as programs print them)
"""What vLLM 0.6 to 0.33 print of their memory, as events in the order of a start, and facts in bytes."""

import json

import pytest
from lensd_collectors.dialects import load
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.rows import ConfigFact, Event, Row

VLLM = load()["vllm"]
GIB = 1 << 30


def read(*lines: str) -> list[Row]:
    reader = LineReader(VLLM, engine="e1", path="engine.log")
    return [row for number, line in enumerate(lines, 1) for row in reader.feed(line, number=number, at_us=number * 1_000_000)]


def told(rows: list[Row]) -> list[tuple[str | None, dict[str, object]]]:
    events = [row for row in rows if isinstance(row, Event)]
    return [(row.name, {key: value for key, value in json.loads(row.fields or "{}").items() if key != "sign"}) for row in events]


def facts(rows: list[Row]) -> dict[str | None, str | None]:
    return {row.name: row.value for row in rows if isinstance(row, ConfigFact)}


def v0(text: str, file: str = "worker.py:232") -> str:
    return f"INFO 12-25 10:00:01 {file}] {text}"


def v1(text: str, level: str = "INFO") -> str:
    return f"(EngineCore_DP0 pid=77) {level} 11-18 10:00:01 [gpu_worker.py:298] {text}"


V0_START = [
    v0("Starting to load model meta-llama/Llama-3.1-8B-Instruct...", "model_runner.py:1094"),
    v0("Loading model weights took 14.9888 GB", "model_runner.py:1099"),
    v0("Memory profiling takes 5.00 seconds"),
    v0("the current vLLM instance can use total_gpu_memory (79.15GiB) x gpu_memory_utilization (0.90) = 71.24GiB"),
    v0(
        "model weights take 14.99GiB; non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 1.20GiB; "
        "the rest of the memory reserved for KV Cache is 54.95GiB."
    ),
    v0("# cuda blocks: 28134, # CPU blocks: 2048", "executor_base.py:76"),
    v0("Maximum concurrency for 8192 tokens per request: 54.95x", "executor_base.py:80"),
    v0("Capturing cudagraphs for decoding. This may lead to unexpected consequences if the model is not static.", "model_runner.py:1415"),
    v0("Graph capturing finished in 21 secs, took 0.52 GiB", "model_runner.py:1535"),
    v0("init engine (profile, create kv cache, warmup model) took 30.11 seconds", "llm_engine.py:431"),
]
CURRENT_START = [
    v1("Starting to load model Qwen/Qwen3-32B..."),
    v1("Filesystem type for checkpoints: NFS. Checkpoint size: 61.04 GiB. Available RAM: 240.22 GiB."),
    v1("Model loading took 61.06 GiB memory and 25.123456 seconds"),
    v1("Initial free memory: 78.7 GiB; Requested memory: 0.900000 (util), 71.27 GiB", "DEBUG"),
    v1("Estimated CUDA graph memory: 0.61 GiB total"),
    v1("Available KV cache memory: 7.84 GiB"),
    v1("GPU KV cache size: 32,112 tokens, Maximum concurrency for 8,192 tokens per request: 3.92x"),
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  21%|##        | 14/67 [00:01<00:04, 11.02it/s]",
    v1("Graph capturing finished in 4 secs, took 0.52 GiB"),
    v1("CUDA graph pool memory: 0.52 GiB (actual), 0.61 GiB (estimated), difference: 0.09 GiB (17.3%)."),
    v1(
        "Free memory on device (78.7/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). Actual usage is 61.4 GiB "
        "for consumed memory (weights + non-torch), 1.42 GiB for peak activation, and 0.52 GiB for CUDAGraph memory. Replace "
        "gpu_memory_utilization config with `--kv-cache-memory=7999` (7.9 GiB) to fit into requested memory, or `--kv-cache-memory=15999` "
        "(15.9 GiB) to fully utilize gpu memory. Current kv cache memory in use is 7.84 GiB."
    ),
    v1("init engine (profile, create kv cache, warmup model) took 12.34 s (compilation: 3.10 s)"),
]


def test_a_v0_start_tells_where_the_memory_went() -> None:
    rows = read(*V0_START)
    assert [name for name, _ in told(rows)] == [
        "engine.loading",
        "engine.loaded",
        "engine.memory_profile",
        "engine.memory_profile",
        "engine.kv_capacity",
        "engine.concurrency",
        "engine.capturing",
        "engine.graphs",
        "engine.initialized",
    ]
    assert facts(rows) == {
        "weights_bytes": str(round(14.99 * GIB)),
        "device_total_bytes": str(round(79.15 * GIB)),
        "requested_bytes": str(round(71.24 * GIB)),
        "non_torch_bytes": str(round(0.09 * GIB)),
        "activation_bytes": str(round(1.2 * GIB)),
        "kv_cache_bytes": str(round(54.95 * GIB)),
        "num_gpu_blocks": "28134",
        "num_cpu_blocks": "2048",
        "kv_max_concurrency": facts(read(V0_START[6]))["kv_max_concurrency"],
        "graph_bytes": str(round(0.52 * GIB)),
    }
    assert float(facts(rows)["kv_max_concurrency"] or 0) == 54.95


def test_a_current_start_tells_where_the_memory_went() -> None:
    rows = read(*CURRENT_START)
    assert [name for name, _ in told(rows)] == [
        "engine.loading",
        "engine.checkpoint",
        "engine.loaded",
        "engine.memory_profile",
        "engine.memory_profile",
        "engine.kv_memory",
        "engine.kv_capacity",
        "engine.capturing",
        "engine.graphs",
        "engine.graphs",
        "engine.memory_summary",
        "engine.initialized",
    ]
    known = facts(rows)
    sizes = {name: round(int(value or 0) / GIB, 2) for name, value in known.items() if name and name.endswith("_bytes")}
    assert sizes == {
        "checkpoint_bytes": 61.04,
        "weights_bytes": 61.06,
        "device_free_bytes": 78.7,
        "device_total_bytes": 79.19,
        "requested_bytes": 71.27,
        "kv_cache_bytes": 7.84,
        "graph_bytes": 0.52,
        "activation_bytes": 1.42,
    }
    assert known["kv_cache_tokens"] == "32112"
    assert all((value or "").isdigit() for name, value in known.items() if name and name.endswith("_bytes"))


def test_a_summary_of_0_11_has_its_parts_and_the_cache_to_the_byte() -> None:
    [(name, fields)] = told(
        read(
            v1(
                "Free memory on device (78.7/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). Actual usage is 14.99 "
                "GiB for weight, 1.2 GiB for peak activation, 0.09 GiB for non-torch memory, and 0.52 GiB for CUDAGraph memory. Replace "
                "gpu_memory_utilization config with `--kv-cache-memory=58312728576` to fit into requested memory, or "
                "`--kv-cache-memory=66286510080` to fully utilize gpu memory. Current kv cache memory in use is 59003043635 bytes."
            )
        )
    )
    assert name == "engine.memory_summary"
    assert (fields["non_torch_bytes"], fields["kv_cache_exact_bytes"]) == (round(0.09 * GIB), 59003043635)


def test_a_card_too_full_to_start_is_not_taken_for_the_summary_that_begins_alike() -> None:
    [(name, fields)] = told(
        read(
            v1(
                "ValueError: Free memory on device cuda:1 (10.5/79.2 GiB) on startup is less than desired GPU memory utilization "
                "(0.9, 71.28 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
                "ERROR",
            )
        )
    )
    assert name == "engine.memory_short"
    assert (fields["device"], fields["free_bytes"], fields["wanted_bytes"]) == ("cuda:1", round(10.5 * GIB), round(71.28 * GIB))


def test_a_cache_below_nothing_is_negative() -> None:
    assert facts(read(v1("Available KV cache memory: -3.41 GiB"))) == {"kv_cache_bytes": str(round(-3.41 * GIB))}


@pytest.mark.parametrize(
    ("text", "estimated"),
    [
        ("models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.37 GiB).Based on the available memory, the estimated maximum model length is 76736. Try", 76736),
        ("models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.37 GiB). Based on the available memory,  the estimated maximum model length is 76736. Try", 76736),
        ("model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (9.37 GiB). Based on the available memory, the estimated maximum model length is 76736. Try", 76736),
        ("model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (0.0 GiB). Try", None),
    ],
)  # fmt: skip
def test_the_length_that_would_fit_is_read_in_every_spacing(text: str, estimated: int | None) -> None:
    [(name, fields)] = told(read(v1(f"ValueError: To serve at least one request with the {text}", "ERROR")))
    assert name == "engine.kv_too_small"
    assert (fields["max_model_len"], fields.get("estimated")) == (131072, estimated)


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.96 GiB. GPU {gpu} has a total capacity of 23.69 GiB of which 5.25 GiB is "
    "free. Process 2006998 has 256.00 MiB memory in use. Including non-PyTorch memory, this process has 18.17 GiB memory in use. Process 811 "
    "has 1.00 GiB memory in use. Of the allocated memory 17.88 GiB is allocated by PyTorch, with 38.00 MiB allocated in private pools (e.g., "
    "CUDA Graphs), and 1.10 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
)


def test_an_error_tells_every_process_on_the_card_and_which_is_its_own() -> None:
    [(name, fields)] = told(read(v1(OOM.format(gpu=0), "ERROR")))
    assert name == "engine.oom"
    assert fields["process_bytes"] == round(18.17 * GIB)
    assert fields["graph_pool_bytes"] == 38 << 20
    assert fields["unallocated_bytes"] == round(1.1 * GIB)
    assert str(fields["holders"]).count("Process ") == 2


def test_an_error_without_sizes_is_one_all_the_same() -> None:
    [(name, fields)] = told(read(v1("torch.AcceleratorError: CUDA error: out of memory", "ERROR")))
    assert (name, fields) == ("engine.oom", {})


def test_two_ranks_are_two_and_each_is_told_once() -> None:
    lines = [v1(OOM.format(gpu=gpu), "ERROR") for gpu in (0, 1)]
    assert [fields["gpu"] for _, fields in told(read(*lines, *lines, OOM.format(gpu=1)))] == ["0", "1"]


def test_the_same_error_in_the_next_start_is_told_again() -> None:
    banner = "INFO 11-18 10:00:00 [api_server.py:1896] vLLM API server version 0.9.2"
    died = v1("EngineCore failed to start.", "ERROR")
    rows = read(banner, v1(OOM.format(gpu=0), "ERROR"), died, banner, v1(OOM.format(gpu=0), "ERROR"), died)
    assert [name for name, _ in told(rows)] == ["engine.started", "engine.oom", "engine.start_failed"] * 2


def test_what_a_caller_calls_its_model_is_no_memory_error() -> None:
    rows = read(
        v1(
            "Error with model error=ErrorInfo(message='The model `CUDA out of memory. Tried to allocate 6.12 GiB. GPU 0 has` does not exist.')"
        )
    )
    assert told(rows) == []
