"""An engine that starts with a KV cache smaller than its longest request, as versions before 0.32 did by one block.

vLLM calls `load` in each of its processes (group `vllm.general_plugins`). `_check_enough_kv_cache_memory` (vllm/v1/core/kv_cache_utils.py,
0.32.0) is what refuses such a start; here it refuses none.
"""


def load() -> None:
    """Takes the check out; once a process, however often it is called."""
    from vllm.v1.core import kv_cache_utils

    kv_cache_utils._check_enough_kv_cache_memory = lambda *_, **__: None
