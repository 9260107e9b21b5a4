# ruff: noqa: E501  (lines as programs print them)
"""Memory that ran out, in every version's words: the stage a start had come to decides which of them it is."""

from incident_shape import Incident
from memory_texts import CAPTURE_CALLS, ERAS, LOADING_CALLS, PROFILING_CALLS, SERVING_CALLS, Era, oom, page


def _in_every_version(version: str) -> list[Incident]:
    era = Era(version)
    return [
        Incident(
            f"{version}: the weights are too large",
            {
                "vllm.log": page(
                    era.start("10:00", "loading", model="Qwen/Qwen2.5-72B-Instruct"),
                    era.raised("10:01:10", oom("464.00 MiB", "120.44 MiB"), *LOADING_CALLS),
                    era.refused("10:01:11"),
                )
            },
            "oom-model-load",
            "gpu",
            ("Starting to load model Qwen/Qwen2.5-72B-Instruct", "in create_weights", "Tried to allocate 464.00 MiB"),
        ),
        Incident(
            f"{version}: the trial run is too large",
            {
                "vllm.log": page(
                    era.start(
                        "10:00",
                        "loaded",
                        weights=70.12,
                        args="'max_num_batched_tokens': 65536" if version != "0.6.6" else "max_num_batched_tokens=65536",
                    ),
                    era.raised("10:01:10", oom("9.27 GiB", "2.80 GiB", allocated="75.60 GiB"), *PROFILING_CALLS),
                    era.refused("10:01:11"),
                )
            },
            "oom-profiling-warmup",
            "gpu",
            ("took 70.12", "max_num_batched_tokens", "in _dummy_run"),
        ),
        Incident(
            f"{version}: graphs find no room beside the cache",
            {
                "vllm.log": page(
                    era.start("10:00", "capturing", kv=61.3),
                    era.raised("10:01:10", oom("128.00 MiB", "77.56 MiB"), *CAPTURE_CALLS),
                    era.refused("10:01:11"),
                )
            },
            "oom-profiling-warmup",
            "gpu",
            ("Tried to allocate 128.00 MiB", "in _dummy_run"),
        ),
        Incident(
            f"{version}: a step too large while it serves",
            {
                "vllm.log": page(
                    era.start("10:00"),
                    era.stats("11:20:00", running=7),
                    era.raised(
                        "11:20:07",
                        oom("3.71 GiB", "1.02 GiB", allocated="76.80 GiB", unallocated="402.11 MiB"),
                        *SERVING_CALLS,
                        file="core.py:343",
                    ),
                    era.dead("11:20:08"),
                )
            },
            "oom-runtime-activation-spike",
            "gpu",
            ("Running: 7 reqs", "in compute_logits", "Tried to allocate 3.71 GiB"),
        ),
        Incident(
            f"{version}: enough, in pieces",
            {
                "vllm.log": page(
                    era.start("10:00"),
                    era.stats("18:41:10", running=12),
                    era.raised(
                        "18:41:17",
                        oom("1.13 GiB", "0.62 GiB", allocated="70.10 GiB", unallocated="7.44 GiB"),
                        *SERVING_CALLS,
                        file="core.py:343",
                    ),
                    era.dead("18:41:18"),
                )
            },
            "oom-fragmentation",
            "gpu",
            ("7.44 GiB is reserved by PyTorch but unallocated",),
        ),
    ]


NINE, ELEVEN, NOW = Era("0.9.2"), Era("0.11.0"), Era("0.33.0")
OWN = "Including non-PyTorch memory, this process has {own} memory in use. "

MEMORY = [
    *(incident for version in ERAS for incident in _in_every_version(version)),
    Incident(
        "two ranks say the same, each twice",
        {
            "vllm.log": page(
                NOW.start("09:00", "loading", model="mistralai/Mistral-Large-Instruct-2407", args="'tensor_parallel_size': 2"),
                *(
                    NOW.raised(
                        "09:02:00", oom("576.00 MiB", "301.00 MiB", gpu=gpu), *LOADING_CALLS, process=f"Worker_TP{gpu} pid={90 + gpu}"
                    )
                    for gpu in (0, 1, 0, 1)
                ),
                NOW.refused("09:02:01"),
            )
        },
        "oom-model-load",
        "gpu",
        ("tensor_parallel_size",),
    ),
    Incident(
        "three starts one after the other, the same each time",
        {
            "vllm.log": page(
                *(
                    part
                    for hour in ("03:10", "03:14", "03:18")
                    for part in (
                        ELEVEN.start(hour, "loading", model="Qwen/Qwen2.5-72B-Instruct"),
                        ELEVEN.raised(f"{hour}:40", oom(), *LOADING_CALLS),
                        ELEVEN.refused(f"{hour}:41"),
                    )
                )
            )
        },
        "oom-model-load",
        "gpu",
        ("in create_weights",),
    ),
    Incident(
        "the newer handler's own line, and the error after it",
        {
            "vllm.log": page(
                NOW.start("09:00", "loading", model="Qwen/Qwen2.5-72B-Instruct"),
                NOW.line(
                    "09:00:40",
                    "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for weights, increasing --tensor-parallel-size, or using --quantization. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more tips. (original error: "
                    + oom().partition(": ")[2]
                    + ")",
                    level="ERROR",
                ),
                NOW.raised("09:00:40", oom(), *LOADING_CALLS),
                NOW.refused("09:00:41"),
            )
        },
        "oom-model-load",
        "gpu",
        ("Failed to load model - not enough GPU memory",),
    ),
    Incident(
        "one rank is still loading when another has loaded",
        {
            "vllm.log": page(
                NINE.start("09:00", "loaded", model="Qwen/Qwen2.5-72B-Instruct", weights=67.9),
                NINE.raised("09:00:40", oom(gpu=1), *LOADING_CALLS),
                NINE.refused("09:00:41"),
            )
        },
        "oom-model-load",
        "gpu",
    ),
    Incident(
        "the sampler is warmed up with a thousand at once",
        {
            "vllm.log": page(
                ELEVEN.start("09:00", "captured"),
                ELEVEN.raised(
                    "09:01:40",
                    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
                    "compile_or_warm_up_model",
                    "_dummy_sampler_run",
                ),
                ELEVEN.refused("09:01:41"),
            )
        },
        "oom-profiling-warmup",
        "gpu",
        ("warming up sampler with 1024 dummy requests",),
    ),
    Incident(
        "a log that begins in the middle, and a request for the log probabilities of its prompt",
        {
            "engine.log": page(
                NINE.stats("14:00:00", running=3),
                NINE.line(
                    "14:00:06",
                    "Received request cmpl-77: prompt: '<redacted>', params: SamplingParams(n=1, max_tokens=1, prompt_logprobs=20), prompt_token_ids: None, lora_request: None.",
                    source="logger.py:39",
                ),
                NINE.raised(
                    "14:00:09",
                    oom("12.40 GiB", "2.02 GiB", allocated="75.90 GiB", holders="Process 3311 has 77.10 GiB memory in use. "),
                    *SERVING_CALLS,
                    file="core.py:343",
                ),
                NINE.dead("14:00:10"),
            )
        },
        "oom-runtime-activation-spike",
        "gpu",
        ("prompt_logprobs=20", "Running: 3 reqs"),
    ),
    Incident(
        "only callers' lines before it",
        {
            "vllm.log": page(
                'INFO:     10.8.0.5:41482 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
                'INFO:     10.8.0.6:41490 - "GET /metrics HTTP/1.1" 200 OK',
                NINE.raised(
                    "14:00:09",
                    oom("2.40 GiB", "1.02 GiB", allocated="75.90 GiB"),
                    "forward",
                    "_merge_multimodal_embeddings",
                    file="core.py:343",
                ),
            )
        },
        "oom-runtime-activation-spike",
        "gpu",
        ("in _merge_multimodal_embeddings",),
    ),
    Incident(
        "nothing before it, and requests that it took along",
        {
            "vllm.log": page(
                NINE.raised("14:00:09", oom("2.40 GiB", "1.02 GiB", allocated="75.90 GiB"), "forward", file="core.py:343"),
                NINE.dead("14:00:10"),
            )
        },
        "oom-runtime-activation-spike",
        "gpu",
    ),
    Incident(
        "the progress of the shards is all there is of the start",
        {
            "vllm.log": page(
                "Loading safetensors checkpoint shards:  47% Completed | 14/30 [00:21<00:22,  1.41s/it]",
                ELEVEN.line("10:01:10", oom(), level="ERROR", source="core.py:586"),
                ELEVEN.refused("10:01:11"),
            )
        },
        "oom-model-load",
        "gpu",
        ("Loading safetensors checkpoint shards:  47%",),
    ),
    Incident(
        "what lies unused grows from one error to the next, and the engine lives",
        {
            "engine.log": page(
                NINE.start("08:00"),
                *(
                    part
                    for clock, unused, want in (
                        ("11:00", "3.10 GiB", "2.2 GiB"),
                        ("13:00", "4.60 GiB", "3.1 GiB"),
                        ("15:00", "6.02 GiB", "2.9 GiB"),
                    )
                    for part in (
                        NINE.stats(f"{clock}:00", running=5),
                        NINE.raised(f"{clock}:03", oom(want, "0.40 GiB", allocated="71.30 GiB", unallocated=unused), *SERVING_CALLS),
                    )
                ),
            )
        },
        "oom-fragmentation",
        "gpu",
        ("3.10 GiB is reserved by PyTorch",),
    ),
    Incident(
        "torch before 2.1, in pieces",
        {
            "engine.log": page(
                Era("0.6.6").start("08:00"),
                Era("0.6.6").stats("09:00:00", running=2),
                Era("0.6.6").raised(
                    "09:00:02",
                    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 39.39 GiB total capacity; 31.85 GiB already allocated; 810.12 MiB free; 37.81 GiB reserved in total by PyTorch)",
                    "execute_model",
                ),
            )
        },
        "oom-fragmentation",
        "gpu",
    ),
    Incident(
        "a length that the V0 cache cannot hold",
        {
            "vllm.log": page(
                Era("0.6.6").start("10:00", "profiled", kv=6.44, args="max_model_len=131072"),
                Era("0.6.6").raised(
                    "10:01:00",
                    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (52736). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
                    "_initialize_kv_caches",
                ),
            )
        },
        "kv-cache-too-small",
        "gpu",
        ("stored in KV cache (52736)", "max_model_len=131072"),
    ),
    *(
        Incident(
            f"{version}: a length that the cache cannot hold",
            {
                "vllm.log": page(
                    Era(version).start("10:00", "loaded", args="'max_model_len': 131072"),
                    Era(version).line("10:00:50", "Available KV cache memory: 9.37 GiB"),
                    Era(version).raised(
                        "10:01:00",
                        f"ValueError: To serve at least one request with the {whose} max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.37 GiB).{gap}Based on the available memory,{gap} the estimated maximum model length is 76736. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
                        "_initialize_kv_caches",
                        "check_enough_kv_cache_memory",
                    ),
                    Era(version).refused("10:01:01"),
                )
            },
            "kv-cache-too-small",
            "gpu",
            ("16.00 GiB KV cache is needed", "max_model_len", "Available KV cache memory: 9.37 GiB"),
        )
        for version, whose, gap in (("0.8.5", "models's", ""), ("0.11.0", "models's", " "), ("0.33.0", "model's", " "))
    ),
    Incident(
        "nothing is left for the cache at all",
        {
            "vllm.log": page(
                ELEVEN.start("10:00", "loaded", weights=70.4),
                ELEVEN.line("10:00:50", "Available KV cache memory: -1.31 GiB"),
                ELEVEN.raised(
                    "10:01:00",
                    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
                    "_initialize_kv_caches",
                ),
                ELEVEN.refused("10:01:01"),
            )
        },
        "kv-cache-too-small",
        "gpu",
        ("No available memory for the cache blocks", "Available KV cache memory: -1.31 GiB"),
    ),
    *(
        Incident(
            f"{version}: the card is not free when it starts",
            {
                "vllm.log": page(
                    Era(version).start("10:00", "started"),
                    Era(version).raised(
                        "10:00:20",
                        f"ValueError: Free memory on device {device}(17.62/79.19 GiB) on startup is less than desired GPU memory utilization (0.9, 71.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
                        "init_device",
                    ),
                    Era(version).refused("10:00:21"),
                )
            },
            "gpu-memory-held-by-other-process",
            "gpu",
            ("(17.62/79.19 GiB) on startup is less",),
        )
        for version, device in (("0.9.2", ""), ("0.15.1", ""), ("0.33.0", "cuda:0 "))
    ),
    Incident(
        "a table of the card's processes says who has it",
        {
            "vllm.log": page(
                NOW.start("10:00", "started"),
                NOW.raised(
                    "10:00:20",
                    "ValueError: Free memory on device cuda:0 (17.62/79.19 GiB) on startup is less than desired GPU memory utilization (0.9, 71.27 GiB).",
                    "init_device",
                ),
                NOW.refused("10:00:21"),
            ),
            "apps.csv": "pid, process_name, used_gpu_memory [MiB]\n31337, /usr/bin/python3, 61440 MiB\n",
        },
        "gpu-memory-held-by-other-process",
        "gpu",
        ("31337, /usr/bin/python3, 61440 MiB",),
    ),
    Incident(
        "another process has the memory that the weights needed",
        {
            "vllm.log": page(
                Era("0.8.5").start("10:00", "loading", weights=14.99),
                Era("0.8.5").raised(
                    "10:00:20",
                    oom(
                        "112.00 MiB",
                        "61.12 MiB",
                        allocated="9.80 GiB",
                        holders="Process 90211 has 68.40 GiB memory in use. " + OWN.format(own="10.60 GiB"),
                    ),
                    *LOADING_CALLS,
                ),
                Era("0.8.5").refused("10:00:21"),
            )
        },
        "gpu-memory-held-by-other-process",
        "gpu",
        ("Process 90211 has 68.40 GiB",),
    ),
    Incident(
        "somebody lets go of the card while it is being measured",
        {
            "vllm.log": page(
                ELEVEN.start("10:00", "loaded"),
                ELEVEN.raised(
                    "10:00:20",
                    "AssertionError: Error in memory profiling. Initial free memory 61.2 GiB, current free memory 70.15 GiB. This happens when other processes sharing the same container release GPU memory while vLLM is profiling during initialization. To fix this, ensure consistent GPU memory allocation or isolate vLLM in its own container.",
                    "determine_available_memory",
                ),
                ELEVEN.refused("10:00:21"),
            )
        },
        "gpu-memory-held-by-other-process",
        "gpu",
        ("Error in memory profiling",),
    ),
]
