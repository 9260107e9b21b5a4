"""Metric series of a GPU exporter's scrape → one wide row a card; the same for a file and for what the agent forwards."""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite

from lensd_collectors.dialects import GpuSource, GpuTable
from lensd_collectors.read.gpu_columns import card, mig, typed
from lensd_collectors.read.samples import Series
from lensd_collectors.rows import GpuSample, Instant

Place = tuple[str | None, str | None, str | None]  # host, gpu, mig


def gpu_samples(
    table: GpuTable,
    scrape: Iterable[Series],
    *,
    host: str | None,
    seen_at: Instant | None,
    seq: int | None,
    src: Callable[[Series], str],
) -> list[GpuSample]:
    """The rows of one scrape; `src` names the place of the first series of a row.

    `host` holds where no label says it. A value that stands for "none" leaves its column empty.
    """
    rows = []
    for (where, gpu, instance), own in groups(table, scrape, host).items():
        row = GpuSample(seen_at=seen_at, seq=seq, host=where, gpu=gpu, mig=instance, src=src(own[0]))
        for column in table.columns:
            value = _value(table, column, own)
            if value is not None:
                setattr(row, column, typed(column, value))
        rows.append(row)
    return rows


def groups(table: GpuTable, scrape: Iterable[Series], host: str | None = None) -> dict[Place, list[Series]]:
    """The series that the table reads, by the card they speak of."""
    names = table.names
    found: dict[Place, list[Series]] = {}
    for one in scrape:
        if one.name in names:
            found.setdefault(place_of(table, one.labels, host), []).append(one)
    return found


def place_of(table: GpuTable, labels: Mapping[str, str], host: str | None = None) -> Place:
    def label(what: str) -> str | None:
        return next((labels[name] for name in table.labels.get(what, ()) if labels.get(name)), None)

    instance, compute = label("instance"), label("compute")
    return label("host") or host, card(label("gpu") or label("uuid"), instance, compute), mig(instance, compute)


def behind(table: GpuTable, column: str, own: list[Series]) -> list[Series]:
    """The series of a card that make a column: all of a sum, else one; empty where there is none."""
    return next((parts for source in table.columns.get(column, ()) if (parts := _parts(table, source, own))), [])


def _value(table: GpuTable, column: str, own: list[Series]) -> float | None:
    for source in table.columns[column]:
        parts = _parts(table, source, own)
        if parts:
            return sum(part.value for part in parts) * source.factor
    return None


def _parts(table: GpuTable, source: GpuSource, own: list[Series]) -> list[Series]:
    """One series for each name of the source, the last where several pods share the card; empty where one is missing or has no value."""
    parts = [next((one for one in reversed(own) if one.name == name and _holds(table, one.value)), None) for name in source.names]
    found = [part for part in parts if part is not None]
    return found if len(found) == len(parts) else []


def _holds(table: GpuTable, value: float) -> bool:
    return isfinite(value) and (table.blank is None or value < table.blank)
