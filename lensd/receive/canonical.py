"""Metrics of an OTLP body as engine samples, GPU samples, points and config facts, under the names that the dialects give them."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.dialects import Dialect
from lensd_collectors.read.samples import Series, engine_samples, group_of
from lensd_collectors.read.settings import name_of, origin_of, spelled
from lensd_collectors.rows import ConfigFact, Instant, Point, Row

from lensd.receive import values
from lensd.receive.engines import Engines
from lensd.receive.gpu_rows import GpuRows
from lensd.receive.restarts import Restarts
from lensd.receive.samples import Labels, Sample, samples
from lensd.receive.scrapes import Scrapes
from lensd.receive.starts import Starts
from lensd.receive.values import Plain

_ANYONES: Final = frozenset({conventions.METRIC_UP, "process_start_time_seconds"})  # metrics that do not say what was scraped
_NOT_LABELS: Final = frozenset({conventions.SCRAPE_TARGET, conventions.ENGINE_KIND})
_FACTS: Final = 10_000
_HISTOGRAM_EVERY_US: Final = 10_000_000 - 1  # senders count in nanoseconds: two instants may be rounded towards each other
_HISTOGRAMS: Final = 100_000
_PLUGINS_DIALECT: Final = "vllm"
_ADAPTERS: Final = "vllm:lora_requests_info"  # there once an engine serves LoRA adapters
BESIDE_SCRAPE: Final = "beside-scrape"


class Canonical:
    """Turns metrics into rows; remembers which engines it has seen and which facts it has told. Not for several threads at once."""

    def __init__(
        self, dialects: Mapping[str, Dialect], *, keep_all_points: bool = False, heard: Engines | None = None, told: Starts | None = None
    ) -> None:
        self._dialects = dialects
        self._heard = heard or Engines()
        self._restarts, self._scrapes = Restarts(told or Starts()), Scrapes()
        self._keep_all = keep_all_points
        self._by_metric = _first_dialect(dialects)
        self._by_point = {name: dialect for dialect in reversed(list(dialects.values())) for name in dialect.points}
        self._any_points = frozenset(self._by_point)
        self._infos = {metric: labels for dialect in dialects.values() for metric, labels in dialect.infos.items()}
        self._engines: set[str] = set()
        self._histograms: dict[tuple[str | None, str, str], Instant] = {}
        self._facts: dict[tuple[str | None, str], str] = {}
        self.dropped: Counter[str] = Counter()  # points left out, by reason: unknown, beside-scrape, beside-sampler, those of samples()
        self._gpus = GpuRows(dialects, self.dropped)

    def rows(self, message: Any, received_at: int) -> dict[str, list[Row]]:
        """The rows of an ExportMetricsServiceRequest."""
        made: dict[str, list[Row]] = {}
        for resource in message.resource_metrics:
            about = values.attributes(resource.resource.attributes)
            metrics = [metric for scope in resource.scope_metrics for metric in scope.metrics]
            found = [sample for metric in metrics for sample in samples(metric, about, received_at, self.dropped)]
            found = self._one_source(found, received_at)
            host = values.text(about.get(conventions.HOST_NAME))
            engine_rows, events = self._engine_samples(found, received_at)
            for table, rows in (
                ("gpu_samples", self._gpus.rows(found, host)),
                ("engine_samples", engine_rows),
                ("events", events),
                ("points", self._points(found)),
                ("config_facts", self._config_facts(found)),
            ):
                if rows:
                    made.setdefault(table, []).extend(rows)
        return made

    def _one_source(self, samples: list[Sample], received_at: int) -> list[Sample]:
        """Without what a plugin says of an engine while its scrape answers: counters of two clocks in one column are no counter."""
        kept: list[Sample] = []
        for sample in samples:
            if sample.name == _ADAPTERS and sample.engine is not None:
                self._heard.adapts(sample.engine)
            if sample.is_nameless:
                sample.engine = self._heard.only(_PLUGINS_DIALECT, received_at) or sample.engine
            if sample.engine is None or not self._is_of_engine(sample):
                kept.append(sample)
            elif sample.target is not None:
                if sample.name != conventions.METRIC_UP or sample.value:
                    self._scrapes.answered(sample.engine, sample.at)
                kept.append(sample)
            elif self._scrapes.covers(sample.engine, sample.at):
                self.dropped[BESIDE_SCRAPE] += 1
            else:
                kept.append(sample)
        return kept

    def _is_of_engine(self, sample: Sample) -> bool:
        return sample.name in self._by_metric or sample.name in self._any_points or sample.name in self._infos

    def _engine_samples(self, samples: list[Sample], received_at: int) -> tuple[list[Row], list[Row]]:
        """The wide rows, and the restarts that show in them."""
        scrapes: dict[tuple[str, Instant], list[Sample]] = {}
        for sample in samples:
            if sample.engine is not None and sample.value is not None and sample.buckets is None and sample.name in self._by_metric:
                scrapes.setdefault((sample.engine, sample.at), []).append(sample)
        made: list[Row] = []
        events: list[Row] = []
        for (engine, at), scrape in sorted(scrapes.items(), key=lambda item: item[0][1]):
            src = _source(scrape[0])
            series = [Series(sample.name, _texts(sample.labels), sample.value or 0.0) for sample in scrape]
            for dialect in self._dialects_of(engine, scrape, received_at):
                rows = engine_samples(dialect, series, engine=engine, seen_at=at, seq=None, src=_always(src))
                made += rows
                events += self._restarts.events(engine, scrape[0].source, rows)
                for row in rows:
                    if row.model is not None:
                        self._heard.serves(engine, row.model, at)
        return made, events

    def _dialects_of(self, engine: str, scrape: list[Sample], received_at: int) -> list[Dialect]:
        """The dialects whose own metrics stand in a scrape; for a scrape of `up` alone, that of the engine where it is one."""
        own = {}
        for sample in scrape:
            if sample.name not in _ANYONES:
                dialect = self._dialects.get(sample.kind or "", self._by_metric[sample.name])
                own[dialect.name] = dialect
        if own:
            self._know(engine, next(iter(own)), scrape, received_at)
            return list(own.values())
        for sample in scrape:
            if sample.name == conventions.METRIC_UP and (sample.is_named or engine in self._engines):  # anyone's `up` is not an engine's
                self._know(engine, sample.kind, scrape, received_at)
                return [self._dialects.get(sample.kind or "", self._by_metric[sample.name])]
        return []

    def _know(self, engine: str, dialect: str | None, scrape: list[Sample], received_at: int) -> None:
        if len(self._engines) < _FACTS:
            self._engines.add(engine)
        if not scrape[0].is_nameless:
            self._heard.heard(engine, dialect, received_at)

    def _points(self, samples: list[Sample]) -> list[Row]:
        made: list[Row] = []
        for sample in samples:
            if sample.name in self._any_points or self._keep_all:
                labels = {key: value for key, value in sample.labels.items() if key not in _NOT_LABELS}
                if sample.engine is not None:
                    labels[conventions.ENGINE] = sample.engine
                text = values.json(labels)
                if sample.buckets is not None and not self._is_due(sample, text):
                    continue
                made.append(
                    Point(
                        seen_at=sample.at,
                        name=sample.name,
                        labels=text,
                        value=sample.value,
                        buckets=sample.buckets,
                        counts=sample.counts,
                        src=_source(sample),
                        engine=sample.engine,
                        model=self._model(sample),
                    )
                )
            elif sample.name not in self._by_metric and sample.name not in self._infos and sample.name not in self._gpus.names:
                self.dropped["unknown"] += 1
        return made

    def _model(self, sample: Sample) -> str | None:
        dialect = self._by_point.get(sample.name)
        return None if dialect is None else group_of(dialect, _texts(sample.labels))[0]

    def _is_due(self, sample: Sample, labels: str) -> bool:
        """Whether a histogram is to be kept: of each, one in 10 s of its own time, since a row of them is as long as thirty gauges."""
        series = sample.engine, sample.name, labels
        last = self._histograms.get(series)
        if last is not None and not self._keep_all and abs(sample.at - last) < _HISTOGRAM_EVERY_US:
            return False
        if len(self._histograms) >= _HISTOGRAMS:
            self._histograms.clear()
        self._histograms[series] = sample.at
        return True

    def _config_facts(self, samples: list[Sample]) -> list[Row]:
        """Labels of info gauges, told when they are new or have changed."""
        made: list[Row] = []
        for sample in samples:
            for label in self._infos.get(sample.name, ()):
                name = name_of(label)
                value = _fact_value(name, sample.labels.get(label))
                if value is None or value == self._facts.get((sample.engine, name)):
                    continue
                if len(self._facts) >= _FACTS:
                    self._facts.clear()
                self._facts[sample.engine, name] = value
                origin = origin_of(name, given=False)
                made.append(
                    ConfigFact(seen_at=sample.at, subject=sample.engine, name=name, value=value, src=_source(sample), origin=origin)
                )
        return made


def _first_dialect(dialects: Mapping[str, Dialect]) -> dict[str, Dialect]:
    """Metric name -> the first dialect that has it in a column of engine_samples."""
    made: dict[str, Dialect] = {}
    for dialect in dialects.values():
        for selectors in dialect.selectors.values():
            for selector in selectors:
                made.setdefault(selector.name, dialect)
    return made


def _fact_value(name: str, label: Plain) -> str | None:
    """A label's value as that of the fact `name`: Prometheus clients write Python's None and True."""
    value = values.text(label)
    return None if value in (None, "None") else spelled(name, value)


def _always(src: str) -> Callable[[Series], str]:
    return lambda _: src


def _texts(labels: Labels) -> dict[str, str]:
    return {key: found for key, value in labels.items() if (found := values.text(value)) is not None}


def _source(sample: Sample) -> str:
    target = values.text(sample.labels.get(conventions.SCRAPE_TARGET)) or sample.engine or "-"
    return f"scrape:{target}@{values.rfc3339(sample.at)}"
