"""Memory: where each card's memory went, what the engines on it may use, and what is not known of it."""

import time
from collections.abc import Mapping, Sequence

import streamlit as st
from lensd_dashboards import data, elements, memory_charts, wording

from lensd.api.items import GpuItem, Memory, MemoryCard
from lensd.errors import LensdError
from lensd.memory.units import gib

SPANS = {"15 min": 15 * 60, "1 h": 3600, "6 h": 6 * 3600, "24 h": 86_400}
REFRESH_S = 10
_STATES = {"ok": "green", "lost": "red", "reset_required": "red", "failing": "red"}


def chosen() -> tuple[str | None, int]:
    """The engine, or None for all, and how many seconds back."""
    engines = st.session_state.setdefault("memory_engines", set())
    known = sorted(engines | ({given} if (given := st.query_params.get("engine")) else set()))
    engine, span, _ = st.columns([2, 1, 2])
    name = engine.selectbox("Engine", known, index=None, placeholder="all", key="engine", bind="query-params", accept_new_options=True)
    back = span.selectbox("Last", list(SPANS), index=1, key="back", bind="query-params")
    return name, SPANS[back or "1 h"]


def everything(engine: str | None, back_s: int) -> None:
    now_us = time.time_ns() // 1000
    since_us = now_us - back_s * 1_000_000
    try:
        told = data.memory(engine, since_us)
        gpus = {(gpu.host, gpu.gpu): gpu for gpu in data.gpus()}
    except LensdError as error:
        elements.failure(error)
        return
    st.session_state["memory_engines"] |= {name for card in told.items for name in card.engines}
    span = memory_charts.Span(since_us / 1000, now_us / 1000, told.step_s * 1000)
    for card in told.items:
        _card(card, told, span, gpus)
    shown = {(card.host, card.gpu) for card in told.items}
    if engine is None:
        _silent([gpu for place, gpu in gpus.items() if place not in shown])
    if not told.items:
        _empty(engine)
    _marks(told)


def _card(card: MemoryCard, told: Memory, span: memory_charts.Span, gpus: Mapping[tuple[str | None, str], GpuItem]) -> None:
    last = card.points[-1]
    title = f"GPU {card.gpu} of {card.host or wording.UNKNOWN}" if card.gpu is not None else f"Engine {card.engines[0]}"
    key = "-".join((card.host or "", card.gpu or "", *card.engines))
    with st.container(border=True, key=f"card-{key}", gap="small"):
        st.markdown(f"##### {wording.plain(title)}")
        gpu = gpus.get((card.host, card.gpu)) if card.gpu is not None else None
        figures = [("Engines", ", ".join(wording.plain(name) for name in card.engines) or "none seen")]
        figures += [("Used", _size(last.used_bytes)), ("Of", _size(last.total_bytes)), ("Engines may use", _size(last.limit_bytes))]
        elements.facts([*figures, *_device(gpu)], key)
        marks = [mark for mark in told.marks if mark.engine is None or mark.engine in card.engines]
        st.altair_chart(memory_charts.chart(card, marks, span, elements.palette()), width="stretch", theme=None)
        for line in notes(card):
            st.caption(wording.plain(line))
        if gpu is not None:
            _processes(gpu)


def notes(card: MemoryCard) -> list[str]:
    """What the bands do not say by themselves."""
    last, said = card.points[-1], []
    if card.gpu is None:
        said.append("Nobody watches the card that this engine runs on: what else is on it is not known. Run lensd agent on its host.")
    if missing := memory_charts.unknown(last):
        said.append(f"Not known at the end: {', '.join(missing)}.")
    if card.assumed:
        said.append(f"That {', '.join(card.engines)} runs here is assumed: no process of an engine was seen on any card.")
    if last.over_bytes:
        said.append(f"The parts that were told are {gib(last.over_bytes)} more than the card says is used.")
    return said


def _device(gpu: GpuItem | None) -> list[tuple[str, str]]:
    """What the card says of itself besides its memory."""
    if gpu is None:
        return []
    state = gpu.state or "not told"
    colour = _STATES.get(state, "gray")
    throttle = wording.UNKNOWN if gpu.throttle is None else gpu.throttle.replace("_", " ").replace(",", ", ") or "none"
    return [
        ("State", f":{colour}-badge[{wording.plain(state.replace('_', ' '))}]"),
        ("Load", wording.share(gpu.util, 1.0)),
        ("Clock", _figure(gpu.sm_mhz, "MHz")),
        ("Throttled by", wording.plain(throttle)),
        ("Temperature", _figure(gpu.temp_c, "°C")),
        ("Power", _figure(gpu.power_w, "W")),
        ("Uncorrected errors", wording.UNKNOWN if gpu.ecc is None else f"{gpu.ecc:,}"),
        ("Last Xid", wording.UNKNOWN if gpu.xid is None else str(gpu.xid)),
    ]


def _processes(gpu: GpuItem) -> None:
    if not gpu.processes:
        st.caption("No process is told of this card.")
        return
    with st.expander(f"Processes ({len(gpu.processes)})"):
        st.dataframe(
            [
                {"Process": each.process, "PID": each.pid, "Engine": each.engine, "Memory": _size(each.used_bytes)}
                for each in gpu.processes
            ],
            hide_index=True,
            height="content",
            placeholder=wording.UNKNOWN,
        )  # fmt: skip


def _silent(gpus: Sequence[GpuItem]) -> None:
    """Cards that gave no sample in that time."""
    for gpu in gpus:
        name = wording.plain(f"GPU {gpu.gpu} of {gpu.host or wording.UNKNOWN}")
        last = f"last sample {wording.instant_of(gpu.last_sample_at)}" if gpu.last_sample_at else "never sampled"
        why = f" ({gpu.state_reason})" if gpu.state_reason else ""
        state = f", state {gpu.state.replace('_', ' ')}{why}" if gpu.state else ""
        st.warning(f"{name}: no sample in this time; {wording.plain(last + state)}.", icon=":material/memory_alt:")


def _empty(engine: str | None) -> None:
    if engine is not None:
        st.info(f"Nothing was told of the memory of {wording.plain(engine)} in this time.", icon=":material/memory_alt:")
        return
    st.info("No card and no engine was seen in this time.", icon=":material/memory_alt:")
    st.markdown("Run `lensd agent` on the GPU's host, with the engine among its `engines`: it samples cards and engines both.")


def _marks(told: Memory) -> None:
    if not told.marks:
        return
    st.markdown("##### What happened")
    for mark in reversed(told.marks):
        over = " :red-badge[does not fit]" if mark.over_budget else ""
        who = f" · {wording.plain(mark.engine)}" if mark.engine else ""
        st.markdown(f":gray[{wording.plain(wording.instant_of(mark.at))}{who}]  \n{wording.plain(mark.text)}{over}")


def _size(size: int | None) -> str:
    return wording.UNKNOWN if size is None else gib(size)


def _figure(value: float | None, unit: str) -> str:
    return wording.UNKNOWN if value is None else f"{value:,.0f} {unit}"


st.subheader("Memory", anchor=False)
st.fragment(everything, run_every=REFRESH_S)(*chosen())
