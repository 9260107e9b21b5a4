"""A card's memory over time as bands upon each other, with the engines' limit and what happened meanwhile. Pure: items in, chart out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import altair as alt

from lensd.api.items import MemoryCard, MemoryMark, MemoryPart, MemoryPoint
from lensd.memory.composition import Band
from lensd.memory.units import GIB, gib
from lensd_dashboards.charts import Palette

TITLES: Final[dict[str, str]] = {
    Band.WEIGHTS: "Weights",
    Band.KV_USED: "KV cache, used",
    Band.KV_FREE: "KV cache, free or reusable",
    Band.KV_POOL: "KV cache",
    Band.RUNTIME: "Activations, graphs, runtime",
    Band.UNEXPLAINED: "Unexplained",
    Band.NOT_KNOWN: "Not known",
    Band.OTHERS: "Other processes",
    Band.DRIVER: "Driver",
    Band.FREE: "Free",
}
NOT_SAMPLED: Final = "Not sampled"
_COLOURS: Final = {
    Band.WEIGHTS: "#2f7f9e",
    Band.KV_USED: "#d9860a",
    Band.KV_FREE: "#e9c58a",
    Band.KV_POOL: "#c9a25a",
    Band.RUNTIME: "#6f6bb0",
    Band.UNEXPLAINED: "#cf3a45",
    Band.NOT_KNOWN: "#8a94a0",
    Band.OTHERS: "#5fa8a0",
    Band.DRIVER: "#5b6775",
    Band.FREE: "#dfe5ea",
}
_HEIGHT: Final = 300
_MARK_TITLES: Final = {"config": "Configuration", "start": "Start", "oom": "Out of memory"}

Row = dict[str, str | float]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in milliseconds since the epoch as charts count; `step_ms` is the length of a point's step."""

    since_ms: float
    until_ms: float
    step_ms: float


def chart(card: MemoryCard, marks: Sequence[MemoryMark], span: Span, palette: Palette) -> alt.LayerChart:
    """The bands of one card in GiB over the whole span; a time that was not sampled is grey and holds no band."""
    x = alt.X("at:T", scale=alt.Scale(domain=[span.since_ms, span.until_ms], type="utc"), axis=_time_axis(palette))
    layers = [_gaps(gaps(card, span), x, palette), _bands(bands(card, span), x, _top(card), palette)]
    if told := limits(card, span):
        layers.append(_limit(told, x, palette))
    if told := mark_rows(marks, span):
        layers += _rules(told, x, palette)
    made: alt.LayerChart = alt.layer(*layers).properties(height=_HEIGHT).configure_view(stroke=None)
    return made


def bands(card: MemoryCard, span: Span) -> list[Row]:
    """A row for each part that is known at each point, from `low` to `high` GiB; parts of which nothing is known take no room."""
    rows: list[Row] = []
    for number, run in enumerate(_runs(card.points, span)):
        for at, point in run:
            low = 0
            for part in point.parts:
                if part.bytes is None:
                    continue
                rows.append({
                    "at": at, "low": low / GIB, "high": (low + part.bytes) / GIB, "band": TITLES[part.band],
                    "whose": f"{number}/{part.band}/{part.engine or ''}", "name": name_of(part), "size": gib(part.bytes),
                })  # fmt: skip
                low += part.bytes
    return rows


def gaps(card: MemoryCard, span: Span) -> list[Row]:
    """The stretches between the first and the last sample in which there was none."""
    runs = [(run[0][0], run[-1][0]) for run in _runs(card.points, span)]
    return [{"at": before[1], "until": after[0]} for before, after in pairwise(runs)]


def limits(card: MemoryCard, span: Span) -> list[Row]:
    """What the engines on the card may use, at each point where all of them tell."""
    return [
        {"at": at, "limit": point.limit_bytes / GIB, "run": f"{number}", "size": gib(point.limit_bytes)}
        for number, run in enumerate(_runs(card.points, span))
        for at, point in run
        if point.limit_bytes is not None
    ]


def mark_rows(marks: Sequence[MemoryMark], span: Span) -> list[Row]:
    """A row for each mark inside the span; `down` points below the top, so that the words of neighbours stand under each other."""
    return [
        {
            "at": at, "kind": _MARK_TITLES.get(mark.kind, mark.kind), "text": mark.text, "engine": mark.engine or "",
            "down": 8 + 13 * (number % 3),
        }
        for number, mark in enumerate(marks)
        if span.since_ms <= (at := _ms(mark.at)) <= span.until_ms
    ]  # fmt: skip


def name_of(part: MemoryPart) -> str:
    """`Weights of e0`, `Other processes`."""
    title = TITLES.get(part.band, part.band)
    return f"{title} of {part.engine}" if part.engine else title


def unknown(point: MemoryPoint) -> list[str]:
    """The parts of which nothing is known at that point, as they are called."""
    return [name_of(part) for part in point.parts if part.bytes is None]


def _runs(points: Sequence[MemoryPoint], span: Span) -> Iterator[list[tuple[float, MemoryPoint]]]:
    """Points without a gap between them, each run closed by its last point at the end of its step."""
    run: list[tuple[float, MemoryPoint]] = []
    for point in points:
        at = _ms(point.seen_at)
        if run and at - run[-1][0] > 1.5 * span.step_ms:
            yield _closed(run, span)
            run = []
        run.append((at, point))
    if run:
        yield _closed(run, span)


def _closed(run: list[tuple[float, MemoryPoint]], span: Span) -> list[tuple[float, MemoryPoint]]:
    at, point = run[-1]
    return [*run, (min(at + span.step_ms, max(at, span.until_ms)), point)]


def _ms(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp() * 1000


def _top(card: MemoryCard) -> float:
    """The axis' end in GiB: the card's size, or the most that is known of it."""
    totals = [point.total_bytes or 0 for point in card.points]
    held = [sum(part.bytes or 0 for part in point.parts) for point in card.points]
    allowed = [point.limit_bytes or 0 for point in card.points]
    return max([1, *totals, *held, *allowed]) / GIB


def _bands(rows: list[Row], x: alt.X, top: float, palette: Palette) -> alt.Chart:
    titles = [title for title in TITLES.values() if any(row["band"] == title for row in rows)]
    colours = {TITLES[band]: colour for band, colour in _COLOURS.items()}
    legend = alt.Legend(title=None, orient="bottom", columns=5, symbolType="square", labelColor=palette.text, labelLimit=240)
    made: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_area(interpolate="step-after", line=False)
        .encode(
            x=x,
            y=alt.Y("low:Q", scale=alt.Scale(domain=[0, top], nice=False), axis=_size_axis(palette)),
            y2="high:Q",
            color=alt.Color("band:N", scale=alt.Scale(domain=titles, range=[colours[title] for title in titles]), legend=legend),
            detail="whose:N",
            opacity=alt.condition(f"datum.band == '{TITLES[Band.NOT_KNOWN]}'", alt.value(0.45), alt.value(0.95)),
            tooltip=[alt.Tooltip("name:N", title="Part"), alt.Tooltip("size:N", title="Size")],
        )
    )
    return made


def _gaps(rows: list[Row], x: alt.X, palette: Palette) -> alt.Chart:
    labelled = [row | {"what": NOT_SAMPLED} for row in rows]
    made: alt.Chart = (
        alt.Chart(alt.InlineData(values=labelled))
        .mark_rect(color=palette.muted, opacity=0.12)
        .encode(x=x, x2="until:T", tooltip=[alt.Tooltip("what:N", title="Sample")])
    )
    return made


def _limit(rows: list[Row], x: alt.X, palette: Palette) -> alt.Chart:
    made: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(interpolate="step-after", color=palette.mark, strokeWidth=2, strokeDash=[6, 3])
        .encode(x=x, y="limit:Q", detail="run:N", tooltip=[alt.Tooltip("size:N", title="The engines may use")])
    )
    return made


def _rules(rows: list[Row], x: alt.X, palette: Palette) -> list[Any]:
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=x,
        tooltip=[
            alt.Tooltip("at:T", title="At", format="%H:%M:%S", formatType="time"), alt.Tooltip("kind:N", title="What"),
            alt.Tooltip("text:N", title="Which"), alt.Tooltip("engine:N", title="Engine"),
        ],
    )  # fmt: skip
    rule = base.mark_rule(color=palette.failed, strokeWidth=1.5, strokeDash=[2, 2])
    text = base.mark_text(align="left", dx=4, fontSize=11, fontWeight=600, color=palette.failed)
    return [rule, text.encode(text="kind:N", y=alt.Y("down:Q", scale=None, axis=None))]


def _time_axis(palette: Palette) -> alt.Axis:
    return alt.Axis(
        title="UTC", format="%H:%M", grid=False, domain=False, labelColor=palette.muted, titleColor=palette.muted,
        titleFontWeight="normal", tickCount=8,
    )  # fmt: skip


def _size_axis(palette: Palette) -> alt.Axis:
    return alt.Axis(
        title="GiB", grid=True, gridColor=palette.grid, domain=False, ticks=False, labelColor=palette.muted, titleColor=palette.muted,
        titleFontWeight="normal", tickCount=6,
    )  # fmt: skip
