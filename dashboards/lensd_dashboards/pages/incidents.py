"""Incidents: what stands now first, then what is over."""

import time
from collections.abc import Sequence

import streamlit as st
from lensd_dashboards import data, elements, wording
from lensd_dashboards.links import page_file

from lensd.errors import LensdError
from lensd.records import SEVERITY_RANK, Incident

REFRESH_S = 5


def listing() -> None:
    try:
        incidents = data.incidents()
    except LensdError as error:
        elements.failure(error)
        return
    standing = sorted((i for i in incidents if i.state != "resolved"), key=lambda i: (-SEVERITY_RANK[i.severity], -i.opened_at))
    over = sorted((i for i in incidents if i.state == "resolved"), key=lambda i: -i.opened_at)
    if not incidents:
        st.success("No incidents: nothing stands, and nothing has been recorded.", icon=":material/check_circle:")
        return
    if standing:
        _cards(standing)
    else:
        st.success("Nothing stands now.", icon=":material/check_circle:")
    if over:
        st.markdown(f"##### Resolved :gray[({len(over)})]")
        _cards(over)


def _cards(incidents: Sequence[Incident]) -> None:
    now_us = time.time_ns() // 1000
    for incident in incidents:
        with st.container(border=True, key=f"incident-{incident.incident_id}", gap="small"):
            with st.container(horizontal=True, vertical_alignment="center"):
                elements.incident_badges(incident)
                st.space("stretch")
                address = {"id": incident.incident_id}
                st.page_link(page_file("incident"), label="Open", icon=":material/arrow_forward:", query_params=address)
            cause, line = wording.plain(elements.sentence(incident.cause)), wording.plain(elements.incident_line(incident, now_us))
            st.markdown(f"**{cause}**  \n:gray[:small[{line}]]")
            st.space("xxsmall")  # the text's own foot is swallowed by the frame


st.subheader("Incidents", anchor=False)
st.fragment(listing, run_every=REFRESH_S)()
