"""Health is said on grounds of its own, never on somebody else's, and not where something beside the requests looks ill."""

import msgspec
import pytest
from test_causes import FILES, REQUEST, book, evaluation, finding, judged

from lensd.diagnosis.cases import fill
from lensd.diagnosis.causes import conclude
from lensd.diagnosis.doubts import IDS, doubt, doubts
from lensd.diagnosis.evaluate import Evaluation, Result, Unknown
from lensd.diagnosis.runbook import load
from lensd.store.memory import MemoryStore

WELL = finding("no-incident", kind="negative", request_id="r", stage="none")
BOOKS = {"no-incident": book("no-incident", kind="negative"), "odd@window": book("odd@window", kind="negative", scope="window")}


def conclusion(*findings, subject=REQUEST, unknown=(), subjects=None, given=()):
    return conclude(evaluation(*findings, unknown=unknown, books=BOOKS, subjects=subjects), subject, given).verdict


def test_a_healthy_request_is_healthy_whatever_became_of_others_judged_with_it():
    both = [judged(outcome="ok"), judged(request_id="other")]
    assert conclusion(WELL, subjects=both).label == "no-incident"
    assert conclusion(WELL, subjects=both, subject=FILES).label == "inconclusive"


def test_grounds_of_the_window_are_none_for_a_request_that_failed():
    engine_is_well = finding("odd@window", kind="negative", request_id=None, stage="none")
    assert conclusion(engine_is_well).label == "inconclusive"
    assert conclusion(engine_is_well, subjects=[], subject=FILES).label == "odd"


def test_a_rule_that_asks_for_more_about_it_stands_against_it():
    asked = {"auth-wrong-key": Unknown(missing=("subjects.decision",), pointed=True)}
    assert conclusion(WELL, unknown=asked.items()).label == "inconclusive"


def test_a_doubt_is_named_instead_of_health():
    verdict = conclusion(WELL, subjects=[judged(outcome="ok")], subject=FILES, given=(doubt("errors-logged", ["engine.log:9"]),))
    assert verdict.label == "inconclusive"
    assert verdict.cause == "could not tell: what was served was served well, but errors are logged (engine.log:9)"


CALM = finding("odd@window", kind="negative", request_id=None, stage="none", rank=0.5)
ACCOUNTING = {**BOOKS, "odd@window": book("odd@window", kind="negative", scope="window", accounts_for=("requests-wait", "callers-left"))}


def accounted(*findings, subjects=(), given=(), unknown=()):
    found = evaluation(*findings, books=ACCOUNTING, subjects=list(subjects))
    if unknown:
        named = Result(runbook=book("curious@window", scope="window"), window_unknown=unknown)
        found = Evaluation(results=(*found.results, named), subjects=found.subjects)
    return conclude(found, FILES, [doubt(name) for name in given]).verdict


def test_a_negative_of_the_window_answers_for_the_doubts_it_names_and_for_no_other():
    assert accounted(CALM, given=["requests-wait"]).label == "odd"
    assert "errors are logged" in accounted(CALM, given=["requests-wait", "errors-logged"]).cause
    assert accounted(WELL, subjects=[judged(outcome="ok")], given=["requests-wait"]).label == "inconclusive"


def test_requests_without_grounds_of_their_own_are_doubts_too():
    served, left, failed = judged(outcome="ok"), judged(request_id="q", outcome="caller_gone"), judged(request_id="f", outcome="failed")
    assert accounted(CALM, WELL, subjects=[served, left]).label == "odd"
    assert "requests were not served (f)" in accounted(CALM, WELL, subjects=[served, left, failed]).cause
    assert "callers left before their answer was whole (q)" in accounted(WELL, subjects=[served, left]).cause


def test_of_two_negatives_the_one_that_says_more_is_the_verdict():
    weightier = msgspec.structs.replace(WELL, rank=0.9)
    assert accounted(CALM, WELL, subjects=[judged(outcome="ok")]).label == "odd"
    assert accounted(CALM, weightier, subjects=[judged(outcome="ok")]).label == "no-incident"


def test_a_rule_that_saw_something_in_the_window_and_asks_stands_against_a_negative_of_files():
    assert accounted(CALM, unknown=Unknown(missing=("events.name",))).label == "odd"
    assert accounted(CALM, unknown=Unknown(missing=("events.name",), pointed=True)).label == "inconclusive"


def test_what_the_built_in_negatives_account_for_exists_and_is_theirs_alone():
    named = [name for one in load().values() for name in one.accounts_for]
    assert set(named) <= IDS
    assert {one.kind for one in load().values() if one.accounts_for} == {"negative"}
    assert len(named) == len(set(named))


AT = "2026-11-18 10:00:00"
LATER = "2026-11-18 10:01:00"


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ({"events": [{"name": "engine.log.error", "severity": "error", "src": "e:1"}]}, ("errors are logged (e:1)",)),
        ({"events": [{"name": "engine.ready", "severity": "info", "src": "e:1"}]}, ()),
        ({"http_exchanges": [{"status": 404, "src": "h:1"}, {"status": 200, "src": "h:2"}]}, ("calls were answered with an error (h:1)",)),
        ({"http_exchanges": [{"status": 503, "src": "h:1"}, {"status": 200, "src": "h:2"}]}, ("calls failed (h:1)",)),
        ({"http_exchanges": [{"error_code": "read_timeout", "src": "h:1"}]}, ("calls failed (h:1)",)),
        ({"http_exchanges": [{"status": 499, "src": "h:1"}]}, ("callers left before their answer was whole (h:1)",)),
        (
            {"events": [{"name": "container.oom_killed", "severity": "critical", "src": "e:1"}]},
            ("containers were killed or ended badly (e:1)",),
        ),
        ({"gpu_samples": [{"gpu": "0", "xid": 79, "src": "g:1"}]}, ("a device reports faults (g:1)",)),
        ({"engine_samples": [{"running": 3, "waiting": 1, "waiting_deferred": 1, "src": "m:1"}]}, ()),
        ({"engine_samples": [{"running": 3, "waiting": 1, "src": "m:1"}]}, ("requests wait (m:1)",)),
        (
            {"engine_samples": [{"running": 0, "waiting": 0, "kv_usage": 0.9, "src": "m:1"}]},
            ("the KV cache is held with nobody there (m:1)",),
        ),
        ({"engine_samples": [{"running": 3, "waiting": 0, "kv_usage": 0.94, "src": "m:1"}]}, ()),
        ({"engine_samples": [{"up": False, "src": "m:1"}]}, ("the engine does not answer (m:1)",)),
        (
            {
                "engine_samples": [
                    {"seen_at": AT, "running": 3, "waiting": 0, "generation_tokens_total": 7, "src": "m:1"},
                    {"seen_at": LATER, "running": 3, "waiting": 0, "generation_tokens_total": 7, "src": "m:2"},
                ]
            },
            ("the engine makes no tokens though requests run (m:2)",),
        ),
        (
            {
                "engine_samples": [
                    {"seen_at": AT, "running": 3, "waiting": 0, "generation_tokens_total": 7, "preemptions_total": 1, "src": "m:1"},
                    {"seen_at": LATER, "running": 3, "waiting": 0, "generation_tokens_total": 9, "preemptions_total": 5, "src": "m:2"},
                ]
            },
            ("running requests are thrown out (m:2)",),
        ),
    ],
)
def test_what_speaks_against_health(rows, found):
    store = MemoryStore(memory_limit="256MiB")
    try:
        fill(store, rows)
        with store.cursor() as cursor:
            assert tuple(map(str, doubts(cursor))) == found
    finally:
        store.close()
