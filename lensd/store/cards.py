"""The last that a store knows of each card: what its device said, its processes, and in which state it is."""

from typing import Any, Final

from lensd_collectors import conventions as c

from lensd.store import queries
from lensd.store.interface import Cursor

COLUMNS: Final = (
    "mig", "unified", "used_bytes", "free_bytes", "total_bytes", "reserved_bytes", "util", "mem_util", "sm_mhz", "sm_max_mhz", "throttle",
    "temp_c", "temp_slowdown_c", "power_w", "power_limit_w", "ecc", "ecc_corrected", "xid", "retired_pages", "remapped_rows",
    "remap_pending", "remap_failed", "pcie_gen", "pcie_width", "pcie_replays",
)  # fmt: skip
"""Columns of gpu_samples that a device has; of each the last value of the minute before its last sample."""

_LATEST = """
with latest as (
  select host, gpu, max(seen_at) as last_at from gpu_samples
  where gpu is not null and pid is null and seen_at > (select max(seen_at) - interval 1 day from gpu_samples)
  group by all
), recent as (
  select s.*, last_at from gpu_samples s join latest on s.gpu = latest.gpu and s.host is not distinct from latest.host
  where seen_at > last_at - interval 1 minute and seen_at > (select min(last_at) - interval 1 minute from latest)
)"""
_DEVICES = f"""{_LATEST}
select host, gpu, max(seen_at) as last_sample_at, {", ".join(f"arg_max({name}, seen_at) as {name}" for name in COLUMNS)}
from recent where pid is null group by host, gpu
"""
_PROCESSES = f"""{_LATEST}
select host, gpu, pid, arg_max(process, seen_at) as process, arg_max(pid_engine, seen_at) as engine,
       arg_max(pid_used_bytes, seen_at) as used_bytes
from recent where pid is not null and seen_at > last_at - interval 20 second
group by host, gpu, pid order by used_bytes desc nulls last, pid
"""
_STATES = f"""
with told as (
  select host, seen_at, attr(fields, '{c.GPU_STATE}') as state, attr(fields, '{c.SOURCE_REASON}') as reason,
         attr(fields, '{c.ABOUT_GPU}') as gpu
  from events where name = '{c.EVENT_GPU_STATE}' and seen_at > (select max(seen_at) - interval 7 day from events)
)
select host, gpu, arg_max(state, seen_at) as state, arg_max_null(reason, seen_at) as state_reason, max(seen_at) as state_at
from told where state is not null and gpu is not null group by all
"""


def cards(cursor: Cursor) -> list[dict[str, Any]]:
    """Every card of the last day of the store, or that a word of its state came of in its last week; by host and GPU.

    Each with `processes`, those that used most first. A card that is lost has a state and keeps the values of its last sample.
    """
    found = {(row["host"], row["gpu"]): row for row in queries.rows(cursor, _DEVICES)}
    for state in queries.rows(cursor, _STATES):
        found.setdefault((state["host"], state["gpu"]), {}).update(state)
    for process in queries.rows(cursor, _PROCESSES):
        card = found.get((process.pop("host"), process.pop("gpu")))
        if card is not None:
            card.setdefault("processes", []).append(process)
    return [found[place] for place in sorted(found, key=in_order)]


def in_order(place: tuple[str | None, str]) -> tuple[str, int, str]:
    """Sorts the cards of all hosts by host and number."""
    host, gpu = place
    number = gpu.partition("/")[0]
    return host or "", int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 1 << 30, gpu
