"""One request: the verdict first, then where the time went, the evidence, and what to do."""

from collections.abc import Sequence

import msgspec
import streamlit as st
from lensd_dashboards import charts, data, elements, tables, wording
from lensd_dashboards.links import page_file

from lensd.api.items import RequestItem
from lensd.errors import LensdError, RequestNotFoundError
from lensd.records import Diagnosis, Finding, Subject

REFRESH_S = 2


def main() -> None:
    ident = st.query_params.get("id", "").strip()
    if not ident:
        _ask()
        return
    st.session_state.setdefault("settled", {})
    known = st.session_state["settled"].get(ident, False)
    st.fragment(show, run_every=None if known else REFRESH_S)(ident)


def show(ident: str) -> None:
    """Draws the request; while it is open it is read again, and once settled the page stops asking."""
    try:
        document = data.diagnosis(ident)
        matches = data.matches(ident)
    except LensdError as error:
        elements.failure(error)
        if isinstance(error, RequestNotFoundError):
            _ask()
        return
    if document.subject.settled and not st.session_state["settled"].get(ident):
        st.session_state["settled"][ident] = True
        st.rerun()
    _head(document, matches)
    elements.banner(document.verdict, "" if document.subject.settled else "still open, read again every 2 s")
    _facts(document, matches[0] if matches else None)
    _time(document, matches[0].ttft_ms if matches else None)
    _evidence(document)
    elements.runbook(document.verdict.label)
    _further(document)
    _take(document, ident)


def _ask() -> None:
    st.subheader("Find a request", anchor=False)
    with st.form("find", border=False):
        wanted = st.text_input("Request id, the engine's id (chatcmpl-…), trace id, or the beginning of one")
        if st.form_submit_button("Open", type="primary") and wanted.strip():
            st.query_params["id"] = wanted.strip()
            st.rerun()


def _head(document: Diagnosis, matches: Sequence[RequestItem]) -> None:
    subject = document.subject
    st.page_link(page_file("requests"), label="All requests", icon=":material/arrow_back:")
    st.markdown(f"#### Request `{(subject.request_id or wording.UNKNOWN).replace('`', '')}`")
    others = [row.request_id for row in matches[1:] if row.request_id]
    if others:
        st.caption(f"{wording.count(len(others), 'other request')} of that name; this is the newest.")


def _facts(document: Diagnosis, row: RequestItem | None) -> None:
    subject = document.subject
    outcome = wording.words(subject.outcome)
    ended = f"{outcome} ({subject.status})" if subject.status else outcome
    elements.facts(
        [
            ("Outcome", f"**{wording.plain(ended)}**"),
            (_time_title(subject), f"**{wording.plain(wording.duration(document.total_ms))}**"),
            ("TTFT", f"**{wording.plain(wording.duration(row.ttft_ms if row else None))}**"),
            ("Model", wording.plain(subject.model or wording.UNKNOWN)),
            ("Engine", wording.plain(subject.engine or wording.UNKNOWN)),
            ("Key", wording.plain(subject.key_id or wording.UNKNOWN)),
            ("Started", wording.plain(wording.instant_of(subject.started_at))),
        ]
    )


def _time_title(subject: Subject) -> str:
    """What the whole time is: of a lost request it is known up to its last sign only."""
    if subject.outcome == "lost":
        return "Until last heard of"
    return "Total" if subject.settled else "So far"


def _time(document: Diagnosis, ttft_ms: float | None) -> None:
    st.subheader("Where the time went", anchor=False)
    if not document.timeline:
        st.caption("No stage of this request was seen.")
        return
    palette = elements.palette()
    mark = charts.first_token(document.timeline, ttft_ms)
    bars = charts.waterfall(document.timeline, document.unattributed_ms, document.gaps, document.total_ms, mark, palette)
    st.altair_chart(bars, theme=None, key="waterfall")
    shares = charts.share_bar(document.timeline, document.unattributed_ms, palette)
    if shares is not None:
        st.altair_chart(shares, theme=None, key="shares")
    notes = charts.notes(document.timeline, document.unattributed_ms, document.gaps, document.clock_skew_ms)
    if notes:
        st.caption("  \n".join(wording.plain(note) for note in notes))


def _evidence(document: Diagnosis) -> None:
    labels = {finding.label for finding in document.findings}
    effects = [finding for finding in document.findings if finding.explained_by in labels]
    roots = [finding for finding in document.findings if finding not in effects]
    if not roots:
        return
    st.subheader("Evidence", anchor=False)
    for number, finding in enumerate(roots):
        _finding(finding, f"root-{number}", titled=len(roots) > 1)
    for number, finding in enumerate(effects):
        with st.expander(f"Explained by {wording.plain(finding.explained_by or '')}: {wording.plain(finding.title)}"):
            _finding(finding, f"effect-{number}", titled=False)


def _finding(finding: Finding, key: str, titled: bool) -> None:
    if titled:
        st.markdown(f"**{wording.plain(finding.title)}** :gray[· {wording.plain(finding.label)}]")
    elements.evidence(finding.evidence, key)


def _further(document: Diagnosis) -> None:
    if document.ruled_out:
        with st.expander(f"Ruled out ({len(document.ruled_out)})"):
            st.markdown("\n".join(f"- **{wording.plain(no.label)}**: {wording.plain(no.because)}" for no in document.ruled_out))
    if document.not_evaluated:
        undecided = document.verdict.label == "inconclusive"
        with st.expander(f"Not checked, because something is missing ({len(document.not_evaluated)})", expanded=undecided):
            wants = ((wording.plain(open_.label), wording.plain(", ".join(open_.missing))) for open_ in document.not_evaluated)
            st.markdown("\n".join(f"- **{label}** needs {missing}" for label, missing in wants))
    with st.expander("Stages in figures"):
        st.dataframe(tables.stages(document.timeline, document.total_ms), hide_index=True, height="content")


def _take(document: Diagnosis, ident: str) -> None:
    subject = document.subject
    st.subheader("Take it along", anchor=False)
    st.code(f"lensd diagnose {subject.request_id or ident}", language="bash")
    names = [name for name in dict.fromkeys((subject.trace_id, *subject.aliases)) if name and name != subject.request_id]
    if names:
        st.caption(f"Also known as {', '.join(wording.plain(name) for name in names)}")
    with st.container(horizontal=True):
        st.download_button(
            "Verdict as JSON",
            msgspec.json.format(msgspec.json.encode(document), indent=2),
            file_name=f"lensd-{(subject.request_id or ident)[:32]}.json",
            mime="application/json",
            icon=":material/download:",
            on_click="ignore",
        )


main()
