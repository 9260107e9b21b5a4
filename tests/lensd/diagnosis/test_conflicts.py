"""All stable rules together: each fires-case is named by its own label, and healthy requests by none."""

from pathlib import Path

import pytest
from one_store import evaluated

from lensd.diagnosis.cases import cases_path, load_cases
from lensd.diagnosis.causes import conclude
from lensd.diagnosis.evaluate import Fired
from lensd.diagnosis.runbook import load
from lensd.records import Subject

BOOKS = load()
FIRING = [
    (book, case)
    for book in BOOKS.values()
    for case in load_cases(cases_path(Path(book.path)))
    if case.expect == "fires" and case.rows.get("subjects")
]
QUIET = [(book, case) for book in BOOKS.values() for case in load_cases(cases_path(Path(book.path))) if case.expect == "quiet"]


def together(rows):
    return evaluated(rows, BOOKS.values())


@pytest.mark.parametrize(("book", "case"), FIRING, ids=[f"{book.id}: {case.case}" for book, case in FIRING])
def test_all_rules_together_name_the_same_cause(book, case):
    evaluation = together(case.rows)
    (request,) = evaluation.subjects
    conclusion = conclude(evaluation, Subject(kind="request", request_id=request))
    assert conclusion.verdict.label == book.label
    roots = {finding.label for finding in conclusion.findings if finding.kind == "cause" and finding.explained_by is None}
    assert roots <= {book.label}, "another root stands beside it"


@pytest.mark.parametrize(("book", "case"), QUIET, ids=[f"{book.id}: {case.case}" for book, case in QUIET])
def test_a_look_alike_is_not_called_by_this_name_by_any_rule(book, case):
    evaluation = together(case.rows)
    request = next(iter(evaluation.subjects), None)
    subject = Subject(kind="request", request_id=request) if request else Subject(kind="files")
    assert conclude(evaluation, subject).verdict.label != book.label


PLAIN = {
    "engine": "e0",
    "model": "tiny",
    "started_at": "2026-11-20 10:00:10",
    "outcome": "ok",
    "status": 200,
    "said_by": "engine",
    "decision": "allowed",
    "src": "span:1",
}
STAGES = {
    "auth_routing_ms": 2,
    "queue_ms": 3,
    "prefill_ms": 40,
    "decode_ms": 700,
    "streaming_ms": 702,
    **{f"{stage}_state": "ok" for stage in ("auth_routing", "queue", "prefill", "decode", "streaming")},
    "queue_source": "llm_request",
}
HEALTHY = {
    "a stream": {"streaming": True, "done_seen": True, "chunks": 64, "total_ms": 760, "finish_reason": "stop", **STAGES},
    "one piece": {"streaming": False, "total_ms": 700, "finish_reason": "stop", **STAGES},
    "cut by max_tokens as asked": {"streaming": False, "total_ms": 700, "finish_reason": "length", "max_tokens": 16, **STAGES},
    "a long answer with its caller's limit far off": {
        "streaming": True,
        "done_seen": True,
        "chunks": 900,
        "total_ms": 60_000,
        "client_timeout_ms": 600_000,
        **STAGES,
    },
    "exactly as long as its caller's limit": {"streaming": False, "total_ms": 10_000, "client_timeout_ms": 10_000, **STAGES},
    "preempted once, in time all the same": {"streaming": False, "total_ms": 1_900, "preemptions": 1, **STAGES},
    "a short wait in the queue": {"streaming": False, "total_ms": 1_500, **STAGES, "queue_ms": 700},
    "a list of models": {"streaming": False, "total_ms": 3, "auth_routing_state": "ok", "route": "/v1/models"},
    "seen by the engine alone": {"status": None, "decision": None, "said_by": None, "total_ms": 745, **STAGES},
    "seen in an access log alone": {"decision": None, "said_by": None, "engine": None, "model": None, "total_ms": 700},
}
BUSY = {
    "engine_samples": [
        {
            "seen_at": f"2026-11-20 10:00:{second:02d}",
            "engine": "e0",
            "model": "tiny",
            "running": 60 + second % 5,
            "waiting": second % 3,
            "kv_usage": 0.97,
            "preemptions_total": 2,
            "generation_tokens_total": 1000 + 50 * second,
            "prompt_tokens_total": 9000 + 10 * second,
            "up": second != 31,
            "src": f"s:{second}",
        }
        for second in range(60)
    ],
    "events": [
        {"seen_at": "2026-11-20 09:50:00", "engine": "e0", "name": "engine.started", "src": "log:1"},
        {"seen_at": "2026-11-20 09:50:25", "engine": "e0", "name": "engine.ready", "src": "log:2"},
        {"seen_at": "2026-11-20 10:00:02", "engine": "e0", "name": "request.aborted", "request_id": "other", "src": "log:3"},
    ],
    "config_facts": [
        {"subject": "e0", "name": "max_model_len", "value": "4096"},
        {"subject": "e0", "name": "max_position_embeddings", "value": "131072"},
        {"subject": "e0", "name": "max_num_seqs", "value": "64"},
    ],
}


@pytest.mark.parametrize("row", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_request_on_a_busy_engine_is_no_incident(row):
    evaluation = together({"subjects": [{"request_id": "r", **PLAIN, **row}], **BUSY})
    fired = {result.runbook.id for result in evaluation.results if isinstance(result.of("r"), Fired)}
    assert fired == {"no-incident"}
    assert conclude(evaluation, Subject(kind="request", request_id="r")).verdict.label == "no-incident"


def test_healthy_requests_judged_at_once_are_quiet_too():
    rows = [{"request_id": f"r{number}", **PLAIN, **row} for number, row in enumerate(HEALTHY.values())]
    evaluation = together({"subjects": rows, **BUSY})
    assert {finding.runbook for finding in evaluation.findings} == {"no-incident"}
    assert {finding.request_id for finding in evaluation.findings} == {row["request_id"] for row in rows}


def test_a_user_who_pressed_stop_is_neither_an_incident_nor_called_healthy():
    row = {
        "request_id": "r",
        **PLAIN,
        "outcome": "caller_gone",
        "status": 499,
        "streaming": True,
        "chunks": 30,
        "bytes_sent": 900,
        "total_ms": 7_310,
    }
    evaluation = together({"subjects": [row], **BUSY})
    assert evaluation.findings == ()
    assert conclude(evaluation, Subject(kind="request", request_id="r")).verdict.label == "inconclusive"


def test_queue_and_callers_limit_on_one_request_the_queue_is_the_root():
    """The caller's limit is known and was hit; what used it up was the line."""
    row = {
        "request_id": "r",
        **PLAIN,
        "outcome": "caller_gone",
        "status": 499,
        "client_timeout_ms": 10_000,
        "total_ms": 10_020,
        "queue_ms": 9_900,
        "queue_source": "scrape",
        "bytes_sent": 0,
    }
    conclusion = conclude(together({"subjects": [row], **BUSY}), Subject(kind="request", request_id="r"))
    assert conclusion.verdict.label == "queue-saturation"


def test_window_death_is_one_finding_with_the_cut_requests():
    row = {"request_id": "r", **PLAIN, "outcome": "cut", "streaming": True, "chunks": 9, "total_ms": 20_000}
    events = [*BUSY["events"], {"seen_at": "2026-11-20 10:00:30", "engine": "e0", "name": "engine.exited", "src": "log:9"}]
    conclusion = conclude(together({"subjects": [row], **BUSY, "events": events}), Subject(kind="request", request_id="r"))
    assert [(finding.label, finding.request_id) for finding in conclusion.findings] == [("engine-crash", "r")]
    assert conclusion.verdict.label == "engine-crash"
    assert len(conclusion.findings[0].evidence) > 2


def test_death_of_the_engine_after_a_healthy_answer_leaves_it_healthy():
    row = {"request_id": "r", **PLAIN, **HEALTHY["a stream"]}
    events = [*BUSY["events"], {"seen_at": "2026-11-20 10:00:40", "engine": "e0", "name": "engine.exited", "src": "log:9"}]
    conclusion = conclude(together({"subjects": [row], **BUSY, "events": events}), Subject(kind="request", request_id="r"))
    assert conclusion.verdict.label == "no-incident"
