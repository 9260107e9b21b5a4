"""Metrics of GPUs, of processes and of the host's memory as rows of `gpu_samples`: one a card, one a process, one a host."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from lensd_collectors import conventions
from lensd_collectors.dialects import Dialect, GpuTable
from lensd_collectors.read import gpu_series
from lensd_collectors.read.gpu_columns import LARGEST, typed
from lensd_collectors.read.samples import Series
from lensd_collectors.rows import GpuSample, Instant, Row

from lensd.receive import values
from lensd.receive.values import Plain

BESIDE_SAMPLER: Final = "beside-sampler"
_GPU_TYPE: Final = "hw.type"
_GPU_ID: Final = "hw.id"
_LIMIT: Final = conventions.METRIC_HOST_MEMORY_LIMIT
_AVAILABLE: Final = conventions.METRIC_HOST_MEMORY_AVAILABLE
_OF_PROCESSES: Final = frozenset({"pid_used_bytes", "rss_bytes"})
_COLUMNS: Final = {**conventions.GPU_METRICS, conventions.METRIC_PROCESS_MEMORY: "rss_bytes"}
_FRESH_US: Final = 30_000_000
_CARDS: Final = 10_000

Labels = Mapping[str, Plain]
_Key = tuple[str | None, str | None, int | None, Instant]  # host, GPU, process, instant


class Measured(Protocol):
    """One value of a body, with what it is about."""

    name: str
    labels: dict[str, Plain]
    at: Instant
    value: float | None
    target: str | None


class GpuRows:
    """Remembers which cards our sampler tells of: an exporter's rows of the same card are left out, since two clocks make no counter."""

    def __init__(self, dialects: Mapping[str, Dialect], dropped: Counter[str]) -> None:
        self._tables = [each.gpu for each in dialects.values() if each.gpu is not None and each.recognise.metric_prefix is not None]
        self._exported = frozenset(name for table in self._tables for name in table.names)
        self._sampled: dict[Plain, Instant] = {}  # by UUID
        self.names = self._exported | {*_COLUMNS, _LIMIT, _AVAILABLE}
        self._dropped = dropped

    def rows(self, samples: Iterable[Measured], host: str | None) -> list[Row]:
        """The rows of one body's samples; `host` is its sender's."""
        known = [sample for sample in samples if sample.name in self.names and sample.value is not None]
        if not known:
            return []
        made: list[Row] = [*self._sampled_rows(known, host), *_host_rows(known, host)]
        scrapes: dict[tuple[str | None, Instant], list[Measured]] = {}
        for sample in known:
            if sample.name in self._exported and not self._is_beside(sample):
                scrapes.setdefault((sample.target, sample.at), []).append(sample)
        for (_, at), scrape in scrapes.items():
            series = [Series(each.name, _texts(each.labels), each.value or 0.0) for each in scrape]
            made += [row for table in self._tables for row in _exported_rows(table, series, at, host)]
        return made

    def _sampled_rows(self, samples: list[Measured], host: str | None) -> Iterable[Row]:
        found: dict[_Key, GpuSample] = {}
        for sample in samples:
            column = _COLUMNS.get(sample.name)
            pid = sample.labels.get(conventions.PROCESS_PID) if column in _OF_PROCESSES else None
            gpu = None if column == "rss_bytes" else _gpu(sample.labels)
            if column is None or sample.value is None or sample.labels.get(_GPU_TYPE, "gpu") != "gpu":
                continue
            if not isinstance(pid, int) if column in _OF_PROCESSES else gpu is None:
                continue  # of nobody
            where = values.text(sample.labels.get(conventions.HOST_NAME)) or host
            key = where, gpu, pid if isinstance(pid, int) else None, sample.at
            row = found.get(key)
            if row is None:
                row = found[key] = _row(key, sample.labels)
                self._note(sample)
            setattr(row, column, typed(column, sample.value))
        return found.values()

    def _note(self, sample: Measured) -> None:
        uuid = sample.labels.get(_GPU_ID)
        if uuid is None or uuid == _gpu(sample.labels):  # a number: every host has a card of it
            return
        if len(self._sampled) >= _CARDS:
            self._sampled.clear()
        self._sampled[uuid] = sample.at

    def _is_beside(self, sample: Measured) -> bool:
        """Whether our own sampler tells of the card that an exporter speaks of."""
        last = next((self._sampled[value] for value in sample.labels.values() if isinstance(value, str) and value in self._sampled), None)
        if last is None or abs(sample.at - last) > _FRESH_US:
            return False
        self._dropped[BESIDE_SAMPLER] += 1
        return True


def _gpu(labels: Labels) -> str | None:
    index = labels.get(conventions.GPU_INDEX, labels.get(_GPU_ID))
    mig = labels.get(conventions.MIG)
    return None if index is None else f"{index}/{mig}" if mig else str(index)


def _row(key: _Key, labels: Labels) -> GpuSample:
    host, gpu, pid, at = key
    place = "/".join(str(part) for part in (host or "-", gpu, pid) if part is not None)
    return GpuSample(
        seen_at=at,
        host=host,
        gpu=gpu,
        pid=pid,
        process=None if pid is None else values.text(labels.get(conventions.PROCESS_NAME)),
        pid_engine=None if pid is None else values.text(labels.get(conventions.ENGINE)),
        mig=values.text(labels.get(conventions.MIG)),
        src=f"scrape:{'proc' if gpu is None else 'gpu'}:{place}@{values.rfc3339(at)}",
    )


def _host_rows(samples: list[Measured], host: str | None) -> Iterator[Row]:
    """What of a host's memory can't be had; a row has both figures, or there is none."""
    found: dict[tuple[str | None, Instant], dict[str, float]] = {}
    for sample in samples:
        if sample.name in (_LIMIT, _AVAILABLE) and sample.value is not None:
            where = values.text(sample.labels.get(conventions.HOST_NAME)) or host
            found.setdefault((where, sample.at), {})[sample.name] = sample.value
    for (where, at), figures in found.items():
        if len(figures) == 2 and 0 <= figures[_AVAILABLE] <= figures[_LIMIT] < LARGEST:
            row = _row((where, None, None, at), {})
            row.total_bytes, row.rss_bytes = round(figures[_LIMIT]), round(figures[_LIMIT] - figures[_AVAILABLE])
            yield row


def _exported_rows(table: GpuTable, series: list[Series], at: Instant, host: str | None) -> list[GpuSample]:
    def src(one: Series) -> str:
        where, gpu, _ = gpu_series.place_of(table, one.labels, host)
        return f"scrape:exporter:{where or '-'}/{gpu or '-'}@{values.rfc3339(at)}"

    return gpu_series.gpu_samples(table, series, host=host, seen_at=at, seq=None, src=src)


def _texts(labels: Labels) -> dict[str, str]:
    return {key: found for key, value in labels.items() if (found := values.text(value)) is not None}
