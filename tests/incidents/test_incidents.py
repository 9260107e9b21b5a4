"""Our own labelled incidents: the set that rules were developed on first; `LENSD_EVERY_INCIDENT=1` adds the others."""

import os

import pytest
import scoring

EVERY = os.environ.get("LENSD_EVERY_INCIDENT") == "1"
INCIDENTS = scoring.incidents(set(scoring.sets()) - {scoring.GIVEN_SET} if EVERY else {"a"})
BOOKS = scoring.BOOKS.values()
NAMEABLE = {book.label for book in BOOKS}
LABELS = scoring.vocabulary()


@pytest.mark.parametrize("case", INCIDENTS, ids=lambda case: case.id)
def test_an_incident_is_named_or_nothing_false_is_said_of_it(case):
    one = scoring.Judged(case, scoring.prediction(scoring.diagnose(case, LABELS)))
    said = f"{one.label}: {one.prediction.citations}"
    assert not one.took_trap, said
    assert not one.is_wrong, said
    if case.truth.label in NAMEABLE:
        assert one.is_right, said


def test_every_label_has_an_incident_of_ours():
    assert {one.truth.label for one in scoring.incidents({"a"})} == set(LABELS)


def test_what_must_be_cited_stands_in_what_is_handed_over():
    for one in INCIDENTS:
        texts = "\n".join((one.folder / name).read_text(encoding="utf-8", errors="replace") for name in one.artefacts)
        assert [text for text in one.truth.must_cite if text not in texts] == [], one.id
        assert set(one.truth.traps).isdisjoint({one.truth.label, *one.truth.also_accept}), one.id


def test_a_score_of_made_up_verdicts():
    right, trap, half, noise = (
        scoring.Incident("i", "a", scoring.OURS, "easy", (), scoring.Truth(label, stage, also, traps, must))
        for label, stage, also, traps, must in (
            ("queue-saturation", "queue", (), (), ("waiting 9", "running 4")),
            ("kv-cache-leak", "engine", (), ("queue-saturation",), ()),
            ("gateway-idle-timeout", "streaming", ("gateway-total-timeout",), (), ()),
            ("no-incident", "none", (), (), ()),
        )
    )
    judged = [
        scoring.Judged(right, scoring.Prediction(("queue-saturation",), "queue", ("a waiting 9 b",))),
        scoring.Judged(trap, scoring.Prediction(("queue-saturation", "kv-cache-leak"), "queue", ())),
        scoring.Judged(half, scoring.Prediction(("gateway-total-timeout",), "streaming", ())),
        scoring.Judged(noise, scoring.Prediction(("inconclusive",), "none", ())),
    ]
    found = scoring.score(judged)
    assert (found.n, found.top1, found.half, found.top3, found.trap_rate) == (4, 0.25, 0.375, 0.5, 0.25)
    assert (found.stage, found.cite_recall) == (0.75, 0.5)
    assert (found.false_alarms, found.negatives, found.missed, found.wrong, found.inconclusive) == (1, 1, 0, 0.25, 0.25)
