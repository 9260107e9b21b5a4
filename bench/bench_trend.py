"""How many of two hundred made-up courses of memory the leak rules tell rightly, how soon, and what asking costs at each tick.

usage: bench_trend.py     prints a table and, as its last line, one JSON object that is also kept in bench/results/trend.json

The courses are those of tests/lensd/store/trend_series.py, from a seed that no threshold was tuned on. The cost is processor time of one
rule at one tick over the last day of a host with eight cards read once a second and eight engines scraped every five.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "lensd" / "store")]

from origin import origin  # noqa: E402
from trend_drive import RULES, judged  # noqa: E402
from trend_series import T0, S  # noqa: E402

from lensd.diagnosis.evaluate import evaluate  # noqa: E402
from lensd.diagnosis.runbook import load  # noqa: E402
from lensd.diagnosis.scope import Scope  # noqa: E402
from lensd.store.catalog import HELD  # noqa: E402
from lensd.store.memory import MemoryStore  # noqa: E402

SEED: Final = 60_221_408
LEAST_RIGHT: Final = 0.95
DAY_S: Final = 86_400
ROUNDS: Final = 7
COSTLY: Final = (*RULES.values(), "scheduler-deadlock-never-fits")

_DAY: Final = (
    f"insert into {HELD}.engine_samples by name select make_timestamp({T0} + i * 5000000) as seen_at, 'e' || j as engine, 'm' as model,"
    " if(i // 60 % 3 = 0, 0.0, 8.0) as running, 0.0 as waiting, if(i // 60 % 3 = 0, 0.0, 0.6) as kv_usage, i * 100.0 as"
    f" generation_tokens_total, true as up, make_timestamp({T0 - DAY_S * S}) as start_at, 'scrape:e' || j || '@' || i as src"
    f" from range({DAY_S // 5}) r(i), range(8) q(j)",
    f"insert into {HELD}.gpu_samples by name select make_timestamp({T0} + i * 1000000) as seen_at, 'h' as host, j::varchar as gpu,"
    " 76546048000 as used_bytes, 8388608000 as free_bytes, 85520809984 as total_bytes, 0.9 as util, 'nvml:' || j || '@' || i as src"
    f" from range({DAY_S}) r(i), range(8) q(j)",
    f"insert into {HELD}.gpu_samples by name select make_timestamp({T0} + i * 1000000) as seen_at, 'h' as host, j::varchar as gpu,"
    " 1000 + j as pid, 75497472000 as pid_used_bytes, 'e' || j as pid_engine, 'nvml:' || j || 'p@' || i as src"
    f" from range({DAY_S}) r(i), range(8) q(j)",
    f"insert into {HELD}.requests by name select (i * 7919)::ubigint as request_key, 1 as revision, 'r' || i as request_id,"
    f" 'e' || i % 8 as engine, make_timestamp({T0} + i * 432000) as started_at, make_timestamp({T0} + i * 432000 + 2000000) as ended_at,"
    " if(i % 50 = 0, 'caller_gone', 'ok') as outcome, 100 as prompt_tokens from range(200000) r(i)",
)


def costs() -> dict[str, float]:
    """Milliseconds of processor time of each rule at one tick, nothing being wrong: the median of some ticks."""
    store, books = MemoryStore(memory_limit="4GiB"), load()
    found: dict[str, float] = {}
    with store.cursor() as cursor:
        for statement in _DAY:
            cursor.execute(statement)
        for name in COSTLY:
            spent = []
            for number in range(ROUNDS):
                began = time.process_time()
                evaluation = evaluate(cursor, [books[name]], Scope(to_us=T0 + (DAY_S - 60 - number) * S), timeout_s=60.0)
                spent.append((time.process_time() - began) * 1000)
                if evaluation.findings:
                    raise SystemExit(f"bench_trend: {name} fires on a healthy day")
            found[name] = statistics.median(spent)
    store.close()
    return found


def main() -> int:
    told, spent = judged(SEED), costs()
    share = told.right / told.told
    figures: dict[str, dict[str, Any]] = {
        "courses": {"value": told.told, "unit": "courses"},
        "right": {"value": round(share, 4), "unit": "share"},
    }
    figures |= {
        "false_alarms": {"value": len(told.false_alarms), "unit": "courses"},
        "missed": {"value": len(told.missed), "unit": "courses"},
    }
    print(f"{told.right} of {told.told} told rightly")
    print(f"alarms on {', '.join(told.false_alarms) or 'nothing healthy'}; missed {', '.join(told.missed) or 'none'}")
    print(f"{'rule':<32} {'median, min':>12} {'longest, min':>13} {'CPU a tick, ms':>15}")
    for kind, name in RULES.items():
        median, longest = told.median_s[kind], told.longest_s[kind]
        figures[f"{name}_detection"] = {"value": round(median), "unit": "s since the first loss, median"}
        figures[f"{name}_detection_longest"] = {"value": round(longest), "unit": "s since the first loss"}
        print(f"{name:<32} {median / 60:>12.1f} {longest / 60:>13.1f} {spent[name]:>15.1f}")
    for name, value in spent.items():
        figures[f"{name}_tick"] = {"value": round(value, 1), "unit": "ms of CPU"}
    print(f"{COSTLY[-1]:<32} {'':>12} {'':>13} {spent[COSTLY[-1]]:>15.1f}")
    budget = {"name": "courses told rightly", "limit": LEAST_RIGHT, "value": round(share, 4), "held": share >= LEAST_RIGHT}
    line = json.dumps({**origin("trend"), "figures": figures, "ratios": {}, "budgets": [budget]})
    (ROOT / "bench" / "results" / "trend.json").write_text(line + "\n")
    print(line)
    return 0 if budget["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
