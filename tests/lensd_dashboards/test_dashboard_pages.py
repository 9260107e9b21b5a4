"""Each page against a daemon with canned documents: what it shows, what it says when something is missing."""

from collections.abc import Callable
from typing import Any

import canned
import msgspec
import pytest
from fake_api import FakeApi
from lensd_dashboards import data, tables
from page_text import text_of
from streamlit.testing.v1 import AppTest

from lensd.records import Evidence, StageState

Open = Callable[..., AppTest]


def test_the_request_page_names_cause_stage_and_fix_first(open_page: Open) -> None:
    app = open_page("request", id=canned.QUEUED)
    assert not app.exception
    said = text_of(app)
    for wanted in ("queue-saturation", "The request waited 29.99 s for a slot", "Lower the concurrency", "timed out (504)", "30.0 s"):
        assert wanted in said
    assert said.index("The request waited 29.99 s") < said.index("timed out (504)")


def test_the_request_page_shows_evidence_with_quote_and_source(open_page: Open) -> None:
    said = text_of(open_page("request", id=canned.QUEUED))
    for row in canned.QUEUE_EVIDENCE:
        assert row.quote in said
        assert row.source in said
    for wanted in ("Explained by queue-saturation", "Ruled out (2)", "Not checked, because something is missing (1)"):
        assert wanted in said
    assert "kv-preemption-thrash needs engine_samples.preemptions_total" in said
    assert "Lower the concurrency of the busiest key" in said  # the runbook


def test_what_a_verdict_does_not_rest_on_stands_below_its_evidence(open_page: Open, api: FakeApi) -> None:
    more = Evidence(text="The engine has 4 slots", quote="--max-num-seqs 4", source="compose.yaml:9", beside=True)
    finding = msgspec.structs.replace(canned.QUEUE_FINDING, evidence=(more, *canned.QUEUE_EVIDENCE))
    api.documents[canned.QUEUED] = msgspec.structs.replace(canned.QUEUED_DOC, findings=(finding,))
    said = text_of(open_page("request", id=canned.QUEUED))
    assert "Beside it" not in text_of(open_page("request", id=canned.CRASHED))
    own = max(said.index(row.text[1:]) for row in canned.QUEUE_EVIDENCE)
    assert own < said.index("Beside it") < said.index(more.text)


def test_the_request_page_can_be_taken_along(open_page: Open) -> None:
    app = open_page("request", id=canned.QUEUED)
    assert f"lensd diagnose {canned.QUEUED}" in text_of(app)
    assert "chatcmpl-6f1c0b5e9a3d4c2f" in text_of(app)
    assert [button.label for button in app.get("download_button")] == ["Verdict as JSON"]


def test_every_name_of_a_request_opens_it(open_page: Open) -> None:
    for name in (canned.HEALTHY, canned.HEALTHY[:9], "chatcmpl-0d9e8f7a6b5c4d3e"):
        assert "Every stage was seen" in text_of(open_page("request", id=name))


def test_a_healthy_request_has_nothing_to_do(open_page: Open) -> None:
    said = text_of(open_page("request", id=canned.HEALTHY))
    assert "What to do" not in said
    assert "1.8 ms between auth & routing and queue" in said
    assert "None" not in said


def test_an_open_request_is_read_again_until_it_is_settled(open_page: Open, api: FakeApi) -> None:
    app = open_page("request", id=canned.OPEN)
    assert "still open" in text_of(app)
    assert app.session_state["settled"] == {}
    settled = msgspec.structs.replace(canned.OPEN_DOC.subject, settled=True, outcome="ok", status=200)
    api.documents[canned.OPEN] = msgspec.structs.replace(canned.OPEN_DOC, subject=settled)
    app.run()
    assert "still open" not in text_of(app)
    assert app.session_state["settled"] == {canned.OPEN: True}


def test_a_lost_request_is_known_up_to_its_last_sign(open_page: Open, api: FakeApi) -> None:
    lost = msgspec.structs.replace(canned.OPEN_DOC.subject, settled=True, outcome="lost")
    verdict = msgspec.structs.replace(canned.OPEN_DOC.verdict, cause="lost: the gateway was restarted; its end is unknown")
    api.documents[canned.OPEN] = msgspec.structs.replace(canned.OPEN_DOC, subject=lost, verdict=verdict)
    said = text_of(open_page("request", id=canned.OPEN))
    assert "the gateway was restarted; its end is unknown" in said
    assert "Until last heard of" in said
    assert "still open" not in said
    assert "Total" not in said


def test_an_unknown_request_is_one_line_and_a_way_on(open_page: Open) -> None:
    app = open_page("request", id="nosuch")
    assert not app.exception
    assert [warning.value for warning in app.warning] == ["No request nosuch\\."]
    assert [field.label for field in app.text_input] == ["Request id, the engine's id (chatcmpl-…), trace id, or the beginning of one"]


def test_text_from_outside_is_shown_and_not_run(open_page: Open, api: FakeApi) -> None:
    planted = "<script>alert(1)</script> [click](http://evil.example) :red[x]"
    verdict = msgspec.structs.replace(canned.QUEUED_DOC.verdict, cause=planted)
    finding = msgspec.structs.replace(canned.QUEUE_FINDING, evidence=(Evidence(text=planted, quote=planted, source=planted),))
    api.documents[canned.QUEUED] = msgspec.structs.replace(canned.QUEUED_DOC, verdict=verdict, findings=(finding,))
    app = open_page("request", id=canned.QUEUED)
    shown = [str(element.value) for kind in ("markdown", "caption") for element in app.get(kind)]
    assert not [text for text in shown if "<script>" in text or "](http" in text or ":red[x]" in text]
    assert [code.value for code in app.code if code.value == planted]  # a quote is exact, in a block that formats nothing


def test_the_list_shows_figures_for_people(open_page: Open) -> None:
    app = open_page("requests")
    assert not app.exception
    (frame,) = app.dataframe
    assert list(frame.value["Request"]) == [canned.OPEN, canned.CRASHED, canned.QUEUED, canned.HEALTHY]
    assert "4 requests shown, newest first" in text_of(app)


def test_table_cells_are_written_out() -> None:
    rows = [msgspec.convert(canned.row(doc), data.RequestItem) for doc in canned.DIAGNOSES.values()]
    style = tables.requests(rows)
    shown = style.to_html()
    for wanted in ("30.0 s", "156 ms", "timed out", "not judged yet", ">504<", "–"):
        assert wanted in shown
    assert "nan" not in shown.lower()
    assert "None" not in shown


@pytest.mark.parametrize(("name", "value"), [("outcome", "cut"), ("key", "team-chat"), ("label", "engine-crash"), ("model", "tiny-chat")])
def test_a_filter_in_the_address_reaches_the_daemon(open_page: Open, api: FakeApi, name: str, value: str) -> None:
    app = open_page("requests", **{name: value})
    assert not app.exception
    assert {box.key: box.value for box in app.selectbox}[name] == value
    assert any(path.startswith("/api/v1/requests?") and f"{name}={value}" in path for path in api.asked)


def test_ticking_a_row_opens_the_request_that_was_shown(open_page: Open, api: FakeApi) -> None:
    """A newer request has come in since the list was drawn: the row ticked is still the one the person saw."""
    app = open_page("requests")
    newer = msgspec.structs.replace(canned.HEALTHY_DOC.subject, request_id="f" * 32, trace_id="f" * 32, started_at="2026-11-30T13:00:00Z")
    api.documents["f" * 32] = msgspec.structs.replace(canned.HEALTHY_DOC, subject=newer)
    app.session_state["requests"] = {"selection": {"rows": [2], "columns": [], "cells": []}}
    app.run()
    assert app.query_params["id"] == canned.QUEUED
    assert "The request waited 29.99 s" in text_of(app)


def test_an_empty_list_says_what_to_do(open_page: Open, api: FakeApi) -> None:
    api.documents.clear()
    api.engines = []
    said = text_of(open_page("requests"))
    assert "No requests yet" in said
    assert "lensd attach" in said
    assert "No engine seen yet" in said
    assert "No request matches" in text_of(open_page("requests", label="oom"))


def test_incidents_stand_in_order_of_urgency(open_page: Open) -> None:
    said = text_of(open_page("incidents"))
    assert said.index("killed by signal 9") < said.index("Resolved") or said.index("killed by signal 9") < said.index(
        "waited up to 29.99 s"
    )
    assert "3 requests hit" in said
    assert "lasted 7 min 0 s" in said


def test_no_incidents_is_good_news(open_page: Open, api: FakeApi) -> None:
    api.incidents.clear()
    assert "nothing stands" in text_of(open_page("incidents"))


def test_the_incident_page_shows_reach_and_can_be_acknowledged_and_closed(open_page: Open, api: FakeApi) -> None:
    app = open_page("incident", id=canned.INCIDENT)
    assert not app.exception
    said = text_of(app)
    for wanted in ("killed by signal 9", "still on, last seen 2026-11-30 12:03:00 UTC", "process.exit.code=-9", "Start the engine again"):
        assert wanted in said
    buttons: dict[str, Any] = {button.label: button for button in app.button}
    buttons["Acknowledge"].click().run()
    assert api.incidents[canned.INCIDENT].state == "acknowledged"
    assert [button.label for button in app.button] == ["Close"]
    app.button[0].click().run()
    assert api.incidents[canned.INCIDENT].state == "resolved"
    assert [button.label for button in app.button] == []


def test_an_unknown_incident_is_one_line(open_page: Open) -> None:
    app = open_page("incident", id="nosuch")
    assert not app.exception
    assert len(app.warning) == 1


def test_runbooks_are_listed_once_a_label_and_read_one_by_one(open_page: Open) -> None:
    assert [book.id for book in data.runbooks()] == ["engine-crash", "queue-saturation"]
    assert "The engine's process died." in text_of(open_page("runbooks"))
    assert "Open answers are cut" in text_of(open_page("runbooks", label="engine-crash"))
    assert "There is no runbook for nosuch" in text_of(open_page("runbooks", label="nosuch"))


@pytest.mark.parametrize("page", ["requests", "request", "incidents", "incident", "runbooks"])
def test_no_daemon_is_one_line_with_url_and_what_to_start(open_page: Open, page: str) -> None:
    data.use("http://127.0.0.1:9", "s3cret-token")  # the discard port: nobody listens
    app = open_page(page, id="x")
    assert not app.exception
    assert [error.value for error in app.error] == ["No answer from lensd at `http://127.0.0.1:9`"]
    assert "lensd serve" in text_of(app)


def test_a_wrong_token_is_said_and_never_shown(open_page: Open, api: FakeApi) -> None:
    data.use(api.url, "another-token")
    app = open_page("requests")
    (error,) = app.error
    assert "refused the token" in error.value.replace("\\", "")
    assert "another-token" not in text_of(app)


def test_engines_are_named_with_their_state(open_page: Open) -> None:
    said = text_of(open_page("incidents"))
    assert "127.0.0.1:8000 :gray[1 running · 11 waiting · KV cache 41 %]" in said
    assert "down" in said


def test_states_of_the_canned_documents_cover_what_a_page_can_meet() -> None:
    assert {entry.state for doc in canned.DIAGNOSES.values() for entry in doc.timeline} == set(StageState)
