"""An engine, a process or a host at one instant, as somebody records it: a JSON object or a row of a CSV file → samples, points."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from lensd_collectors.read.call_fields import instant_of as called_at
from lensd_collectors.read.cells import instant_of
from lensd_collectors.read.columns import ANSWERS, Measure, Table, is_when, measure_of
from lensd_collectors.read.gpu_columns import typed
from lensd_collectors.read.lines import Clock, dated
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
_SHARES: Final = ("lensd.host.disk.busy", "lensd.host.cpu.iowait")
_LABELS: Final = ("mount", "device", "gpu", "src", "pid", "host")
_INNER: Final = ("stat", "stats", "iteration", "sample")  # under which a poller keeps what it polled
_DAY: Final = re.compile(r"\d{4}[-/]\d\d[-/]\d\d|\d\d?[./]\d\d?[./]\d{4}")
_HOUR: Final = re.compile(r"\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?Z?")
_MIB: Final = 1 << 20
_LEAST_BYTES: Final = 1 << 30  # from here on a bare number is one of bytes


def has_engine(header: Iterable[str]) -> bool:
    """Whether columns measure an engine or its answers."""
    return any((measure := measure_of(name)) is not None and measure.table is not Table.CARD for name in header)


def is_series(header: Iterable[str]) -> bool:
    """Whether a table with these columns is such a record: an instant and two measures, or one that is no engine's and no count."""
    names = [name.strip() for name in header]
    if not any(is_when(name) for name in names):
        return False
    if any(_measure(name) is not None or _RSS.match(name) for name in names):
        return True
    measures = [measure for name in names if (measure := measure_of(name)) is not None]
    return len(measures) > 1 or any(measure.table is not Table.ENGINE and measure.column != ANSWERS for measure in measures)


def samples_of(
    record: Mapping[str, Any], *, engine: str | None, name: str, number: int, clock: Clock | None = None, is_row: bool = False
) -> list[Row]:
    """Rows of one record; empty where it measures nothing. `iter` and its kin of TensorRT-LLM's statistics are an engine's sample.

    `is_row`: of a table whose header is that of a series, so that one figure is enough.
    """
    inner = next((record[key] for key in _INNER if isinstance(record.get(key), dict)), None)
    if inner is not None:
        record = {**inner, **{key: value for key, value in record.items() if not isinstance(value, dict)}}
    lower = {str(key).strip().lower(): value for key, value in record.items()}
    at = _instant(_when(record), clock)
    src, line = f"{name}:{number}", number
    rows: list[Row] = []
    sample: dict[str, float] = {}
    cards: dict[str, dict[str, Any]] = {}
    answers: list[Row] = []
    labels = {key: str(lower[key])[:200] for key in _LABELS if isinstance(lower.get(key), str | int) and lower[key] != ""}
    for key, raw in record.items():
        named, value = str(key).strip(), _number(raw)
        if value is None or is_when(named):
            continue
        if held := _held(named, value):
            rows.append(GpuSample(seen_at=at, seq=line, src=src, **held))
        elif (found := _measure(named)) is not None:
            rows.append(_point(found, value, labels, at, src, engine))
        elif (measure := measure_of(named)) is None:
            continue
        elif measure.table is Table.ENGINE:
            sample.setdefault(measure.column, _scaled(measure, value))
        elif measure.table is Table.CARD and measure.labels[0][0] == "gpu":
            cards.setdefault(measure.labels[0][1], {}).setdefault(measure.column, typed(measure.column, _scaled(measure, value)))
        elif measure.table is Table.CARD:
            rows.append(GpuSample(seen_at=at, seq=line, src=src, process=measure.labels[0][1], rss_bytes=round(_scaled(measure, value))))
        else:
            text = msgspec.json.encode(dict(measure.labels)).decode()
            kept = answers if measure.column == ANSWERS else rows
            kept.append(Point(seen_at=at, name=measure.column, labels=text, value=_scaled(measure, value), src=src, engine=engine))
    sample |= _blocks_of(record)
    if not is_row and not ({"running", "waiting", "generation_tps"} & sample.keys()):
        sample = {}
    if sample or is_row:
        rows += (GpuSample(seen_at=at, seq=line, gpu=gpu, src=src, **card) for gpu, card in cards.items())
    if is_row or (answers and rows):
        rows += answers
    if sample and (is_row or "iter" in lower or rows or len(sample) > 1):
        rows.append(EngineSample(seen_at=at, seq=line, engine=engine, src=src, **sample))  # type: ignore[arg-type]
    return rows


def is_engine_key(key: str, column: str) -> bool:
    """Whether a record's key means this column of an engine's sample."""
    measure = measure_of(key)
    return (measure is not None and measure.table is Table.ENGINE and measure.column == column) or (
        column == "kv_usage" and key == "usedNumBlocks"
    )


def _when(record: Mapping[str, Any]) -> Any:
    """What says when it was; a day and an hour of two columns as one."""
    said = [value for key, value in record.items() if value not in (None, "") and is_when(str(key))]
    if len(said) > 1 and _DAY.fullmatch(str(said[0])) and _HOUR.fullmatch(str(said[1])):
        return f"{said[0]} {said[1]}"
    return said[0] if said else None


def _scaled(measure: Measure, value: float) -> float:
    """In the column's own unit, by the size of the number where nothing names the unit."""
    if measure.factor is not None:
        return round(value * measure.factor, 9)
    if measure.column.endswith("_bytes"):
        return value if value >= _LEAST_BYTES else value * _MIB
    return value if value <= 1 else value / 100


def _point(
    found: tuple[str, re.Match[str]], value: float, labels: dict[str, str], at: Instant | None, src: str, engine: str | None
) -> Point:
    name, match = found
    groups = match.groupdict()
    own = {**labels, "device": groups["device"]} if groups.get("device") else labels
    factor = 0.01 if name in _SHARES else _SIZES[(groups.get("unit") or "").lower()]
    return Point(seen_at=at, name=name, labels=msgspec.json.encode(own).decode(), value=value * factor, src=src, engine=engine)


def _blocks_of(record: Mapping[str, Any]) -> dict[str, float]:
    """KV usage of TensorRT-LLM's statistics."""
    blocks = record.get("kvCacheStats")
    if not isinstance(blocks, dict):
        return {}
    used, most = _number(blocks.get("usedNumBlocks")), _number(blocks.get("maxNumBlocks"))
    return {"kv_usage": used / most} if used is not None and most else {}


def _held(name: str, value: float) -> dict[str, Any]:
    """Memory of a process that its column calls by number, or of a container."""
    if match := _RSS.match(name):
        size = round(value * _SIZES[(match["unit"] or match["size"]).lower()])
        process = match["process"] or match["container"]
        return {"process": process, "rss_bytes": size, **({"pid": int(match["pid"])} if match["pid"] else {})}
    return {}


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
    if _number(value) is not None:
        return called_at(value, None)
    if not isinstance(value, str):
        return None
    if _HOUR.fullmatch(value):
        return clock.at("", value.removesuffix("Z")) if clock is not None else None
    return instant_of(value) or dated(value)
