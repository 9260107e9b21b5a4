# ruff: noqa: E501  (lines as programs print them)
"""Memory incidents of SGLang: the same causes by the same stages, in its own words."""

from incident_shape import Incident
from memory_texts import page

_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU {} has a total capacity of 79.11 GiB of which {} GiB is free. Including non-PyTorch memory, this process has {} GiB memory in use. Of the allocated memory {} GiB is allocated by PyTorch, and {} GiB is reserved by PyTorch but unallocated."


def sgl(time: str, text: str, rank: str = "") -> str:
    return f"[2026-11-18 {time}{f' {rank}' if rank else ''}] {text}"


def calls(*names: str) -> list[str]:
    return [line for name in names for line in (f'  File "/sgl-workspace/engine/{name}.py", line 120, in {name}', f"    {name}()")]


def raised(time: str, error: str, *names: str, rank: str = "") -> list[str]:
    return [
        sgl(time, "Scheduler hit an exception: Traceback (most recent call last):", rank),
        *calls("run_scheduler_process", *names),
        error,
        "",
        sgl(time, "Received sigquit from a child process. It usually means the child failed."),
    ]


BEGUN = [
    sgl("10:00:00", "server_args=ServerArgs(model_path='/models/glm', tp_size=2, pp_size=1, mem_fraction_static=0.88)"),
    sgl("10:00:09", "Init torch distributed ends. elapsed=0.53 s, mem usage=0.09 GB", "TP0"),
    sgl("10:00:10", "Load weight begin. avail mem=78.58 GB", "TP0"),
    sgl("10:00:10", "Load weight begin. avail mem=78.58 GB", "TP1"),
]
LOADED = [
    *BEGUN,
    "Multi-thread loading shards: 100% Completed | 4/4 [00:04<00:00,  1.29it/s]",
    sgl("10:01:02", "Load weight end. elapsed=51.90 s, type=Glm4MoeForCausalLM, avail mem=16.33 GB, mem usage=62.25 GB.", "TP0"),
    sgl("10:01:03", "Load weight end. elapsed=52.90 s, type=Glm4MoeForCausalLM, avail mem=16.33 GB, mem usage=62.25 GB.", "TP1"),
]
POOLED = [
    *LOADED,
    sgl("10:01:05", "KV Cache is allocated. #tokens: 52431, K size: 3.63 GB, V size: 3.63 GB", "TP0"),
    sgl("10:01:05", "Memory pool end. avail mem=8.41 GB", "TP0"),
    sgl("10:01:06", "Capture cuda graph begin. This can take up to several minutes. avail mem=8.38 GB", "TP0"),
]
READY = [
    *POOLED,
    sgl("10:01:40", "Capture cuda graph end. Time elapsed: 34.20 s. mem usage=2.10 GB. avail mem=6.20 GB.", "TP0"),
    sgl("10:01:43", 'INFO:     127.0.0.1:36168 - "GET /model_info HTTP/1.1" 200 OK'),
    sgl("10:01:44", "The server is fired up and ready to roll!"),
]


def decode(time: str, running: int, tokens: int, usage: float, waiting: int = 0) -> str:
    text = f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, cuda graph: True, gen throughput (token/s): 88.01, #queue-req: {waiting}"
    return sgl(time, text, "TP0")


SERVING = [*READY, decode("11:20:01", 6, 21022, 0.40), decode("11:20:05", 7, 24022, 0.46)]


SGLANG = [
    Incident(
        "SGLang: the weights are too large",
        {
            "sglang.log": page(
                *BEGUN,
                "Loading safetensors checkpoint shards:  47% Completed | 14/30 [00:21<00:22,  1.41s/it]",
                *raised("10:00:41", _OOM.format("0.45", 0, "0.12", "78.90", "78.20", "0.05"), "load_model", "create_weights", rank="TP0"),
            )
        },
        "oom-model-load",
        "gpu",
        ("checkpoint shards:  47% Completed", "in create_weights", "Tried to allocate 0.45 GiB"),
    ),
    Incident(
        "SGLang: graphs find no room beside the pool",
        {
            "sglang.log": page(
                *POOLED,
                *raised(
                    "10:01:20",
                    "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.17 GiB. GPU 0 has a total capacity of 79.11 GiB of which 803.88 MiB is free. Including non-PyTorch memory, this process has 78.30 GiB memory in use. Of the allocated memory 76.11 GiB is allocated by PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated.",
                    "init_device_graphs",
                    rank="TP1",
                ),
            )
        },
        "oom-profiling-warmup",
        "gpu",
        ("Load weight end. elapsed=52.90 s", "Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.17 GiB"),
    ),
    Incident(
        "SGLang: a step too large while it serves",
        {
            "sglang.log": page(
                *SERVING,
                *raised(
                    "11:20:07", _OOM.format("3.71", 0, "1.02", "78.00", "76.80", "0.40"), "event_loop_overlap", "compute_logits", rank="TP0"
                ),
            )
        },
        "oom-runtime-activation-spike",
        "gpu",
        ("#running-req: 7", "in compute_logits", "Tried to allocate 3.71 GiB"),
    ),
    Incident(
        "SGLang: a log that begins in the middle",
        {
            "part.log": page(
                decode("11:20:01", 6, 21022, 0.40),
                decode("11:20:05", 7, 24022, 0.46),
                *raised("11:20:07", _OOM.format("3.71", 0, "1.02", "78.00", "76.80", "0.40"), "event_loop_overlap", "forward", rank="TP0"),
            )
        },
        "oom-runtime-activation-spike",
        "gpu",
        ("#running-req: 7", "Tried to allocate 3.71 GiB"),
    ),
    Incident(
        "SGLang: enough, in pieces",
        {
            "sglang.log": page(
                *SERVING,
                *raised("11:20:07", _OOM.format("2.20", 0, "0.90", "78.00", "66.80", "9.40"), "event_loop_overlap", "forward", rank="TP0"),
            )
        },
        "oom-fragmentation",
        "gpu",
        ("9.40 GiB is reserved by PyTorch but unallocated",),
    ),
    Incident(
        "SGLang: the fraction leaves nothing for the pool",
        {
            "sglang.log": page(
                *LOADED,
                *raised(
                    "10:01:04",
                    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
                    "init_memory_pool",
                    rank="TP0",
                ),
            )
        },
        "kv-cache-too-small",
        "gpu",
        ("Please try to increase --mem-fraction-static",),
    ),
    Incident(
        "SGLang: one card of two is not free",
        {
            "sglang.log": page(
                BEGUN[0],
                *raised(
                    "10:00:09",
                    "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. min_per_gpu_memory=48.313, local_gpu_memory=78.61, local_gpu_memory * 0.9=70.749",
                    "init_torch_distributed",
                    rank="TP1",
                ),
            ),
            "apps.csv": "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-1, 20191, python train.py, 30960 MiB\n",
        },
        "gpu-memory-held-by-other-process",
        "gpu",
        ("min_per_gpu_memory=48.313", "30960"),
    ),
    Incident(
        "SGLang: its pool does not add up when nothing runs",
        {
            "sglang.log": page(
                *SERVING,
                decode("11:21:05", 1, 24022, 0.09),
                *raised(
                    "11:22:07",
                    "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=52431, available_size=2100, evictable_size=50270, protected_size=0",
                    "check_memory",
                    rank="TP0",
                ),
            )
        },
        "kv-cache-leak",
        "engine",
        ("available_size=2100, evictable_size=50270",),
    ),
]
