# ruff: noqa: E501  (lines as programs print them)
"""What is never given back, and what never fits: as logs, scrapes and tables of people show it, and what only looks like it."""

import incident_texts as t
from incident_shape import Incident


def smi(*rows: tuple[str, int, int]) -> str:
    """nvidia-smi's CSV: clock, MiB used, per cent of utilisation."""
    head = "timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]"
    return t.lines(head, *(f"{t.DAY.replace('-', '/')} {clock}.000, 0, {used} MiB, 81559 MiB, {util} %" for clock, used, util in rows))


def idle(clock: str, kv: float) -> str:
    return t.stats(clock, running=0, waiting=0, kv=kv, prompt=0.0, generation=0.0)


STUCK = tuple(t.stats(f"10:2{m}:{s}0", running=0, waiting=3, kv=0.0, prompt=0.0, generation=0.0) for m in (0, 1) for s in range(6))
CAPACITY = "GPU KV cache size: 39,104 tokens"
SCRAPED = {"num_requests_running": 0.0, "num_requests_waiting": 0.0}
SGLANG = ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage")
LLAMACPP = ("llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:kv_cache_usage_ratio")


def at_rest(clock: str, running: str, waiting: str, usage: str) -> str:
    """What somebody has picked out of a scrape of an engine that counts as used what it keeps for reuse."""
    values = {running: 0.0, waiting: 0.0, usage: 0.42}
    return t.lines(f"# scraped_at {t.DAY}T{clock}Z", *(f'{name}{{model_name="m"}} {value}' for name, value in values.items()))


NAMED = [
    Incident(
        "two scrapes an hour apart, with nobody there and a third of the cache gone",
        {
            "a.prom": t.scrape(
                "02:00:00", **SCRAPED, kv_cache_usage_perc=0.334, generation_tokens_total=88123.0, num_preemptions_total=0.0
            ),
            "b.prom": t.scrape(
                "03:00:00", **SCRAPED, kv_cache_usage_perc=0.334, generation_tokens_total=88123.0, num_preemptions_total=0.0
            ),
        },
        "kv-cache-leak",
        "engine",
        ('kv_cache_usage_perc{engine="0",model_name="qwen3-32b"} 0.334', 'num_requests_running{engine="0",model_name="qwen3-32b"} 0.0'),
    ),
    Incident(
        "a healthy trace beside an engine that holds its memory with nobody there",
        {
            "trace.json": t.spans(t.engine_span(queue=0.01, prefill=0.2, decode=1.5, e2e=1.8, completion_tokens=90, finish_reason="stop")),
            "m1.prom": t.scrape("01:00:00", **SCRAPED, kv_cache_usage_perc=0.91),
            "m2.prom": t.scrape("03:00:00", **SCRAPED, kv_cache_usage_perc=0.91),
        },
        "kv-cache-leak",
        "engine",
        ('kv_cache_usage_perc{engine="0",model_name="qwen3-32b"} 0.91',),
    ),
    Incident(
        "the old words of the log, and each evening's last line higher than the one before",
        {
            "server.out": t.lines(
                *(
                    t.log(
                        clock,
                        f"Avg prompt throughput: {rate} tokens/s, Avg generation throughput: {rate} tokens/s, Running: {running} reqs, Swapped: 0 reqs, "
                        f"Pending: 0 reqs, GPU KV cache usage: {kv}%, CPU KV cache usage: 0.0%.",
                        source="metrics.py:455",
                    )
                    for clock, running, kv, rate in (
                        ("08:00:00", 6, 44.0, 210.5),
                        ("08:30:00", 0, 6.1, 0.0),
                        ("11:00:00", 4, 39.0, 180.0),
                        ("11:30:00", 0, 14.8, 0.0),
                        ("16:00:00", 5, 61.0, 190.2),
                        ("16:30:00", 0, 27.3, 0.0),
                        ("16:32:00", 0, 27.3, 0.0),
                    )
                )
            )
        },
        "kv-cache-leak",
        "engine",
        ("Running: 0 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 27.3%",),
    ),
    Incident(
        "the card fills up hour by hour between the jobs",
        {
            "smi.csv": smi(*((f"{hour:02d}:00:00", 61_204 + 2_150 * hour, 0) for hour in range(9))),
            "engine.log": t.lines(*(idle(f"{hour:02d}:00:04", 0.0) for hour in range(9))),
        },
        "gpu-memory-leak",
        "gpu",
        ("78404 MiB",),
    ),
    Incident(
        "a prompt that fits the model and not the cache",
        {
            "engine.log": t.lines(
                t.started("10:00:00"),
                t.log("10:00:01", "non-default args: {'model_tag': 'Qwen/Qwen3-32B', 'max_model_len': 65536}", source="utils.py:253"),
                t.log("10:01:00", CAPACITY, source="kv_cache_utils.py:1087", process="EngineCore pid=77"),
                t.ready(),
                *STUCK,
            )
        },
        "scheduler-deadlock-never-fits",
        "queue",
        ("GPU KV cache size: 39,104 tokens", "Running: 0 reqs, Waiting: 3 reqs, GPU KV cache usage: 0.0%"),
    ),
]

UNNAMED = [
    Incident(
        "three lines of SGLang's metrics at rest, its prefix cache kept",
        {"a.prom": at_rest("01:00:00", *SGLANG), "b.prom": at_rest("03:00:00", *SGLANG)},
    ),
    Incident(
        "three lines of llama.cpp's metrics at rest, its slots kept",
        {"a.prom": at_rest("01:00:00", *LLAMACPP), "b.prom": at_rest("03:00:00", *LLAMACPP)},
    ),
    Incident(
        "the cache empties a moment after the last request",
        {"engine.log": t.lines(t.stats("08:00:00", running=6, waiting=0, kv=44.0), idle("08:00:10", 12.0), idle("08:00:20", 0.0))},
    ),
    Incident(
        "a card that comes to a level and stays",
        {
            "smi.csv": smi(
                *((f"{h:02d}:00:00", used, 0) for h, used in enumerate((61_204, 66_300, 68_900, 69_700, 70_012, 70_096, 70_102, 70_102)))
            ),
            "engine.log": t.lines(*(idle(f"{hour:02d}:00:04", 0.0) for hour in range(8))),
        },
    ),
    Incident(
        "they wait, none runs, and all that is let in fits",
        {
            "engine.log": t.lines(
                t.started("10:00:00"),
                t.log("10:00:01", "non-default args: {'model_tag': 'Qwen/Qwen3-32B', 'max_model_len': 16384}", source="utils.py:253"),
                t.log("10:01:00", CAPACITY, source="kv_cache_utils.py:1087", process="EngineCore pid=77"),
                t.ready(),
                *STUCK,
            )
        },
    ),
    Incident(
        "the line stands for half a minute and then moves",
        {
            "engine.log": t.lines(
                t.log("10:00:01", "non-default args: {'model_tag': 'Qwen/Qwen3-32B', 'max_model_len': 65536}", source="utils.py:253"),
                t.log("10:01:00", CAPACITY, source="kv_cache_utils.py:1087", process="EngineCore pid=77"),
                *STUCK[:3],
                t.stats("10:20:40", running=3, waiting=0, kv=41.0),
                t.stats("10:20:50", running=3, waiting=0, kv=44.0),
            )
        },
    ),
]
