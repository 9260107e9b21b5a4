"""The frame around every page: navigation, the product's name, and one line about the engines."""

import streamlit as st

from lensd_dashboards import elements
from lensd_dashboards.links import page_file


def main() -> None:
    st.set_page_config(page_title="lensd", page_icon=":material/troubleshoot:", layout="wide")
    page = st.navigation(
        [
            st.Page(page_file("requests"), title="Requests", icon=":material/list_alt:", default=True),
            st.Page(page_file("incidents"), title="Incidents", icon=":material/crisis_alert:"),
            st.Page(page_file("memory"), title="Memory", icon=":material/memory_alt:"),
            st.Page(page_file("runbooks"), title="Runbooks", icon=":material/menu_book:"),
            st.Page(page_file("request"), title="Request", visibility="hidden"),
            st.Page(page_file("incident"), title="Incident", visibility="hidden"),
        ],
        position="top",
    )
    st.html(elements.STYLE)
    st.logo(elements.WORDMARK, size="large")
    elements.status_line()
    page.run()
