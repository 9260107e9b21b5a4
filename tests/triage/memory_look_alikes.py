# ruff: noqa: E501  (lines as programs print them)
"""What looks like one of the memory causes and is another, or none: each with the labels that may not be found in it."""

from incident_shape import Incident
from memory_texts import LOADING_CALLS, SERVING_CALLS, Era, oom, page

NINE, NOW = Era("0.9.2"), Era("0.33.0")
MEMORY_LABELS = frozenset(
    {
        "oom-model-load", "oom-profiling-warmup", "oom-runtime-activation-spike", "oom-fragmentation", "kv-cache-too-small",
        "gpu-memory-held-by-other-process",
    }
)  # fmt: skip

LOOK_ALIKES = [
    (
        Incident(
            "an error with nothing before it that says where it was",
            {"vllm.log": page(NINE.line("10:00:00", oom(), level="ERROR"))},
        ),
        MEMORY_LABELS,
    ),
    (
        Incident(
            "a model whose name a caller made of an error's words",
            {
                "vllm.log": page(
                    NINE.start("10:00"),
                    NINE.stats("10:20:00", running=2),
                    NINE.line(
                        "10:20:03",
                        f"Error with model error=ErrorInfo(message='The model `{oom()}` does not exist.', type='NotFoundError')",
                        level="ERROR",
                    ),
                )
            },
        ),
        MEMORY_LABELS,
    ),
    (
        Incident(
            "a share that no card with nothing on it could give",
            {
                "vllm.log": page(
                    NOW.start("10:00", "started"),
                    NOW.raised(
                        "10:00:20",
                        "ValueError: Free memory on device cuda:0 (78.62/79.19 GiB) on startup is less than desired GPU memory utilization (0.995, 78.79 GiB).",
                        "init_device",
                    ),
                    NOW.refused("10:00:21"),
                )
            },
        ),
        MEMORY_LABELS,
    ),
    (
        Incident(
            "a host without the memory that its CPU engine was promised",
            {
                "vllm.log": page(
                    NOW.start("10:00", "started"),
                    NOW.raised(
                        "10:00:20",
                        "ValueError: Free memory on device cpu (17.62/62.19 GiB) on startup is less than desired CPU memory utilization (0.9, 55.97 GiB). Decrease CPU memory utilization or reduce CPU memory used by other processes.",
                        "init_device",
                    ),
                    NOW.refused("10:00:21"),
                )
            },
        ),
        MEMORY_LABELS,
    ),
    (
        Incident(
            "the process that the error names is the engine, by its number on the host",
            {
                "vllm.log": page(
                    NINE.start("10:00", "loading"),
                    NINE.raised("10:00:20", oom(holders="Process 4471 has 78.52 GiB memory in use. "), *LOADING_CALLS),
                    NINE.refused("10:00:21"),
                )
            },
            "oom-model-load",
        ),
        MEMORY_LABELS - {"oom-model-load"},
    ),
    (
        Incident(
            "much lies unused, and all of it together is too little",
            {
                "vllm.log": page(
                    NINE.start("10:00"),
                    NINE.stats("11:00:00", running=2),
                    NINE.raised("11:00:03", oom("18.20 GiB", "1.90 GiB", allocated="71.30 GiB", unallocated="3.10 GiB"), *SERVING_CALLS),
                    NINE.dead("11:00:04"),
                )
            },
            "oom-runtime-activation-spike",
        ),
        MEMORY_LABELS - {"oom-runtime-activation-spike"},
    ),
    (
        Incident(
            "a good start that says how little was left",
            {
                "vllm.log": page(
                    NOW.start("10:00", kv=1.02),
                    NOW.line(
                        "10:00:40", "Auto-fit max_model_len: reduced from 131072 to 8352 to fit in available KV cache memory (1.02 GiB GPU)"
                    ),
                )
            },
        ),
        MEMORY_LABELS,
    ),
    (
        Incident(
            "refused once, and the shorter length of the next start is served",
            {
                "vllm.log": page(
                    NINE.start("10:00", "loaded", args="'max_model_len': 131072"),
                    NINE.raised(
                        "10:01:00",
                        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.37 GiB). Try decreasing `max_model_len`.",
                        "_initialize_kv_caches",
                    ),
                    NINE.refused("10:01:01"),
                    NINE.start("10:05", args="'max_model_len': 65536"),
                    NINE.stats("10:09:00", running=4),
                )
            },
            "kv-cache-too-small",
        ),
        MEMORY_LABELS - {"kv-cache-too-small"},
    ),
    (
        Incident(
            "words of a memory error in an orderly stop's neighbourhood: none of them",
            {
                "vllm.log": page(
                    NINE.start("10:00"),
                    NINE.line("11:00:00", "Sleep mode freed 61.2 GiB memory, 1.9 GiB memory is still in use."),
                    NINE.line("11:20:00", "Failed to reset prefix cache because some blocks (3) are not freed yet", level="WARNING"),
                    "INFO:     Shutting down",
                )
            },
        ),
        MEMORY_LABELS,
    ),
]
