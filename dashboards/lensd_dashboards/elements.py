"""Parts that several pages share: header line, verdict banner, facts, evidence, runbook, and what is said when something is missing."""

from collections.abc import Sequence

import streamlit as st

from lensd.api.items import EngineState
from lensd.errors import IncidentNotFoundError, LensdError, NoAnswerError, RequestNotFoundError
from lensd.records import Evidence, Incident, Severity, Verdict
from lensd_dashboards import charts, data, wording

SEVERITY_COLOURS = {Severity.INFO: "green", Severity.WARNING: "orange", Severity.CRITICAL: "red"}
_HEALTHY = ("no-incident", "benign-noise")
_UNGUIDED = (*_HEALTHY, "inconclusive")
_SECTION_ORDER = ("Mitigation", "Diagnosis", "Meaning", "Impact", "Not this", "Query")

STYLE = """<style>
.stMainBlockContainer {max-width: 1240px; padding-top: 4.5rem;}
[data-testid="stPageLink-NavLink"] {padding-left: 0;}
.st-key-status-line p {font-size: .875rem;}
[class*="st-key-banner-"] {border-left: 5px solid; border-radius: .5rem; padding: 1.1rem 1.3rem;}
.st-key-banner-critical {border-color: #cf3a45; background: rgba(207, 58, 69, .09);}
.st-key-banner-warning {border-color: #d9860a; background: rgba(217, 134, 10, .10);}
.st-key-banner-info {border-color: #2e8b57; background: rgba(46, 139, 87, .09);}
[class*="st-key-cause"] p {font-size: 1.2rem; line-height: 1.45;}
[class*="st-key-facts"] {row-gap: .6rem; column-gap: 2.2rem;}
[class*="st-key-facts"] p {font-size: .95rem; line-height: 1.35;}
[class*="st-key-evidence-"] {border-left: 3px solid rgba(128, 140, 152, .35); padding-left: .9rem;}
[class*="st-key-evidence-"] pre {padding: .45rem .7rem; margin: .3rem 0;}
[class*="st-key-incident-"] p {margin-bottom: 0;}
</style>"""

WORDMARK = """<svg xmlns="http://www.w3.org/2000/svg" width="118" height="32" viewBox="0 0 118 32">
<g fill="none" stroke="#2a8f9d" stroke-width="2.6" stroke-linecap="round"><circle cx="14" cy="14.5" r="9"/><path d="M20.8 21.3 27 27.5"/>
<path d="M9 17.5h3.2M9 14.5h7M9 11.5h9.5" stroke-width="2"/></g>
<text x="36" y="22.5" font-family="Helvetica, Arial, sans-serif" font-size="22" font-weight="600" fill="#2a8f9d">lensd</text>
</svg>"""


def palette() -> charts.Palette:
    return charts.DARK if st.context.theme.type == "dark" else charts.LIGHT


def status_line() -> None:
    """Each engine in one line; nothing where the daemon does not answer, since the page itself says so."""
    try:
        engines = data.engines()
    except LensdError:
        return
    with st.container(key="status-line", horizontal=True, gap="medium"):
        if not engines:
            st.markdown(":gray[No engine seen yet]", width="content")
        for engine in engines:
            st.markdown(_engine(engine), width="content")


def failure(error: LensdError) -> None:
    """An expected failure in one line: the daemon does not answer, does not let us in, or does not know what was asked for."""
    if isinstance(error, RequestNotFoundError | IncidentNotFoundError):
        st.warning(wording.plain(sentence(str(error))), icon=":material/search_off:")
    elif isinstance(error, NoAnswerError):
        st.error(f"No answer from lensd at `{data.url()}`", icon=":material/cloud_off:")
        st.markdown("Start it with `lensd serve`, or start this dashboard with `--server` and the URL of the one that runs.")
    else:
        st.error(wording.plain(sentence(str(error))), icon=":material/error:")


def banner(verdict: Verdict | Incident, title: str) -> None:
    """The answer: label, stage and confidence, then the cause and the fix, one sentence each."""
    with st.container(key=f"banner-{verdict.severity}", gap="small"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.badge(verdict.label, color=SEVERITY_COLOURS[verdict.severity])  # type: ignore[arg-type]
            if verdict.stage != "none":
                st.badge(wording.stage(verdict.stage), color="gray", icon=":material/layers:")
            st.badge(verdict.confidence, color="gray")
            if title:
                st.markdown(f":gray[{title}]", width="content")
        with st.container(key="cause"):
            st.markdown(f"**{wording.plain(sentence(verdict.cause))}**")
        if verdict.label not in _HEALTHY and verdict.fix:
            st.markdown(f"**What to do:** {wording.plain(sentence(verdict.fix))}")


def facts(pairs: Sequence[tuple[str, str]], key: str = "") -> None:
    """Names over values, side by side; values are Markdown, made safe by the caller. `key` tells several on a page apart."""
    with st.container(key=f"facts-{key}" if key else "facts", horizontal=True):
        for name, value in pairs:
            st.markdown(f":small[:gray[{name}]]  \n{value}", width="content")


def evidence(rows: Sequence[Evidence], key: str) -> None:
    """What each line says, the exact text behind it, and where that stands; what the verdict does not rest on comes below, by itself."""
    _lines([row for row in rows if not row.beside], key)
    if beside := [row for row in rows if row.beside]:
        st.markdown("**Beside it**")
        _lines(beside, f"{key}-beside")


def _lines(rows: Sequence[Evidence], key: str) -> None:
    for number, row in enumerate(rows):
        with st.container(key=f"evidence-{key}-{number}", gap=None):
            st.markdown(wording.plain(sentence(row.text)))
            if row.quote:
                st.code(row.quote, language=None, wrap_lines=True)
            if row.source:
                st.caption(f":material/subdirectory_arrow_right: {wording.plain(row.source)}")


def runbook(label: str, titled: bool = False) -> None:
    """The runbook's sections, what to do first; a cause without a runbook says so, a verdict that needs none says nothing."""
    try:
        guide = data.runbook(label)
    except LensdError as error:
        failure(error)
        return
    if guide is None:
        if label not in _UNGUIDED:
            st.caption(f"There is no runbook for {wording.plain(label)}.")
        return
    if titled:
        st.markdown(f"**{wording.plain(sentence(guide.title))}**")
    else:
        st.subheader("Runbook", anchor=False)
    names = [name for name in _SECTION_ORDER if guide.sections.get(name)]
    names += [name for name in guide.sections if name not in _SECTION_ORDER and guide.sections[name]]
    if not names:
        return
    for name, tab in zip(names, st.tabs(names), strict=True):
        with tab:
            st.markdown(guide.sections[name])


def incident_badges(incident: Incident) -> None:
    state_colour = {"open": "red", "acknowledged": "orange", "resolved": "gray"}[incident.state]
    st.badge(incident.state, color=state_colour)  # type: ignore[arg-type]
    st.badge(incident.label, color="gray" if incident.state == "resolved" else SEVERITY_COLOURS[incident.severity])  # type: ignore[arg-type]
    st.badge(incident.severity, color="gray")


def incident_line(incident: Incident, now_us: int) -> str:
    """Where, since when and for how long, and how many requests were hit."""
    where = " · ".join(value for _, value in reach(incident))
    until = incident.resolved_at if incident.resolved_at is not None else max(now_us, incident.opened_at)
    lasted = wording.duration((until - incident.opened_at) / 1000)
    how_long = f"lasted {lasted}" if incident.resolved_at is not None else f"on for {lasted} so far"
    hit = f"{wording.count(incident.requests_hit, 'request')} hit"
    return " · ".join(part for part in (where, f"since {wording.instant(incident.opened_at)}", how_long, hit) if part)


def reach(incident: Incident) -> list[tuple[str, str]]:
    """What the incident stands on: those of engine, model, GPU and key it names."""
    named = (("Engine", incident.engine), ("Model", incident.model), ("GPU", incident.gpu), ("Key", incident.key_id))
    return [(name, value) for name, value in named if value]


def _engine(engine: EngineState) -> str:
    parts = [":red-badge[:material/cancel: down]" if engine.up is False else ":green-badge[:material/check_circle: up]"]
    if engine.up is None:
        parts = [":gray-badge[not scraped]"]
    parts.append(f"**{wording.plain(engine.engine or wording.UNKNOWN)}**")
    if engine.up is not False:
        figures = [
            f"{engine.running:.0f} running" if engine.running is not None else "",
            f"{engine.waiting:.0f} waiting" if engine.waiting is not None else "",
            f"KV cache {100 * engine.kv_usage:.0f} %" if engine.kv_usage is not None else "",
        ]
        parts.append(f":gray[{' · '.join(figure for figure in figures if figure)}]")
    return " ".join(parts)


def sentence(text: str) -> str:
    """Text of a rule as a sentence on its own."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")
