"""An engine, a process or a host at one instant, as somebody records it: a JSON object or a row of a CSV file → samples, points."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from lensd_collectors.dialects import load
from lensd_collectors.read.cells import instant_of
from lensd_collectors.read.lines import Clock, dated, rfc3339
from lensd_collectors.rows import EngineSample, GpuSample, Instant, Point, Row

_SIZES: Final = {"b": 1.0, "bytes": 1.0, "kb": 1e3, "kib": 1024.0, "mb": 1e6, "mib": 1024.0**2, "gb": 1e9, "gib": 1024.0**3, "": 1.0}
_SIZE: Final = r"(?:[_ (\[]+(?P<unit>bytes|[kKmMgG]i?[bB])[)\]]?)?(?P<rate>(?:/s|_s|ps|_per_s))?$"
# What a column measures, by its name, and the point it becomes: bytes, bytes/s, shares 0..1, counts.
_MEASURES: Final = (
    (re.compile(rf"(?:torch_)?(?:memory_)?allocated{_SIZE}", re.IGNORECASE), "lensd.torch.allocated"),
    (re.compile(rf"(?:torch_)?(?:memory_)?reserved{_SIZE}", re.IGNORECASE), "lensd.torch.reserved"),
    (re.compile(rf"inactive_split{_SIZE}", re.IGNORECASE), "lensd.torch.inactive_split"),
    (re.compile(r"num_alloc_retries$", re.IGNORECASE), "lensd.torch.alloc_retries"),
    (re.compile(r"num_ooms$", re.IGNORECASE), "lensd.torch.ooms"),
    (re.compile(rf"(?:disk_)?read{_SIZE}", re.IGNORECASE), "lensd.host.disk.read"),
    (re.compile(rf"(?P<device>\w+?)_rx{_SIZE}", re.IGNORECASE), "lensd.host.network.receive"),
    (re.compile(r"(?:(?P<device>(?:nvme|sd|md|dm|vd|xvd)\w*)_)?util_pct$", re.IGNORECASE), "lensd.host.disk.busy"),
    (re.compile(r"(?:cpu_)?iowait(?:_pct)?$", re.IGNORECASE), "lensd.host.cpu.iowait"),
    (re.compile(rf"(?:host_)?mem(?:ory)?_?available{_SIZE}", re.IGNORECASE), "lensd.host.memory.available"),
)
_RSS: Final = re.compile(
    r"rss_(?P<process>[A-Za-z][A-Za-z0-9.]*?)(?:_(?P<pid>\d+))?_(?P<unit>[kmg]i?b)$|(?P<container>container)_memory_current_(?P<size>[kmg]i?b)$",
    re.IGNORECASE,
)
_CARD: Final = re.compile(r"gpu(?P<gpu>\d+)_memory_used_(?P<unit>[kmg]i?b)$", re.IGNORECASE)
_SHARES: Final = ("lensd.host.disk.busy", "lensd.host.cpu.iowait")
_ENGINE: Final = {
    "running": (
        "num_requests_running",
        "requests_running",
        "running",
        "running_req",
        "running_reqs",
        "running_requests",
        "numactiverequests",
    ),
    "waiting": (
        "num_requests_waiting",
        "requests_waiting",
        "waiting",
        "waiting_req",
        "waiting_reqs",
        "waiting_requests",
        "numqueuedrequests",
    ),
    "finished_total": ("numcompletedrequests",),
    "slots": ("maxnumactiverequests",),
    "kv_usage": ("kv_cache_usage", "kv_cache_usage_perc", "kv_usage", "gpu_cache_usage_perc", "token_usage"),
    "prompt_tps": ("prompt_tok_s", "prompt_tokens_per_s", "prompt_tps", "pp_tok_s"),
    "generation_tps": ("gen_tok_s", "generation_tok_s", "gen_tps", "generation_tps", "gen_throughput", "tok_s", "tokens_per_s"),
    "prompt_tokens_total": ("prompt_tokens_total",),
    "generation_tokens_total": ("generation_tokens_total",),
    "preemptions_total": ("num_preemptions_total", "preemptions_total"),
}
_WHEN: Final = ("ts", "time", "polled", "date_utc", "time_utc", "timestamp", "at", "date", "datetime")
_LABELS: Final = ("mount", "device", "gpu", "src", "pid", "host")
_GPU: Final = {"sm_mhz": ("gpu_sm_mhz", "sm_mhz"), "temp_c": ("gpu_temp_c",), "power_w": ("gpu_power_w",), "util": ("gpu_util_pct",)}
_INNER: Final = ("stat", "stats", "iteration", "sample")  # under which a poller keeps what it polled
_LATENCY: Final = re.compile(r"(?P<what>ttft|itl|tpot|e2e)_(?P<rank>p\d\d|mean|median|avg)_(?P<unit>ms|s)$", re.IGNORECASE)
_US_DATE: Final = re.compile(r"(?P<month>\d\d)-(?P<day>\d\d)-(?P<year>\d{4}) (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?)")
FEWEST: Final = 2  # columns that measure something, and an instant: fewer is somebody else's table


def has_engine(header: Iterable[str]) -> bool:
    """Whether columns say how many requests run or wait."""
    names = {_bare(name) for name in header}
    return any(names & _spelled(column) for column in ("running", "waiting"))


@cache
def _spelled(column: str) -> frozenset[str]:
    """What a table calls a column: by itself, and as the engines' scrapes name it."""
    metrics = (name for dialect in load().values() for name in dialect.metrics.get(column, ()) if re.fullmatch(r"[\w:]+", name))
    return frozenset((*_ENGINE.get(column, ()), *(_bare(name) for name in metrics)))


def is_series(header: Iterable[str]) -> bool:
    """Whether a CSV file with these columns is such a record."""
    names = [name.strip() for name in header]
    if sum(1 for name in names if any(_bare(name) in _spelled(column) for column in _ENGINE)) > 1:
        return any(name.lower() in _WHEN for name in names)
    measured = sum(1 for name in names if _measure(name) is not None or _RSS.match(name) or _CARD.match(name))
    return measured > 0 and any(name.lower() in _WHEN for name in names)


def samples_of(
    record: Mapping[str, Any], *, engine: str | None, name: str, number: int, clock: Clock | None = None, beside_cards: bool = False
) -> list[Row]:
    """Rows of one record; empty where it measures nothing. `iter` and its kin of TensorRT-LLM's statistics are an engine's sample.

    `beside_cards`: a card's memory stands in the same record, so that one figure of the engine is enough.
    """
    inner = next((record[key] for key in _INNER if isinstance(record.get(key), dict)), None)
    if inner is not None:
        record = {**inner, **{key: value for key, value in record.items() if not isinstance(value, dict)}}
    lower = {str(key).strip().lower(): value for key, value in record.items()}
    lower |= {_bare(key): value for key, value in lower.items()}
    at = _instant(next((lower[key] for key in _WHEN if lower.get(key) not in (None, "")), None), clock)
    src, line = f"{name}:{number}", number
    rows: list[Row] = []
    labels = {key: str(lower[key])[:200] for key in _LABELS if isinstance(lower.get(key), str | int) and lower[key] != ""}
    for key, raw in record.items():
        if (said := _number(raw)) is not None and (latency := _LATENCY.match(str(key).strip())):
            factor = 1.0 if latency["unit"].lower() == "ms" else 1000.0
            point = f"lensd.latency.{latency['what'].lower()}_{latency['rank'].lower()}"
            rows.append(Point(seen_at=at, name=point, labels="{}", value=said * factor, src=src, engine=engine))
            continue
        value, measure = _number(raw), _measure(str(key).strip())
        if value is not None and (held := _held(str(key).strip(), value)):
            rows.append(GpuSample(seen_at=at, seq=line, src=src, **held))
            continue
        if value is None or measure is None:
            continue
        point, match = measure
        groups = match.groupdict()
        own = {**labels, "device": groups["device"]} if groups.get("device") else labels
        factor = 0.01 if point in _SHARES else _SIZES[(groups.get("unit") or "").lower()]
        text = msgspec.json.encode(own).decode()
        rows.append(Point(seen_at=at, name=point, labels=text, value=value * factor, src=src, engine=engine))
    sample = _sample(lower, record)
    card = {
        column: figure for column, names in _GPU.items() if (figure := _number(next((lower[one] for one in names if one in lower), None)))
    }
    if card and sample:
        card |= {"util": card["util"] / 100} if "util" in card else {}
        rows.append(GpuSample(seen_at=at, seq=line, gpu="#0", src=src, **card))  # type: ignore[arg-type]
    if sample and ("iter" in lower or rows or len(sample) > 1 or beside_cards):
        rows.append(EngineSample(seen_at=at, seq=line, engine=engine, src=src, **sample))  # type: ignore[arg-type]
    return rows


def is_engine_key(key: str, column: str) -> bool:
    """Whether a record's key means this column of an engine's sample."""
    return key.lower() in _spelled(column) or (column == "kv_usage" and key == "usedNumBlocks")


def _sample(lower: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for column in _ENGINE:
        value = next((number for one, said in lower.items() if one in _spelled(column) and (number := _number(said)) is not None), None)
        if value is not None:
            found[column] = value
    blocks = record.get("kvCacheStats")
    if isinstance(blocks, dict):
        used, most = _number(blocks.get("usedNumBlocks")), _number(blocks.get("maxNumBlocks"))
        if used is not None and most:
            found["kv_usage"] = used / most
    if not ({"running", "waiting", "generation_tps"} & found.keys()):
        return {}
    return found


def _held(name: str, value: float) -> dict[str, Any]:
    """Memory of a process, of a container or of a card, by a column that names it."""
    if match := _RSS.match(name):
        size = round(value * _SIZES[(match["unit"] or match["size"]).lower()])
        process = match["process"] or match["container"]
        return {"process": process, "rss_bytes": size, **({"pid": int(match["pid"])} if match["pid"] else {})}
    if match := _CARD.match(name):
        return {"gpu": match["gpu"], "used_bytes": round(value * _SIZES[match["unit"].lower()])}
    return {}


def _bare(name: str) -> str:
    """A metric's name without its product."""
    return name.strip().lower().rpartition(":")[2]


def _measure(name: str) -> tuple[str, re.Match[str]] | None:
    return next(((point, match) for pattern, point in _MEASURES if (match := pattern.match(name))), None)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number == number and abs(number) < 1e18 else None


def _instant(value: object, clock: Clock | None) -> Instant | None:
    number = _number(value)
    if number is not None:
        return Instant(round(number * 1e6)) if 1e8 < number < 1e11 else None
    if not isinstance(value, str):
        return None
    if other := _US_DATE.fullmatch(value):
        return rfc3339(f"{other['year']}-{other['month']}-{other['day']}T{other['time']}")
    if re.fullmatch(r"\d\d:\d\d:\d\d(?:[.,]\d+)?", value):
        return clock.at("", value) if clock is not None else None
    return instant_of(value) or dated(value)
