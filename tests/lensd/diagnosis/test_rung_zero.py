"""What samples alone can name: of each picture all rules together give one cause, and a request on such an engine gets its own."""

from pathlib import Path

import pytest
from one_store import evaluated

from lensd.diagnosis.cases import cases_path, load_cases
from lensd.diagnosis.causes import Conclusion, conclude
from lensd.diagnosis.runbook import load
from lensd.records import Subject

BOOKS = load()
OF_WINDOWS = [
    (book, case)
    for book in BOOKS.values()
    if book.scope == "window"
    for case in load_cases(cases_path(Path(book.path)))
    if case.expect == "fires"
]
FILES = Subject(kind="files")
ONE = Subject(kind="request", request_id="r")


def concluded(rows, subject=FILES) -> Conclusion:
    return conclude(evaluated(rows, BOOKS.values()), subject)


def scrapes(*readings, every_s=15):
    """Samples of e0, one each `every_s` from 10:00:00, over what does not change."""
    fixed = {"engine": "e0", "model": "tiny", "waiting": 0, "kv_usage": 0.3, "preemptions_total": 0, "prompt_tokens_total": 50, "up": True}
    at = [f"2026-11-20 10:{number * every_s // 60:02d}:{number * every_s % 60:02d}" for number in range(len(readings))]
    return [{**fixed, "seen_at": seen_at, "src": f"s:{seen_at}", **reading} for seen_at, reading in zip(at, readings, strict=True)]


STALLED = scrapes(
    *(
        {"running": 3, "waiting": n, "generation_tokens_total": 900, "finished_total": 7, "start_at": "2026-11-20 08:00:00"}
        for n in range(8)
    )
)
THRASHING = scrapes(
    *(
        {
            "running": 4,
            "waiting": 6,
            "kv_usage": 0.99,
            "preemptions_total": 9 * n,
            "generation_tokens_total": 60 * n,
            "finished_total": 2 * n,
        }
        for n in range(8)
    )
)
LINED_UP = scrapes(*({"running": 4, "waiting": 9 + n, "generation_tokens_total": 800 * n, "finished_total": 5 * n} for n in range(8)))
WORKING = scrapes(
    *(
        {"running": 60 + n % 3, "waiting": n % 2, "kv_usage": 0.98, "generation_tokens_total": 9000 * n, "finished_total": 90 * n}
        for n in range(9)
    )
)
HELD = {"request_id": "r", "engine": "e0", "model": "tiny", "started_at": "2026-11-20 10:00:20", "src": "span:1"}
GAVE_UP = {**HELD, "outcome": "caller_gone", "status": 499, "total_ms": 60_000, "client_timeout_ms": 60_000, "bytes_sent": 0, "chunks": 0}


@pytest.mark.parametrize(("book", "case"), OF_WINDOWS, ids=[f"{book.id}: {case.case}" for book, case in OF_WINDOWS])
def test_all_rules_together_name_one_cause_of_what_a_window_shows(book, case):
    found = concluded({name: rows for name, rows in case.rows.items() if name != "subjects"})
    assert found.verdict.label == book.label
    roots = {one.label for one in found.findings if one.kind == "cause" and one.explained_by is None}
    assert roots == (set() if book.kind == "negative" else {book.label})


@pytest.mark.parametrize(
    ("samples", "label"),
    [
        (STALLED, "engine-silent-stall"),
        (THRASHING, "kv-preemption-thrash"),
        (LINED_UP, "queue-saturation"),
        (WORKING, "no-incident"),
    ],
    ids=["stalled", "thrashing", "a line", "full and working"],
)
def test_each_picture_has_its_own_name(samples, label):
    found = concluded({"engine_samples": samples})
    assert (found.verdict.label, [one.label for one in found.findings]) == (label, [label])


def test_what_stands_still_is_the_root_of_a_callers_timeout():
    found = concluded({"subjects": [{**GAVE_UP, "queue_ms": 59_000, "queue_source": "scrape"}], "engine_samples": STALLED}, ONE)
    assert (found.verdict.label, found.verdict.stage) == ("engine-silent-stall", "engine")
    assert {one.label for one in found.findings if one.explained_by is None} == {"engine-silent-stall"}


def test_in_line_behind_evictions_is_thrash_and_no_line():
    found = concluded({"subjects": [{**GAVE_UP, "queue_ms": 59_000, "queue_source": "scrape"}], "engine_samples": THRASHING}, ONE)
    assert found.verdict.label == "kv-preemption-thrash"
    assert "queue-saturation" not in {one.label for one in found.findings}


@pytest.mark.parametrize("samples", [STALLED, THRASHING, LINED_UP], ids=["stalled", "thrashing", "a line"])
def test_a_wrong_key_is_a_wrong_key_whatever_the_engine_suffers(samples):
    row = {**HELD, "outcome": "refused", "status": 401, "decision": "key_unknown", "said_by": "gateway", "total_ms": 2}
    assert concluded({"subjects": [row], "engine_samples": samples}, ONE).verdict.label == "auth-wrong-key"


@pytest.mark.parametrize("samples", [THRASHING, LINED_UP], ids=["thrashing", "a line"])
def test_a_request_that_was_served_in_time_meanwhile_is_well(samples):
    served = {"streaming": False, "finish_reason": "stop", "queue_ms": 3, "queue_source": "llm_request", "prefill_ms": 40, "decode_ms": 700}
    states = {f"{stage}_state": "ok" for stage in ("auth_routing", "queue", "prefill", "decode", "streaming")}
    row = {**HELD, "outcome": "ok", "status": 200, "decision": "allowed", "said_by": "engine", "total_ms": 760, **served, **states}
    assert concluded({"subjects": [row], "engine_samples": samples}, ONE).verdict.label == "no-incident"
