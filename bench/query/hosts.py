"""What two engines and four cards tell each second beside the requests, as SQL over the seconds of a time."""

from collections.abc import Mapping
from typing import Final

SECONDS: Final = "create or replace temp table seconds as select s, make_timestamp($begin + s * 1000000) as began from range($lo, $hi) t(s)"
_ENGINES: Final = """
select began as seen_at, 0 as seq, 'e' || n as engine, ['llama-8b', 'qwen-32b'][1 + n] as model, 4 + hash(s, n) % 9 as running,
       if(s % 3600 < 60, hash(s, n, 1) % 12, 0) as waiting, 0.2 + (s % 900) / 3000.0 as kv_usage, 131072 as kv_tokens,
       s // 600 as preemptions_total, s * 900.0 as prompt_tokens_total, s * 1100.0 as generation_tokens_total,
       s * 900.0 as prefix_queries_total, s * 300.0 as prefix_hits_total, s * 4.0 as finished_total, true as up,
       make_timestamp($begin) as start_at, 'scrape:e' || n || '@' || s as src
from seconds cross join range(2) t(n)
"""
_CARDS: Final = """
select began as seen_at, 0 as seq, 'gpu-host-e' || g // 2 as host, g::varchar as gpu, 70000000000 + hash(s, g) % 900000000 as used_bytes,
       85899345920 - 70000000000 - hash(s, g) % 900000000 as free_bytes, 85899345920 as total_bytes, 500000000 as reserved_bytes,
       (hash(s, g, 1) % 100) / 100.0 as util, 1700.0 + hash(s, g, 2) % 90 as sm_mhz, '' as throttle, 55.0 + hash(s, g, 3) % 9 as temp_c,
       420.0 + hash(s, g, 4) % 200 as power_w, 0 as ecc, 0 as xid, 'scrape:gpu:' || g || '@' || s as src
from seconds cross join range(4) t(g)
"""
_POINTS: Final = """
select began as seen_at, 'vllm:' || name as name, '{"model_name":"m","engine":"0"}' as labels, s * 3.5 as value,
       [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]::double[] as buckets,
       [s // 9, s // 7, s // 3, s // 2, s // 4, s // 20, s // 90, s // 400, 0, 0]::double[] as counts,
       'scrape:e' || n || '@' || s as src, 'e' || n as engine, ['llama-8b', 'qwen-32b'][1 + n] as model
from seconds cross join range(2) t(n)
  cross join (values ('time_to_first_token_seconds'), ('request_queue_time_seconds'), ('inter_token_latency_seconds')) names(name)
where s % 10 = 0
"""
_FACTS: Final = """
select began as seen_at, 'e' || n as subject, name, value, 'scrape:e' || n || '@0' as src, 'effective' as origin
from seconds cross join range(2) t(n)
  cross join (values ('max_model_len', '32768'), ('max_num_seqs', '128'), ('gpu_memory_utilization', '0.9'), ('version', '0.32.0'))
    facts(name, value)
where s = 0
"""
TABLES: Final[Mapping[str, str]] = {"engine_samples": _ENGINES, "gpu_samples": _CARDS, "points": _POINTS, "config_facts": _FACTS}
