"""Altair charts of decided things: the six-stage waterfall and the bar of exclusive shares. Pure: records in, chart out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from lensd.records import Gap, Stage, StageState, StageTime
from lensd_dashboards import wording

UNATTRIBUTED = "Unattributed"
_ROW_HEIGHT = 34
_ALL = 0.98  # from here on a bar of shares shows nothing that its figures do not
_UNREACHED = (StageState.NOT_REACHED, StageState.NOT_OBSERVED)

Row = dict[str, str | float | bool]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of one theme; states and shares read on its background."""

    ok: str
    slow: str
    failed: str
    unattributed: str
    text: str
    muted: str
    grid: str
    mark: str
    shares: tuple[str, ...]  # six stages in order


LIGHT = Palette(
    ok="#2f7f9e", slow="#d9860a", failed="#cf3a45", unattributed="#a3abb5", text="#1f2933", muted="#7a8694", grid="#e6e9ed", mark="#6b3fa0",
    shares=("#b9c4d0", "#8d9db0", "#d9a441", "#5fa8a0", "#2f7f9e", "#6f6bb0"),
)  # fmt: skip
DARK = Palette(
    ok="#4ea3c4", slow="#e7a23c", failed="#e8636c", unattributed="#6d7682", text="#e6e9ed", muted="#8f9aa7", grid="#2c333c", mark="#b794e6",
    shares=("#5b6775", "#8593a3", "#d9a441", "#5fb3aa", "#4ea3c4", "#8f8bd6"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at an instant of the request."""

    at_ms: float
    text: str


def first_token(stages: Sequence[StageTime], ttft_ms: float | None) -> Mark | None:
    """The mark of the first token.

    `ttft_ms` counts from when the gateway had the request line, the axis from the request's first instant. Without a TTFT, which only
    a streamed answer has, it is the engine's first token, and says so.
    """
    begun = {entry.stage: entry.start_ms for entry in stages if entry.state not in _UNREACHED}
    if ttft_ms is not None:
        return Mark(at_ms=(begun.get(Stage.AUTH_ROUTING) or 0.0) + ttft_ms, text=f"TTFT {wording.duration(ttft_ms)}")
    decode = begun.get(Stage.DECODE)
    return Mark(at_ms=decode, text=f"first token in the engine {wording.duration(decode)}") if decode is not None else None


def waterfall(
    stages: Sequence[StageTime],
    unattributed_ms: float | None,
    gaps: Sequence[Gap],
    total_ms: float | None,
    mark: Mark | None = None,
    palette: Palette = LIGHT,
) -> alt.LayerChart:
    """Six rows (and one for unattributed time) on one linear axis in milliseconds, with figures to the right of the rows."""
    whole = _extent(stages, gaps, total_ms)
    rows = [wording.stage(entry.stage) for entry in stages]
    if unattributed_ms:
        rows.append(UNATTRIBUTED)
    bars = waterfall_bars(stages, gaps if unattributed_ms else (), total_ms)
    figures = waterfall_figures(stages, unattributed_ms, total_ms)
    layers = _bars(bars, rows, figures, whole, palette)
    if mark is not None and mark.at_ms <= whole:
        layers.extend(_mark(mark, whole, palette))
    chart: alt.LayerChart = (
        alt.layer(*layers)
        .resolve_scale(y="independent")
        .properties(height=_ROW_HEIGHT * len(rows), padding={"top": 22 if mark else 4, "left": 2, "right": 2, "bottom": 2})
        .configure_view(stroke=None)
    )
    return chart


def waterfall_bars(stages: Sequence[StageTime], gaps: Sequence[Gap], total_ms: float | None) -> list[Row]:
    """One row a bar: `start_ms`, `end_ms`, how it is filled and what its tooltip says. Stages without a time have no bar."""
    bars: list[Row] = []
    for entry in stages:
        for start, length in _segments(entry):
            bars.append({
                "row": wording.stage(entry.stage),
                "start_ms": start,
                "end_ms": start + length,
                "state": wording.words(entry.state),
                "look": f"{entry.state}, estimated" if entry.estimated else str(entry.state),
                "estimated": entry.estimated,
                "took": wording.duration(length),
                "alone": f"{wording.duration(entry.exclusive_ms)} ({wording.share(entry.exclusive_ms, total_ms)})",
                "from": (entry.source or "unknown") + (", estimated" if entry.estimated else ""),
            })  # fmt: skip
    for gap in gaps:
        bars.append({
            "row": UNATTRIBUTED,
            "start_ms": gap.start_ms,
            "end_ms": gap.start_ms + gap.duration_ms,
            "state": _between(gap),
            "look": "unattributed",
            "estimated": False,
            "took": wording.duration(gap.duration_ms),
            "alone": f"{wording.duration(gap.duration_ms)} ({wording.share(gap.duration_ms, total_ms)})",
            "from": "covered by no stage",
        })  # fmt: skip
    return bars


def waterfall_figures(stages: Sequence[StageTime], unattributed_ms: float | None, total_ms: float | None) -> dict[str, str]:
    """What stands to the right of each row: time, share of the whole, `≈` where estimated; or why there is no time."""
    figures = {wording.stage(entry.stage): _figure(entry, total_ms) for entry in stages}
    if unattributed_ms:
        figures[UNATTRIBUTED] = f"{wording.duration(unattributed_ms)}  ·  {wording.share(unattributed_ms, total_ms)}"
    return figures


def share_parts(stages: Sequence[StageTime], unattributed_ms: float | None) -> list[Row]:
    """Exclusive time of each stage and unattributed time, with `share` in 0..1 of their sum; parts without time are left out."""
    parts = [(wording.stage(entry.stage), entry.exclusive_ms or 0.0) for entry in stages]
    parts.append((UNATTRIBUTED, unattributed_ms or 0.0))
    whole = sum(length for _, length in parts)
    return [
        {
            "part": name,
            "order": float(order),
            "ms": length,
            "share": length / whole,
            "took": wording.duration(length),
            "percent": wording.share(length, whole),
        }
        for order, (name, length) in enumerate(parts)
        if length > 0
    ]


def share_bar(stages: Sequence[StageTime], unattributed_ms: float | None, palette: Palette = LIGHT) -> alt.Chart | None:
    """One stacked bar of what each stage took alone; None where one stage took nearly all, or nothing has a time."""
    parts = share_parts(stages, unattributed_ms)
    if not parts or max(float(part["share"]) for part in parts) >= _ALL:
        return None
    colours = {wording.stage(stage): colour for stage, colour in zip(Stage, palette.shares, strict=True)}
    colours[UNATTRIBUTED] = palette.unattributed
    shown = [str(part["part"]) for part in parts]
    labels = _lookup({str(part["part"]): f"{part['part']} {part['percent']}" for part in parts}, "datum.label")
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=parts))
        .mark_bar(height=14)
        .encode(
            x=alt.X("share:Q", stack="zero", scale=alt.Scale(domain=[0, 1]), axis=None),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=shown, range=[colours[name] for name in shown]),
                legend=alt.Legend(title=None, orient="bottom", columns=7, symbolType="square", labelColor=palette.text, labelExpr=labels),
            ),
            order=alt.Order("order:Q"),
            tooltip=[alt.Tooltip("part:N", title="Stage"), alt.Tooltip("took:N", title="Alone"), alt.Tooltip("percent:N", title="Share")],
        )
        .properties(height=58)
        .configure_view(stroke=None)
    )
    return chart


def notes(stages: Sequence[StageTime], unattributed_ms: float | None, gaps: Sequence[Gap], clock_skew_ms: float | None) -> list[str]:
    """What the bars alone do not say: which are estimates, where the unattributed time lies, how far the clocks are apart."""
    said = []
    estimated = [wording.stage(entry.stage).lower() for entry in stages if entry.estimated]
    if estimated:
        said.append(f"≈ estimated, drawn pale with a dashed edge: {', '.join(estimated)}.")
    if unattributed_ms and gaps:
        places = (f"{wording.duration(gap.duration_ms)} {_between(gap)}" for gap in gaps)
        said.append(f"Unattributed: {'; '.join(places)}.")
    if clock_skew_ms:
        said.append(f"The hosts' clocks differ by about {wording.duration(abs(clock_skew_ms))}; times are shown as they came.")
    return said


def _between(gap: Gap) -> str:
    before, after = (wording.stage(name).lower() for name in gap.between)
    return f"between {before} and {after}"


def _segments(entry: StageTime) -> tuple[tuple[float, float], ...]:
    if entry.segments:
        return entry.segments
    if entry.start_ms is not None and entry.duration_ms is not None:
        return ((entry.start_ms, entry.duration_ms),)
    return ()


def _extent(stages: Sequence[StageTime], gaps: Sequence[Gap], total_ms: float | None) -> float:
    ends = [start + length for entry in stages for start, length in _segments(entry)]
    ends += [gap.start_ms + gap.duration_ms for gap in gaps]
    return max([total_ms or 0.0, *ends]) or 1.0


def _figure(entry: StageTime, total_ms: float | None) -> str:
    if entry.duration_ms is None:
        return wording.words(entry.state)
    about = "≈ " if entry.estimated else ""
    figure = f"{about}{wording.duration(entry.duration_ms)}  ·  {wording.share(entry.exclusive_ms, total_ms)}"
    return figure if entry.state == StageState.OK else f"{figure}  ·  {wording.words(entry.state)}"


def _bars(bars: list[Row], rows: list[str], figures: Mapping[str, str], whole: float, palette: Palette) -> list[Any]:
    looks = {
        "ok": palette.ok, "slow": palette.slow, "failed": palette.failed, "not_reached": palette.muted, "not_observed": palette.muted,
    }  # fmt: skip
    colours = looks | {f"{look}, estimated": colour for look, colour in looks.items()} | {"unattributed": palette.unattributed}
    base = alt.Chart(alt.InlineData(values=bars)).encode(
        x=alt.X("start_ms:Q", scale=alt.Scale(domain=[0, whole], nice=False), axis=_time_axis(whole, palette)),
        x2="end_ms:Q",
        color=alt.Color("look:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=None),
        stroke=alt.Stroke("look:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=None),
        # An estimate is drawn as one: pale with a dashed edge. A measured bar's edge keeps a stage of microseconds visible.
        fillOpacity=alt.condition("datum.estimated", alt.value(0.28), alt.value(0.92)),
        strokeDash=alt.condition("datum.estimated", alt.value([4, 3]), alt.value([1, 0])),
        tooltip=[
            alt.Tooltip("row:N", title="Stage"), alt.Tooltip("state:N", title="State"), alt.Tooltip("took:N", title="Took"),
            alt.Tooltip("alone:N", title="Alone"), alt.Tooltip("from:N", title="Seen by"),
        ],
    )  # fmt: skip
    untimed = [row for row, text in figures.items() if text in {wording.words(state) for state in _UNREACHED}]
    timed = base.mark_bar(height=18, strokeWidth=1.5, cornerRadius=2).encode(
        y=alt.Y("row:N", scale=alt.Scale(domain=rows), axis=_row_axis(untimed, palette))
    )
    # A second, right-hand axis over the same rows carries the figures, so that they line up in a column.
    beside = (
        alt.Chart(alt.InlineData(values=[{"row": row} for row in rows]))
        .mark_point(opacity=0)
        .encode(y=alt.Y("row:N", scale=alt.Scale(domain=rows), axis=_figure_axis(figures, untimed, palette)))
    )
    return [timed, beside]


def _mark(mark: Mark, whole: float, palette: Palette) -> tuple[alt.Chart, alt.Chart]:
    base = alt.Chart(alt.InlineData(values=[{"at": mark.at_ms, "label": mark.text}])).encode(
        x=alt.X("at:Q", scale=alt.Scale(domain=[0, whole], nice=False))
    )
    late = mark.at_ms > 0.8 * whole
    text = base.mark_text(
        align="right" if late else "left",
        dx=-5 if late else 5,
        y=-8,
        font="Source Sans, sans-serif",
        fontSize=13,
        fontWeight=600,
        color=palette.mark,
    )
    return base.mark_rule(color=palette.mark, strokeWidth=1.5, strokeDash=[5, 3], y=-14), text.encode(text="label:N")


def _time_axis(whole: float, palette: Palette) -> alt.Axis:
    in_seconds = whole >= 10_000
    return alt.Axis(
        title=f"{'seconds' if in_seconds else 'milliseconds'} from the request's first instant",
        labelExpr="format(datum.value / 1000, ',~f')" if in_seconds else "format(datum.value, ',~f')",
        grid=True, gridColor=palette.grid, domain=False, ticks=False, tickCount=8, labelPadding=6, labelFontSize=12, titleFontSize=12,
        labelColor=palette.muted, titleColor=palette.muted, titleFontWeight="normal",
    )  # fmt: skip


def _row_axis(untimed: Sequence[str], palette: Palette) -> alt.Axis:
    return alt.Axis(
        title=None, domain=False, ticks=False, labelFontSize=13, labelPadding=10, labelLimit=160, grid=False,
        labelColor=_dimmed(untimed, palette),
    )  # fmt: skip


def _figure_axis(figures: Mapping[str, str], untimed: Sequence[str], palette: Palette) -> alt.Axis:
    return alt.Axis(
        title=None, orient="right", domain=False, ticks=False, labelFontSize=13, labelPadding=12, labelLimit=240, grid=False,
        labelColor=_dimmed(untimed, palette), labelExpr=_lookup(figures, "datum.label"),
    )  # fmt: skip


def _dimmed(rows: Sequence[str], palette: Palette) -> Any:
    return {"condition": {"test": f"indexof({json.dumps(list(rows))}, datum.value) >= 0", "value": palette.muted}, "value": palette.text}


def _lookup(texts: Mapping[str, str], key: str) -> str:
    return f"({json.dumps(dict(texts), ensure_ascii=False)})[{key}]"
