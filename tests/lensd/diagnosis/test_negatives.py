"""Health is said on grounds of its own, never on somebody else's, and not where something beside the requests looks ill."""

import pytest
from test_causes import FILES, REQUEST, book, evaluation, finding, judged

from lensd.diagnosis.cases import fill
from lensd.diagnosis.causes import conclude
from lensd.diagnosis.doubts import doubts
from lensd.diagnosis.evaluate import Unknown
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
    verdict = conclusion(WELL, subjects=[judged(outcome="ok")], subject=FILES, given=("errors are logged (engine.log:9)",))
    assert verdict.label == "inconclusive"
    assert verdict.cause == "could not tell: the requests seen were served, but errors are logged (engine.log:9)"


AT = "2026-11-18 10:00:00"
LATER = "2026-11-18 10:01:00"


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ({"events": [{"name": "engine.log.error", "severity": "error", "src": "e:1"}]}, ("errors are logged (e:1)",)),
        ({"events": [{"name": "engine.ready", "severity": "info", "src": "e:1"}]}, ()),
        ({"http_exchanges": [{"status": 503, "src": "h:1"}, {"status": 200, "src": "h:2"}]}, ("calls were answered with an error (h:1)",)),
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
            assert doubts(cursor) == found
    finally:
        store.close()
