"""The list of requests, newest first, with filters that stay in the address; a click opens the request."""

import time
from collections.abc import Sequence
from typing import Any

import streamlit as st
from lensd_dashboards import data, elements, tables, wording
from lensd_dashboards.links import page_file

from lensd.api.items import Page, RequestItem
from lensd.errors import LensdError

OUTCOMES = ("ok", "refused", "failed", "timed_out", "caller_gone", "cut", "open", "lost")
SPANS = {"15 min": 15 * 60, "1 h": 3600, "24 h": 86_400, "7 d": 7 * 86_400}
REFRESH_S = 5


def filters() -> data.Filters:
    """Whatever is chosen here is in the query string too, so that a filtered list can be passed on."""
    seen: dict[str, set[str]] = st.session_state.setdefault("seen", {"model": set(), "key": set(), "label": set()})
    model, key, outcome, label, span = st.columns(5)
    chosen = {
        name: column.selectbox(
            name.capitalize(),
            sorted(seen[name] | _given(name)),
            index=None,
            placeholder="any",
            key=name,
            bind="query-params",
            accept_new_options=True,
        )
        for name, column in {"model": model, "key": key, "label": label}.items()
    }
    how = outcome.selectbox("Outcome", OUTCOMES, index=None, placeholder="any", key="outcome", bind="query-params")
    within = span.selectbox("Started within", list(SPANS), index=None, placeholder="any time", key="within", bind="query-params")
    since = int((time.time() - SPANS[within]) * 1e6) if within else None
    return data.Filters(model=chosen["model"], key=chosen["key"], outcome=how, label=chosen["label"], since=since)


def listing(wanted: data.Filters) -> None:
    _open_picked()
    cursor = st.session_state.get("cursor")
    try:
        page = data.requests(wanted, cursor)
    except LensdError as error:
        elements.failure(error)
        return
    if not page.items:
        _empty(wanted)
        return
    for name, values in _values(page.items).items():
        st.session_state["seen"][name] |= values
    st.session_state["shown"] = [item.request_id for item in page.items]
    st.dataframe(
        tables.requests(page.items, dark=st.context.theme.type == "dark"),
        hide_index=True,
        height="content",
        placeholder=wording.UNKNOWN,
        row_height=34,
        key="requests",
        on_select="rerun",
        selection_mode="single-row",
        column_config=_columns(),
    )
    _paging(page, cursor)


def _open_picked() -> None:
    """A click names a row of the list as it was drawn; by now newer requests may stand above it, so this comes before reading again."""
    rows = st.session_state.get("requests", {}).get("selection", {}).get("rows", [])
    shown = st.session_state.get("shown", [])
    if rows and rows[0] < len(shown) and shown[rows[0]]:
        st.switch_page(page_file("request"), query_params={"id": shown[rows[0]]})


def _columns() -> dict[str, Any]:
    return {
        "Started": st.column_config.DatetimeColumn("Started (UTC)", format="YYYY-MM-DD HH:mm:ss", timezone="UTC", width=155),
        "Request": st.column_config.TextColumn("Request", width=215),
        "Status": st.column_config.NumberColumn("Status", width=70),
        "Total": st.column_config.NumberColumn("Total", width=90),
        "TTFT": st.column_config.NumberColumn("TTFT", width=90),
        "Verdict": st.column_config.TextColumn("Verdict", width=265),
    }


def _given(name: str) -> set[str]:
    value = st.query_params.get(name)
    return {value} if value else set()


def _values(items: Sequence[RequestItem]) -> dict[str, set[str]]:
    return {
        "model": {row.model for row in items if row.model},
        "key": {row.key_id for row in items if row.key_id},
        "label": {row.label for row in items if row.label},
    }


def _empty(wanted: data.Filters) -> None:
    if any(wanted):
        st.info("No request matches these filters.", icon=":material/filter_alt_off:")
        return
    st.info("No requests yet.", icon=":material/hourglass_empty:")
    st.markdown(
        "Send one through the gateway (port 8080 unless configured otherwise), or run `lensd attach URL` to see what can be seen of an "
        "engine that already runs. `lensd demo` shows everything on an engine of its own."
    )


def _paging(page: Page[RequestItem], cursor: str | None) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{wording.count(len(page.items), 'request')} shown, newest first; tick one to open it", width="content")
        if cursor and st.button("Newest", icon=":material/first_page:", type="tertiary"):
            st.session_state["cursor"] = None
            st.rerun()
        if page.next and st.button("Older", icon=":material/chevron_right:", type="tertiary"):
            st.session_state["cursor"] = page.next
            st.rerun()


def main() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.subheader("Requests", anchor=False)
        live = st.toggle("Live", value=True, key="live", bind="query-params", help=f"read again every {REFRESH_S} s")
    wanted = filters()
    if st.session_state.get("filtered") != wanted[:4]:
        st.session_state["filtered"], st.session_state["cursor"] = wanted[:4], None
    st.fragment(listing, run_every=REFRESH_S if live else None)(wanted)


main()
