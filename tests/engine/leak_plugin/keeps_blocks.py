"""A KV-cache leak on purpose: the blocks of every tenth request that ends are never given back.

vLLM calls `load` in each of its processes (group `vllm.general_plugins`); only the scheduler's, in the engine core, has a KV manager
that frees. `KVCacheManager.free` (vllm/v1/core/kv_cache_manager.py, 0.32.0) is what gives an ended request's blocks back; it is called
for a preempted request too, whose blocks are left alone here.
"""

import itertools
import os

EVERY = int(os.environ.get("LEAK_EVERY", "10"))


def load() -> None:
    """Puts the leak in; once a process, however often it is called."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    give_back = KVCacheManager.free
    if getattr(give_back, "leaks", False):
        return
    ended = itertools.count(1)

    def free(self, request):
        if not (request.is_finished() and next(ended) % EVERY == 0):
            give_back(self, request)

    free.leaks = True
    KVCacheManager.free = free
