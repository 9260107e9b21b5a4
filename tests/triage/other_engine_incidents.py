# ruff: noqa: E501  (lines as programs print them)
"""Memory incidents of text-generation-inference, TensorRT-LLM and llama.cpp, what a container's runtime says, and what only looks like them."""

import json

from incident_shape import Incident
from memory_texts import oom, page
from sglang_incidents import BEGUN, READY, SERVING, calls, raised, sgl


def tgi(time: str, text: str, level: str = " INFO") -> str:
    return f"2026-11-18T{time}.371516Z {level} {text}"


TGI_BEGUN = [
    tgi("10:00:00", "text_generation_launcher: Args {"),
    '    model_id: "/models/llama-70b",',
    "}",
    tgi("10:00:02", "shard-manager: text_generation_launcher: Starting shard rank=0"),
    tgi("10:00:12", "shard-manager: text_generation_launcher: Waiting for shard to be ready... rank=0"),
]
TGI_LOADED = [
    *TGI_BEGUN,
    tgi("10:01:00", "text_generation_launcher: Server started at unix:///tmp/text-generation-server-0"),
    tgi("10:01:01", "shard-manager: text_generation_launcher: Shard ready in 58.618910525s rank=0"),
    tgi("10:01:02", "text_generation_launcher: Starting Webserver"),
    tgi("10:01:03", "text_generation_router: router/src/main.rs:210: Warming up model"),
]
TGI_READY = [
    *TGI_LOADED,
    tgi("10:01:40", "text_generation_router: router/src/main.rs:221: Setting max batch total tokens to 16000"),
    tgi("10:01:41", "text_generation_router: router/src/main.rs:230: Connected"),
]


def traced(time: str, message: str, level: str = "INFO", target: str = "text_generation_launcher") -> str:
    """A line of TGI under --json-output."""
    return json.dumps({"timestamp": f"2026-11-18T{time}.371516Z", "level": level, "fields": {"message": message}, "target": target})


def trt(time: str, text: str, letter: str = "I") -> str:
    return f"[11/18/2026-{time}] [TRT-LLM] [{letter}] {text}"


def uncreated(component: str) -> list[str]:
    return [
        trt("10:02:00", "Failed to initialize executor on rank 0: Executor creation failed due to insufficient GPU memory.", "E"),
        "",
        f"The following component could not be created: {component}",
        "Total GPU memory (GiB): 79.11",
        "Free GPU memory before component creation attempt (GiB): 12.78",
        "",
    ]


OTHERS = [
    Incident(
        "TGI: a shard's weights are too large, in a log that begins there",
        {
            "tgi.log": page(
                *TGI_BEGUN,
                tgi("10:00:51", "text_generation_launcher: Error when initializing model", "ERROR"),
                "Traceback (most recent call last):",
                *calls("serve", "get_model", "load_weights"),
                "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacity of 44.34 GiB of which 160.81 MiB is free. Process 47694 has 44.17 GiB memory in use. Of the allocated memory 43.36 GiB is allocated by PyTorch, and 396.27 MiB is reserved by PyTorch but unallocated.",
                tgi("10:00:55", "shard-manager: text_generation_launcher: Shard complete standard error output:", "ERROR"),
                tgi("10:00:55", "text_generation_launcher: Shard 0 failed to start", "ERROR"),
            )
        },
        "oom-model-load",
        "gpu",
        ("Starting shard rank=0", "Tried to allocate 224.00 MiB"),
    ),
    Incident(
        "TGI: the trial run of its router is too large",
        {
            "tgi.log": page(
                *TGI_LOADED,
                tgi("10:01:09", "text_generation_launcher: Method Warmup encountered an error.", "ERROR"),
                "Traceback (most recent call last):",
                *calls("warmup", "generate_token"),
                oom("2.00 GiB", "0.80 GiB", total="44.34 GiB", allocated="41.10 GiB"),
                "",
                "The above exception was the direct cause of the following exception:",
                "",
                "Traceback (most recent call last):",
                *calls("Warmup", "warmup"),
                "RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
                tgi(
                    "10:01:10",
                    "warmup{max_input_length=1024 max_prefill_tokens=4096 max_total_tokens=2048}:warmup: text_generation_client: router/client/src/lib.rs:33: Server error: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
                    "ERROR",
                ),
                tgi("10:01:11", "text_generation_launcher: Webserver Crashed", "ERROR"),
            )
        },
        "oom-profiling-warmup",
        "gpu",
        ("in warmup", "Tried to allocate 2.00 GiB"),
    ),
    Incident(
        "TGI: the same as records of JSON",
        {
            "tgi.json": page(
                traced("10:00:02", "Starting shard rank=0"),
                traced("10:01:00", "Server started at unix:///tmp/text-generation-server-0"),
                traced("10:01:03", "Warming up model", target="text_generation_router"),
                traced(
                    "10:01:09",
                    "\n".join(
                        (
                            "Method Warmup encountered an error.",
                            "Traceback (most recent call last):",
                            *calls("warmup", "generate_token"),
                            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 22.20 GiB total capacity; 20.85 GiB already allocated; 24.81 MiB free; 20.86 GiB reserved in total by PyTorch)",
                        )
                    ),
                    "ERROR",
                ),
                traced("10:01:11", "Webserver Crashed", "ERROR"),
            )
        },
        "oom-profiling-warmup",
        "gpu",
        ("Warming up model", "Tried to allocate 2.00 GiB"),
    ),
    Incident(
        "TGI: a prompt too large while it serves",
        {
            "tgi.log": page(
                *TGI_READY,
                tgi("11:20:07", "text_generation_launcher: Method Prefill encountered an error.", "ERROR"),
                "Traceback (most recent call last):",
                *calls("Prefill", "generate_token", "forward"),
                oom("3.10 GiB", "0.90 GiB"),
                tgi(
                    "11:20:08",
                    "batch{batch_size=1}:prefill:prefill{id=7 size=1}:prefill{id=7 size=1}: text_generation_client: router/client/src/lib.rs:33: Server error: CANCELLED",
                    "ERROR",
                ),
            )
        },
        "oom-runtime-activation-spike",
        "gpu",
        ("in forward", "Tried to allocate 3.10 GiB"),
    ),
    Incident(
        "TensorRT-LLM: the model finds no room",
        {
            "trtllm.log": page(
                trt("10:00:00", "Starting TensorRT-LLM init."), trt("10:00:04", "Using LLM with PyTorch backend"), *uncreated("Model")
            )
        },
        "oom-model-load",
        "gpu",
        ("could not be created: Model",),
    ),
    Incident(
        "TensorRT-LLM: the trial's KV cache finds no room",
        {
            "trtllm.log": page(
                trt("10:00:00", "Starting TensorRT-LLM init."),
                trt("10:01:30", "Use 61.79 GB for model weights."),
                *uncreated("Initial KV cache (temporary for KV cache size estimation)"),
            )
        },
        "oom-profiling-warmup",
        "gpu",
        ("could not be created: Initial KV cache",),
    ),
    Incident(
        "llama.cpp: a card without room for the weights",
        {
            "server.log": page(
                "srv    load_model: loading model '/models/qwen-110b.gguf'",
                "load_tensors: loading model tensors, this can take a while... (mmap = true)",
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 46817.04 MiB on device 0: cudaMalloc failed: out of memory",
                "alloc_tensor_range: failed to allocate CUDA0 buffer of size 49091224576",
                "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
                "llama_model_load_from_file_impl: failed to load model",
                "srv    load_model: failed to load model, '/models/qwen-110b.gguf'",
            )
        },
        "oom-model-load",
        "gpu",
        ("unable to allocate CUDA0 buffer",),
    ),
    Incident(
        "llama.cpp: a context larger than what the weights leave",
        {
            "server.log": page(
                "srv    load_model: loading model '/models/qwen-32b.gguf'",
                "load_tensors: offloaded 65/65 layers to GPU",
                "load_tensors:        CUDA0 model buffer size = 18926.01 MiB",
                "llama_context: constructing llama_context",
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory",
                "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
                "srv    load_model: failed to load model, '/models/qwen-32b.gguf'",
            )
        },
        "oom-profiling-warmup",
        "gpu",
        ("failed to allocate buffer for kv cache",),
    ),
]

OUTSIDE = [
    Incident(
        f"{how}: a container that was killed for its memory",
        {"said.json": text, "sglang.log": page(*SERVING)},
        "host-ram-oom",
        "engine",
        ("OOMKilled",),
    )
    for how, text in {
        "docker inspect": json.dumps(
            [{"Id": "9c1d", "State": {"OOMKilled": True, "ExitCode": 137}, "HostConfig": {"Memory": 68719476736}}], indent=4
        ),
        "docker inspect in one line": json.dumps({"Status": "exited", "OOMKilled": True, "ExitCode": 137}, separators=(",", ":")),
        "kubectl get -o json": json.dumps(
            {"kind": "Pod", "status": {"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}}, indent=2
        ),
    }.items()
]

SOUND = [
    Incident(
        "a container that was asked to stop",
        {"said.json": json.dumps([{"State": {"OOMKilled": False, "ExitCode": 143}}], indent=4), "sglang.log": page(*SERVING)},
    ),
    Incident("SGLang that starts and serves", {"sglang.log": page(*SERVING)}),
    Incident(
        "SGLang that is asked to stop",
        {
            "sglang.log": page(
                *SERVING,
                sgl("12:00:00", "SIGTERM received. signum=15 frame=None. Draining requests and shutting down..."),
                sgl("12:00:04", "Subprocess detokenizer crashed with exit code -15. Triggering SIGQUIT for cleanup..."),
                sgl("12:00:04", "Received sigquit from a child process. It usually means the child failed."),
            )
        },
    ),
    Incident(
        "SGLang whose check of unlike cards is switched off",
        {
            "sglang.log": page(
                *BEGUN[:2],
                sgl(
                    "10:00:09",
                    "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=48.3, local_gpu_memory=78.6, local_gpu_memory * 0.9=70.7",
                    "TP1",
                ),
                *READY[2:],
            )
        },
    ),
    Incident(
        "SGLang on cards of two sizes",
        {
            "sglang.log": page(
                BEGUN[0],
                *raised(
                    "10:00:09",
                    "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=13.53, local_gpu_memory=23.09, local_gpu_memory * 0.9=20.78",
                    "init_torch_distributed",
                ),
            ),
            "gpu.csv": "timestamp, index, memory.used [MiB], memory.total [MiB]\n2026/11/18 10:00:00.000, 0, 4 MiB, 24564 MiB\n2026/11/18 10:00:00.000, 1, 4 MiB, 16376 MiB\n",
        },
    ),
    Incident(
        "TGI that is asked to stop",
        {
            "tgi.log": page(
                *TGI_READY,
                tgi("12:00:00", "text_generation_router: router/src/server.rs:1012: signal received, starting graceful shutdown"),
            )
        },
    ),
    Incident(
        "llama.cpp that does without pipelines where they did not fit",
        {
            "server.log": page(
                "0.00.123.883 I srv    load_model: loading model '/models/minimax.gguf'",
                "1.06.520.077 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.72 MiB on device 1: cudaMalloc failed: out of memory",
                "1.06.520.084 E ggml_gallocr_reserve_n_impl: failed to allocate CUDA1 buffer of size 54262464512",
                "1.06.520.086 E graph_reserve: failed to allocate compute buffers",
                "1.06.520.107 W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism",
                "1.07.304.130 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 50176, kv_unified = 'false'",
                "1.07.400.130 I srv  llama_server: model loaded",
            )
        },
    ),
]
