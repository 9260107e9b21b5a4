"""One incident: state and cause first, then how far it reaches, the evidence, and what to do."""

import streamlit as st
from lensd_dashboards import data, elements, wording
from lensd_dashboards.links import page_file

from lensd.errors import LensdError
from lensd.records import Incident

REFRESH_S = 5


def main() -> None:
    ident = st.query_params.get("id", "").strip()
    if not ident:
        st.info("Choose an incident from the list.", icon=":material/crisis_alert:")
        st.page_link(page_file("incidents"), label="All incidents", icon=":material/arrow_back:")
        return
    over = st.session_state.setdefault("over", {})
    st.fragment(show, run_every=None if over.get(ident) else REFRESH_S)(ident)


def show(ident: str) -> None:
    """Draws the incident; while it stands it is read again."""
    st.page_link(page_file("incidents"), label="All incidents", icon=":material/arrow_back:")
    try:
        incident = data.incident(ident)
    except LensdError as error:
        elements.failure(error)
        return
    over = incident.state == "resolved"
    if over and not st.session_state["over"].get(ident):
        st.session_state["over"][ident] = True
        st.rerun()
    _head(incident)
    elements.banner(incident, "")
    _facts(incident)
    if incident.typical_requests or incident.requests_hit:
        st.subheader("Requests hit", anchor=False)
        for request_id in incident.typical_requests:
            st.page_link(page_file("request"), label=wording.plain(request_id), icon=":material/search:", query_params={"id": request_id})
        label = {"label": incident.label}
        st.page_link(page_file("requests"), label=f"All with the verdict {incident.label}", icon=":material/list_alt:", query_params=label)
    if incident.evidence:
        st.subheader("Evidence", anchor=False)
        elements.evidence(incident.evidence, "incident")
    elements.runbook(incident.label)


def _head(incident: Incident) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"#### Incident `{incident.incident_id.replace('`', '')}`", width="content")
        st.space("stretch")
        if incident.state == "open" and st.button("Acknowledge", icon=":material/visibility:"):
            _act(incident, "acknowledge")
        if incident.state != "resolved" and st.button("Close", icon=":material/check:"):
            _act(incident, "close")


def _act(incident: Incident, act: str) -> None:
    try:
        data.acknowledge(incident.incident_id) if act == "acknowledge" else data.close(incident.incident_id)
    except LensdError as error:
        elements.failure(error)
        return
    st.rerun()


def _facts(incident: Incident) -> None:
    last = wording.instant(incident.last_seen_at)
    until = wording.instant(incident.resolved_at) if incident.resolved_at else f"still on, last seen {last}"
    pairs = [
        ("State", f"**{incident.state}**"),
        ("Since", wording.plain(wording.instant(incident.opened_at))),
        ("Until", wording.plain(until)),
        ("Requests hit", f"**{incident.requests_hit:,}**"),
    ]
    pairs += [(name, wording.plain(value)) for name, value in elements.reach(incident)]
    elements.facts(pairs)


main()
