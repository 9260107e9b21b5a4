"""Runbooks: one by its label, or the list of them."""

import streamlit as st
from lensd_dashboards import data, elements, wording
from lensd_dashboards.links import page_file

from lensd.errors import LensdError


def one(label: str) -> None:
    st.page_link(page_file("runbooks"), label="All runbooks", icon=":material/arrow_back:")
    st.markdown(f"#### Runbook `{label.replace('`', '')}`")
    elements.runbook(label, titled=True)


def everything() -> None:
    st.subheader("Runbooks", anchor=False)
    for guide in data.runbooks():
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.page_link(page_file("runbooks"), label=guide.label, query_params={"label": guide.label}, width=260)
            st.markdown(f"{wording.plain(elements.sentence(guide.title))}", width="stretch")


def main() -> None:
    label = st.query_params.get("label", "").strip()
    try:
        one(label) if label else everything()
    except LensdError as error:
        elements.failure(error)


main()
