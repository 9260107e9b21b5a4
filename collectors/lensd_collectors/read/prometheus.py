"""Prometheus text, one scrape or several after another → engine and GPU samples, points and facts; and the line behind a column."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from lensd_collectors.dialects import Dialect, GpuTable, load
from lensd_collectors.read import gpu_series
from lensd_collectors.read.engine_log import ranked
from lensd_collectors.read.lines import Clock, rfc3339
from lensd_collectors.read.samples import Series, engine_samples, group_of, picked
from lensd_collectors.read.settings import name_of, origin_of, spelled
from lensd_collectors.read.strays import Strays
from lensd_collectors.rows import ConfigFact, Instant, Point, Row

SAMPLE: Final = re.compile(
    r"^(?P<name>[A-Za-z_:][\w:]*)(?<!:)(?:\{(?P<labels>[^\"}]*(?:\"(?:[^\"\\]|\\.)*\"[^\"}]*)*)\})?"
    r"[ \t]+(?P<value>[+-]?(?:\d[\d.]*(?:[eE][+-]?\d+)?|\.\d+|[Ii]nf|NaN|nan))"
    r"(?:[ \t]+(?P<at>-?\d{9,}(?:\.\d+)?))?(?:[ \t]+#.*)?[ \t]*$"
)
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_META: Final = re.compile(r"^# (?:HELP|TYPE|UNIT|EOF)\b")
_SCRAPED: Final = re.compile(
    r"^#(?!\s*(?:HELP|TYPE|UNIT|EOF)\b).*?(?:\b(?P<at>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)|"
    r"\b(?P<time>\d\d:\d\d:\d\d) (?P<date>\d{4}-\d\d-\d\d)\b)"
)
_HOUR: Final = re.compile(r"\b(?:at|@|time[:=]?) (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?)\b")
_ABOVE: Final = 8  # lines above a scrape's first series that speak of it
_NAME_TIME: Final = re.compile(r"(?<!\d)(\d{4})-?(\d\d)-?(\d\d)[T_-](\d\d)[:-]?(\d\d)[:-]?(\d\d)(?!\d)")
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_PREFIX: Final = re.compile(r"[A-Za-z0-9]*[:_]?")  # of a product's metrics: `vllm:`, `tgi_`
_CARRIED: Final = re.compile(
    r"(?:ray_)?(?P<engine>vllm|sglang|llamacpp|lmdeploy)[:_](?=[a-z])"
)  # as Ray and OpenTelemetry's collector spell a name
_PARTS: Final = ("_bucket", "_sum", "_count")


class Scrape(NamedTuple):
    """One scrape of a file: its instant where the file says one, its series."""

    at: Instant | None
    series: list[Series]


class PrometheusRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    series: int
    unread_lines: int


def parse_line(line: str, number: int) -> Series | None:
    match = SAMPLE.match(line)
    if match is None:
        return None
    labels = {name: _unescaped(value) for name, value in _LABEL.findall(match["labels"] or "")}
    carried = _CARRIED.match(match["name"])
    metric = f"{carried['engine']}:{match['name'][carried.end() :]}" if carried else match["name"]
    return Series(metric, labels, float(match["value"]), number, _stamp(match["at"]))


def scrapes(lines: Iterable[str]) -> Iterator[Scrape]:
    """The scrapes of a text: a new one begins at a comment that names an instant and where a series comes a second time."""
    at, series, seen = None, list[Series](), set[tuple[str, tuple[tuple[str, str], ...]]]()
    for number, line in enumerate(lines, 1):
        said = _SCRAPED.match(line)
        one = None if line.startswith("#") else parse_line(line.strip(), number)
        key = (one.name, tuple(one.labels.items())) if one else None
        if series and (said or key in seen):
            yield Scrape(at, series)
            at, series, seen = None, [], set()
        if said:
            at = rfc3339(said["at"] or f"{said['date']}T{said['time']}")
        if one and key:
            series.append(one)
            seen.add(key)
            at = at or one.at
    if series:
        yield Scrape(at, series)


def read_prometheus(
    text: str, *, name: str, engine: str | None = None, at_us: Instant | None = None, clock: Clock | None = None
) -> PrometheusRows:
    """All rows of a text. A scrape's instant is what the text or the file name says, else `at_us`, else unknown.

    `clock`: of a comment that names an hour and no day.

    The file's time of last change is not taken: copying a folder gives all its scrapes the same one, and rates over that are wrong.
    """
    lines = text.split("\n")
    named = instant_in_name(name)
    rows: list[Row] = []
    count = 0
    for seq, scrape in enumerate(scrapes(lines)):
        at = scrape.at or (named if seq == 0 else None) or at_us or _of_hour(lines, scrape, clock)
        count += len(scrape.series)
        rows += rows_of_scrape(scrape.series, at=at, seq=seq, name=name, engine=engine)
    strays = Strays(name, engine, clock=clock)
    for number, line in enumerate(lines, 1):
        if line.startswith("#") and not _META.match(line):
            rows += strays.read(line, number, None) or ()
    known = count + sum(1 for line in lines if not line.strip() or _META.match(line) or _SCRAPED.match(line))
    return PrometheusRows(rows=rows, series=count, unread_lines=len(lines) - known)


def rows_of_scrape(series: list[Series], *, at: Instant | None, seq: int, name: str, engine: str | None) -> list[Row]:
    """What the series of one instant say of engines and cards."""
    rows: list[Row] = []
    for dialect in dialects_of(series):
        rows += engine_samples(dialect, series, engine=engine, seen_at=at, seq=seq, src=lambda one: f"{name}:{one.line}")
        rows += _points(dialect, series, at, name, engine)
        rows += _facts(dialect, series, at, name, engine)
    for table in gpu_tables(series):
        rows += gpu_series.gpu_samples(table, series, host=None, seen_at=at, seq=seq, src=lambda one: f"{name}:{one.line}")
    return rows


def _of_hour(lines: Sequence[str], scrape: Scrape, clock: Clock | None) -> Instant | None:
    """By a comment just above the scrape."""
    first = scrape.series[0].line
    for line in reversed(lines[max(0, first - _ABOVE) : first]):
        if not _META.match(line) and line.startswith("#") and (match := _HOUR.search(line)):
            return clock.at("", match["time"]) if clock is not None else None
    return None


def dialects_of(series: Iterable[Series]) -> list[Dialect]:
    """The engines whose metrics stand in a scrape."""
    prefixes = {one.name[: _PREFIX.match(one.name).end()] for one in series}  # type: ignore[union-attr]
    return [dialect for dialect in load().values() if dialect.recognise.metric_prefix in prefixes]


def gpu_tables(series: Iterable[Series]) -> list[GpuTable]:
    """The GPU exporters whose metrics stand in a scrape."""
    names = {one.name for one in series}
    return [
        dialect.gpu
        for dialect in load().values()
        if dialect.gpu is not None and dialect.recognise.metric_prefix is not None and not names.isdisjoint(dialect.gpu.names)
    ]


def instant_in_name(name: str) -> Instant | None:
    match = _NAME_TIME.search(Path(name).name)
    return rfc3339("{}-{}-{}T{}:{}:{}".format(*match.groups())) if match else None


def metric_line(lines: Sequence[str], column: str, at_line: int) -> int | None:
    """Number of the line that holds a row's `column`, where `at_line` is the row's `src`; None where there is no such line.

    A wide row is searched in its own scrape, for its own model and rank; of a sum the largest part is given. A histogram's `value` is
    its `_sum`, its `counts` the `_count`.
    """
    scrape = next((one for one in scrapes(lines) if one.series[0].line <= at_line <= one.series[-1].line), None)
    here = next((one for one in scrape.series if one.line == at_line), None) if scrape else None
    if scrape is None or here is None:
        return None
    for dialect in dialects_of(scrape.series):
        own = group_of(dialect, here.labels)
        group = [one for one in scrape.series if group_of(dialect, one.labels) in (own, (None, None))]
        found = picked(dialect.selectors.get(column, ()), group)
        if found:
            return max(found, key=lambda one: one.value).line
    for table in gpu_tables([here]):
        card = gpu_series.groups(table, scrape.series).get(gpu_series.place_of(table, here.labels), [])
        behind = gpu_series.behind(table, column, card)
        if behind:
            return max(behind, key=lambda one: one.value).line
    part = {"value": "_sum", "counts": "_count"}.get(column)
    base = _base(here.name)
    if part and base:
        labels = _without_le(here)
        return next((one.line for one in scrape.series if one.name == base + part and _without_le(one) == labels), None)
    return None


def _points(dialect: Dialect, series: list[Series], at: Instant | None, name: str, engine: str | None) -> list[Row]:
    histograms: dict[tuple[str, str], list[Series]] = {}
    rows: list[Point] = []
    of_row: list[Series] = []
    for one in series:
        base = _base(one.name)
        if base in dialect.points:
            labels = msgspec.json.encode(_without_le(one)).decode()
            histograms.setdefault((base, labels), []).append(one)
        elif one.name in dialect.points and one.value == one.value:
            labels = msgspec.json.encode(dict(one.labels)).decode()
            rows.append(Point(seen_at=at, name=one.name, labels=labels, value=one.value, src=f"{name}:{one.line}"))
            of_row.append(one)
    for (base, labels), parts in histograms.items():
        rows.append(_histogram(base, labels, parts, at, name))
        of_row.append(parts[0])
    for row, one in zip(rows, of_row, strict=True):
        row.model, rank = group_of(dialect, one.labels)
        row.engine = ranked(engine, rank)
    return list(rows)


def _histogram(base: str, labels: str, parts: list[Series], at: Instant | None, name: str) -> Point:
    """`buckets` are the finite upper bounds; `counts` one more, each bucket for itself; `value` the sum: OTLP's form."""
    total = next((one.value for one in parts if one.name.endswith("_count")), None)
    buckets = [one for one in parts if one.name.endswith("_bucket") and _is_number(one.labels.get("le"))]
    edges = sorted((float(one.labels["le"]), one.value) for one in buckets)
    finite = [(bound, count) for bound, count in edges if bound != float("inf")]
    whole = next((count for bound, count in edges if bound == float("inf")), total)
    cumulative = [count for _, count in finite] + ([whole] if whole is not None else [])
    counts = [max(0.0, count - before) for before, count in zip([0.0, *cumulative], cumulative, strict=False)]
    return Point(
        seen_at=at,
        name=base,
        labels=labels,
        value=next((one.value for one in parts if one.name.endswith("_sum")), None),
        buckets=[bound for bound, _ in finite],
        counts=counts,
        src=f"{name}:{parts[0].line}",
    )


def _facts(dialect: Dialect, series: list[Series], at: Instant | None, name: str, engine: str | None) -> list[Row]:
    facts: list[Row] = []
    for one in series:
        for label in dialect.infos.get(one.name, ()):
            value, fact = one.labels.get(label, "None"), name_of(label)
            if value not in ("None", ""):
                src, origin = f"{name}:{one.line}", origin_of(fact, given=False)
                facts.append(ConfigFact(seen_at=at, subject=engine, name=fact, value=spelled(fact, value), src=src, origin=origin))
    return facts


def _base(name: str) -> str:
    return next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), "")


def _without_le(one: Series) -> dict[str, str]:
    return {key: value for key, value in one.labels.items() if key != "le"}


def _is_number(text: str | None) -> bool:
    try:
        float(text or "x")
    except ValueError:
        return False
    return True


def _unescaped(value: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPES[match[0]], value) if "\\" in value else value


def _stamp(text: str | None) -> Instant | None:
    """Milliseconds in the Prometheus format, seconds in OpenMetrics."""
    if text is None:
        return None
    value = float(text)
    return Instant(round(value * (1e6 if value < 1e11 else 1e3)))
