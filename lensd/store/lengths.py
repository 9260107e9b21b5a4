"""How long the store's requests were, for a capacity plan: percentiles over what is settled, went well and says its tokens."""

from typing import Any

from lensd.store.interface import Cursor
from lensd.store.queries import rows

_REQUESTS = """
select
  count(prompt_tokens + completion_tokens) as requests,
  quantile_disc(prompt_tokens + completion_tokens, 0.5) as tokens_p50,
  quantile_disc(prompt_tokens + completion_tokens, 0.95) as tokens_p95,
  quantile_disc(prompt_tokens + completion_tokens, 0.99) as tokens_p99,
  max(prompt_tokens + completion_tokens) as tokens_max,
  count(completion_tokens) as answers,
  quantile_disc(completion_tokens, 0.99) as answer_p99,
  count(ttft_ms) as firsts,
  quantile_cont(ttft_ms, 0.95) / 1000 as ttft_p95_s,
  count(tpot_ms) as rates,
  quantile_cont(tpot_ms, 0.95) / 1000 as tpot_p95_s
from requests
where settled and outcome = 'ok' and ($engine is null or engine = $engine) and ($model is null or coalesce(served_model, model) = $model)
"""
_SAMPLES = """
select count(running) as samples, quantile_disc(running, 0.99) as running_p99, max(running) as running_max
from engine_samples where ($engine is null or engine = $engine) and ($model is null or model is null or model = $model)
"""
_OF = {
    # a percentile -> the count of what it is over
    "tokens_p50": "requests",
    "tokens_p95": "requests",
    "tokens_p99": "requests",
    "tokens_max": "requests",
    "answer_p99": "answers",
    "ttft_p95_s": "firsts",
    "tpot_p95_s": "rates",
    "running_p99": "samples",
    "running_max": "samples",
}
_WHOLE = ("running_p99", "running_max")


def lengths(cursor: Cursor, engine: str | None, model: str | None, least: int) -> dict[str, Any]:
    """The fields of `lensd.memory.lengths.Lengths`; a percentile over fewer than `least` values is None."""
    given = {"engine": engine, "model": model}
    found: dict[str, Any] = {}
    for query in (_REQUESTS, _SAMPLES):
        found |= rows(cursor, query, given)[0]
    told = {name: found[name] if found[count] >= least else None for name, count in _OF.items()}
    whole = {name: int(value) for name in _WHOLE if (value := told[name]) is not None}
    return {"requests": found["requests"], "samples": found["samples"], **told, **whole}
