"""An engine's `/metrics`, forwarded under the engine's own names, and whether it answered at all."""

import logging
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.engine import Engine, Fetch, FetchError, FetchFailure

log = logging.getLogger("lensd.agent")

PREFIXES: Final[dict[str, tuple[str, ...]]] = {
    "vllm": ("vllm:",),
    "sglang": ("sglang:", "sglang_"),
    "llamacpp": ("llamacpp:",),
    "trtllm": ("trtllm_", "nv_"),
    "tgi": ("tgi_",),
}
START_TIME: Final = "process_start_time_seconds"
ALSO: Final = frozenset({START_TIME, "http_requests_total"})
HISTOGRAMS_EVERY_NS: Final = 10_000_000_000


class Value(msgspec.Struct, frozen=True):
    """One gauge or counter of a scrape."""

    name: str
    labels: dict[str, str]
    value: float
    counter: bool


class Histogram(msgspec.Struct, frozen=True):
    """One histogram of a scrape; `counts` are per bucket, one more than `bounds`."""

    name: str
    labels: dict[str, str]
    bounds: list[float]
    counts: list[float]
    sum: float
    count: float


class Seen(msgspec.Struct, frozen=True):
    """What a scrape showed of the engine as a whole; `start_s` is its process's start, where it says so."""

    up: bool
    why_not: FetchFailure | None = None
    start_s: float | None = None


def parse(text: str, prefixes: tuple[str, ...]) -> Iterator[Value | Histogram]:
    """The engine's own metrics in a Prometheus text, with the names on the wire; raises ValueError for text that is none.

    Series that only say when a counter was made (`_created`) and what is about the Python process are left out.
    """
    kept = (line for line in text.splitlines(keepends=True) if _of_engine(line, prefixes))
    for family in text_string_to_metric_families("".join(kept)):
        if family.type in ("gauge", "counter", "unknown", "untyped", "info", "stateset"):
            if family.type == "gauge" and family.name.endswith("_created"):
                continue
            for sample in family.samples:
                yield Value(sample.name, sample.labels, sample.value, family.type == "counter")
        elif family.type == "histogram":
            yield from _histograms(family)
        else:  # summary
            for sample in family.samples:
                yield Value(sample.name, sample.labels, sample.value, sample.name.endswith(("_count", "_sum")))


def _of_engine(line: str, prefixes: tuple[str, ...]) -> bool:
    name = line.split(" ", 3)[2] if line.startswith(("# HELP ", "# TYPE ")) and line.count(" ") > 2 else line
    return name.startswith(prefixes) or name.partition("{")[0].partition(" ")[0] in ALSO


def _histograms(family: Metric) -> Iterator[Histogram]:
    """One histogram per label set: running bucket totals become counts per bucket."""
    found: dict[tuple[tuple[str, str], ...], tuple[list[tuple[float, float]], dict[str, float]]] = {}
    for sample in family.samples:
        labels = {key: value for key, value in sample.labels.items() if key != "le"}
        buckets, totals = found.setdefault(tuple(sorted(labels.items())), ([], {}))
        if sample.name.endswith("_bucket"):
            buckets.append((float(sample.labels["le"]), sample.value))
        else:
            totals[sample.name.rpartition("_")[2]] = sample.value
    for labels_key, (buckets, totals) in found.items():
        buckets.sort()
        bounds = [bound for bound, _ in buckets if bound != float("inf")]
        running = [total for _, total in buckets]
        count = totals.get("count", running[-1] if running else 0.0)
        if len(running) == len(bounds):  # no +Inf bucket: its total is the count
            running.append(count)
        counts = [max(0.0, now - before) for before, now in zip([0.0, *running], running, strict=False)]
        yield Histogram(family.name, dict(labels_key), bounds, counts, totals.get("sum", 0.0), count)


class Scraper:
    """Scrapes one engine; each call forwards a scrape with one instant, in one body: all gauges and counters, histograms every 10 s.

    Each time the engine begins to answer, stops to, or fails in another way, an event `lensd.engine.reach` says so.
    """

    def __init__(self, engine: Engine, exporter: Exporter, fetch: Fetch, clock_ns: Callable[[], int]) -> None:
        self._engine, self._exporter, self._fetch, self._clock_ns = engine, exporter, fetch, clock_ns
        self._unreadable_told = False
        self._reach: tuple[FetchFailure | None] | None = None  # what the last event said; None: nothing said yet
        self._histograms_at_ns: int | None = None
        self._prefixes = PREFIXES.get(engine.kind, ("vllm:", "sglang:", "llamacpp:"))
        self._common = {**engine.attributes, conventions.SCRAPE_TARGET: f"{engine.url}/metrics"}

    def scrape(self) -> Seen:
        """Forwards what the engine says now; a target that gives no 200 gives `up` 0 and why, as `error.type`."""
        try:
            body = self._fetch(self._engine, "/metrics")
        except FetchError as error:
            return self._down(error)
        at_ns = self._clock_ns()
        self._tell_reach(None, at_ns)
        try:
            parsed = list(parse(body.decode("utf-8", "replace"), self._prefixes))
        except ValueError:  # it answers, so it is up; what it says can't be read
            parsed = []
            if not self._unreadable_told:
                log.warning(
                    "%s/metrics of engine %s is no Prometheus text; only whether it answers is known", self._engine.url, self._engine.name
                )
                self._unreadable_told = True
        start_s: float | None = None
        with_histograms = self._histograms_due(at_ns)
        with self._exporter.batch() as batch:
            batch.gauge(conventions.METRIC_UP, 1.0, at_ns=at_ns, attributes=self._common)
            for each in parsed:
                attributes = {**each.labels, **self._common}
                if isinstance(each, Histogram):
                    if with_histograms:
                        batch.histogram(
                            each.name,
                            bounds=each.bounds,
                            counts=each.counts,
                            sum=each.sum,
                            count=each.count,
                            at_ns=at_ns,
                            attributes=attributes,
                        )
                    continue
                forward = batch.counter if each.counter else batch.gauge
                forward(each.name, each.value, at_ns=at_ns, attributes=attributes)
                if each.name == START_TIME:
                    start_s = each.value
        return Seen(True, start_s=start_s)

    def _histograms_due(self, at_ns: int) -> bool:
        last = self._histograms_at_ns
        if last is not None and abs(at_ns - last) < HISTOGRAMS_EVERY_NS:
            return False
        self._histograms_at_ns = at_ns
        return True

    def _down(self, error: FetchError) -> Seen:
        at_ns = self._clock_ns()
        attributes = {**self._common, conventions.ERROR_TYPE: error.why.value}
        self._exporter.gauge(conventions.METRIC_UP, 0.0, at_ns=at_ns, attributes=attributes)
        self._tell_reach(error, at_ns)
        return Seen(False, error.why)

    def _tell_reach(self, error: FetchError | None, at_ns: int) -> None:
        """Says whether the engine answers and why not, where that is not what was said last; the first scrape says it too."""
        why = None if error is None else error.why
        if self._reach == (why,):
            return
        self._reach = (why,)
        attributes: dict[str, str | int | None] = {**self._common}
        if error is not None:
            attributes |= {conventions.ERROR_TYPE: error.why.value, conventions.HTTP_STATUS: error.status}
        severity = "info" if error is None else "warning"
        self._exporter.event(conventions.EVENT_ENGINE_REACH, at_ns=at_ns, attributes=attributes, severity=severity)
