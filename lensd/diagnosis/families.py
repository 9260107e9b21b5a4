"""Which settings, events and columns bear on a cause, by its family: what a verdict quotes beside the evidence of its rule."""

from typing import Final, NamedTuple


class Family(NamedTuple):
    """`settings` and `events`: patterns of names; `samples` and `cards`: columns, of which the highest and the first are looked at."""

    labels: str
    settings: str
    events: str
    samples: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()


_MEMORY: Final = Family(
    r"oom-|kv-cache-too-small|gpu-memory-|host-ram-oom|config-drift|crash-loop|cold-start",
    r"gpu_memory_utilization|max_model_len|mem_fraction_static|tensor_parallel_size|weights_bytes|max_num_(?:seqs|batched_tokens)|kv_cache_tokens"
    r"|num_gpu_blocks.*|.*cache_gb|swap_space|cpu_offload.*|quantization|free_gpu_memory_fraction|checkpoint_bytes|num_ctx|startup_.*|liveness_.*",
    r"engine\.(?:oom|load_oom|kv_\w+|memory_\w+|loaded|loading|ready|compile|download|initialized|alloc_failed|device_free)|container\..*"
    r"|host\.(?:oom|cgroup|memory).*|deploy\..*",
    ("running", "kv_usage"),
    ("used_bytes", "rss_bytes", "pid_used_bytes"),
)
FAMILIES: Final = (
    _MEMORY,
    Family(
        r"queue-|kv-preemption|server-overload|scheduler-|prefill-decode|slow-prefill|throughput|client-retry|unbounded|slow-decode-batch",
        r"max_num_seqs|max_running_requests|max_concurrent_requests|.*queue.*|kv_cache_tokens|max_num_batched_tokens|chunked_prefill_size|parallel"
        r"|max_model_len|max_tokens|slots|batch_size",
        r"engine\.(?:kv_capacity|kv_memory|preempted|retracted|concurrency)|request\.(?:timed|prefill|received|limits|aborted|refused_busy)|client\.retry",
        ("waiting", "running", "kv_usage", "preemptions_total", "generation_tokens_total", "aborted_total"),
    ),
    Family(
        r"auth-|route-|rate-limit",
        r"api_key|served_model_name|model|asks_for_model|api_base|proxy_pass|acl_.*|engine_key_variable|has_engine_key|lora_modules|enable_lora|rpm|tpm"
        r"|path_prefix|root_path",
        r"engine\.(?:route|adapter_loaded)|gateway\..*|upstream\..*|http\..*|note\..*",
        ("running",),
    ),
    Family(
        r"gateway-|client-read|zombie-|tool-call|output-cut",
        r".*timeout.*|proxy_.*|num_retries|client_max_retries|max_tokens|max_model_len",
        r"request\.(?:aborted|disconnected|state_lost|failed|call_leaked|timed)|gateway\..*|proxy\..*|host\.sockets?|engine\.slot",
        ("running", "aborted_total"),
    ),
    Family(
        r"prefix-|context-",
        r".*prefix_caching|disable_radix_cache|enable_block_reuse|max_model_len|num_ctx|runner_ctx|context_length|ctx_size|parallel|max_position_embeddings"
        r"|kv_cache_tokens|max_tokens|block_size",
        r"prompt\..*|request\.(?:too_long|truncated|prompt|reprocessed|prefix|prefill|reused)|engine\.kv_capacity|http\.invalid_request",
        ("prefix_hits_total",),
    ),
    Family(
        r"engine-|gpu-hardware|kv-cache-leak|slow-decode|regression|spec-decode",
        r"version|layers_\w+|n_gpu_layers|num_gpu|tensor_parallel_size|data_parallel_.*|max_num_seqs|enforce_eager|.*offload.*|grammar_backend|image",
        r"engine\.(?:dead|log\.error|start_failed|start_error|worker_\w+|undecodable|collective_timeout|broadcast_blocked|hung_rpc|prefix_reset_failed"
        r"|kv_pool_leak|version|offload|placement|weights_placed|ready|stopp\w+)|gpu\..*|lensd\.gpu.*|host\..*|bench\..*|request\.(?:decode|failed|aborted)",
        ("running", "kv_usage", "kv_tokens", "generation_tokens_total", "waiting"),
        ("sm_mhz", "throttle", "util", "ecc", "xid", "used_bytes"),
    ),
)
