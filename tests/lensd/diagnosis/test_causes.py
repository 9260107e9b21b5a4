"""Which finding explains which, what becomes the verdict, and what may not be said."""

import msgspec
import pytest

from lensd.diagnosis.causes import LATE_US, NOTICED_US, conclude, explains, gather, merge, rank
from lensd.diagnosis.evaluate import Evaluation, Judged, Result, Unknown
from lensd.diagnosis.runbook import load
from lensd.diagnosis.scope import instant
from lensd.records import Confidence, Evidence, Finding, Severity, Subject

BOOK = load()["auth-wrong-key"]
END_US = 10_000_000


def book(name, **changes):
    return msgspec.structs.replace(BOOK, **{"id": name, "label": name.split("@")[0], "scope": "request", **changes})


def finding(name, **changes):
    label = name.split("@")[0]
    return Finding(
        **{
            "label": label,
            "runbook": name,
            "title": name,
            "kind": "cause",
            "stage": "queue",
            "severity": Severity.WARNING,
            "confidence": Confidence.LIKELY,
            "cause": f"{name} it is",
            "fix": "fix it",
            **changes,
        }
    )


def judged(**changes):
    plain = {
        "request_id": "r",
        "engine": "e0",
        "model": "m",
        "outcome": "failed",
        "decision": "allowed",
        "started_at": instant(0),
        "ended_at": instant(END_US),
        "where": "decode",
    }
    return Judged(**{**plain, **changes})


def evaluation(*findings, unknown=(), books=None, subjects=None):
    names = {f.runbook for f in findings} | set(dict(unknown))
    results = [
        Result(
            runbook=(books or {}).get(name) or book(name, kind=next((f.kind for f in findings if f.runbook == name), "cause")),
            findings=tuple(f for f in findings if f.runbook == name),
            unknown={"r": dict(unknown)[name]} if name in dict(unknown) else {},
        )
        for name in sorted(names)
    ]
    made = subjects if subjects is not None else [judged()]
    return Evaluation(results=tuple(results), subjects={subject.request_id: subject for subject in made})


REQUEST = Subject(kind="request", request_id="r")
FILES = Subject(kind="files")


@pytest.mark.parametrize(
    ("cause", "effect", "expected"),
    [
        ({}, {}, True),
        ({"explains": ()}, {}, False),
        ({"kind": "symptom"}, {}, False),
        ({"engine": "e0"}, {"engine": "e0"}, True),
        ({"engine": "e0"}, {"engine": "e1"}, False),
        ({"engine": "e0"}, {}, True),
        ({"model": "a"}, {"model": "b"}, False),
        ({"gpu": "0"}, {"gpu": "1"}, False),
        ({"request_id": "r"}, {"request_id": "q"}, False),
        ({}, {"request_id": "q"}, True),
        ({"since_at": LATE_US}, {"since_at": 0}, True),
        ({"since_at": LATE_US + 1}, {"since_at": 0}, False),
        ({"since_at": LATE_US + 1}, {}, True),
    ],
)
def test_explains(cause, effect, expected):
    assert explains(finding("a", **{"explains": ("b",), **cause}), finding("b", **effect)) is expected


def test_rank_puts_the_root_first_though_its_effect_is_more_certain():
    ranked = rank([finding("b", confidence=Confidence.CERTAIN), finding("a", explains=("b",))], {})
    assert [(f.label, f.explained_by) for f in ranked] == [("a", None), ("b", "a")]


def test_a_guess_explains_nothing_that_is_certain_save_what_names_no_cause_of_its_own():
    found = [finding("b", confidence=Confidence.CERTAIN), finding("a", explains=("b",), confidence=Confidence.POSSIBLE)]
    assert [(f.label, f.explained_by) for f in rank(found, {"b": book("b")})] == [("b", None), ("a", None)]
    assert [(f.label, f.explained_by) for f in rank(found, {"b": book("b", precedence=0)})] == [("a", None), ("b", "a")]


def test_rank_then_confidence_then_precedence_then_rank():
    books = {"a": book("a", precedence=0), "b": book("b"), "c": book("c"), "d": book("d")}
    found = [finding("a", rank=9), finding("b", rank=0.1), finding("c", rank=0.2), finding("d", confidence=Confidence.CERTAIN)]
    assert [f.label for f in rank(found, books)] == ["d", "c", "b", "a"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"severity": Severity.CRITICAL}, {"rank": 0.9}),
        ({"rank": 0.2}, {"rank": 0.1, "evidence": (Evidence(text="quoted", source="a:1#line"),)}),
        ({"evidence": (Evidence(text="quoted", source="a:1#line"),)}, {"since_at": 9}),
        ({"since_at": 9}, {"since_at": 5}),
        ({"since_at": 9}, {}),
    ],
    ids=["worse", "holds more", "quoted", "later", "of a known hour"],
)
def test_of_two_roots_that_are_as_sure_the_weightier_comes_first_whatever_their_names(first, second):
    for names in (("a", "b"), ("b", "a")):
        found = [finding(names[1], **second), finding(names[0], **first)]
        assert [f.label for f in rank(found, {})] == list(names)


CHAIN = (
    ("changed-limit", ("kv-too-small", "oom")),
    ("oom", ("died",)),
    ("died", ("failed-calls", "timeouts")),
    ("timeouts", ("retries",)),
    ("retries", ("line",)),
)


def test_a_whole_chain_hangs_under_its_first_link_in_whatever_order_it_was_found():
    found = [finding(label, explains=explained, confidence=Confidence.CERTAIN) for label, explained in CHAIN[1:]]
    found += [finding("line", confidence=Confidence.CERTAIN), finding(CHAIN[0][0], explains=CHAIN[0][1])]
    for given in (found, found[::-1]):
        ranked = rank(given, {})
        assert {f.label: f.explained_by for f in ranked} == {
            "changed-limit": None, "oom": "changed-limit", "died": "oom", "timeouts": "died", "retries": "timeouts", "line": "retries",
        }  # fmt: skip
        assert ranked[0].label == "changed-limit"


def test_two_unrelated_roots_of_a_folder_are_both_said():
    verdict = conclude(evaluation(finding("a", severity=Severity.CRITICAL), finding("b"), finding("c")), FILES).verdict
    assert (verdict.label, verdict.cause) == ("a", "a it is; beside it, b and c")
    assert conclude(evaluation(finding("a"), finding("b", confidence=Confidence.POSSIBLE)), FILES).verdict.cause == "a it is"


def test_rank_names_the_best_of_several_causes_and_keeps_requests_apart():
    found = [
        finding("low", explains=("e",), confidence=Confidence.POSSIBLE, request_id="r"),
        finding("high", explains=("e",), request_id="r"),
        finding("e", request_id="r"),
        finding("e", request_id="q"),
    ]
    assert {(f.request_id, f.explained_by) for f in rank(found, {}) if f.label == "e"} == {("r", "high"), ("q", None)}


def test_rank_lets_a_requests_cause_explain_a_window_finding():
    found = [finding("a", explains=("w",), request_id="r", engine="e0"), finding("w", engine="e0")]
    assert [f.explained_by for f in rank(found, {}) if f.label == "w"] == ["a"]


def test_merge_joins_the_two_files_of_a_label():
    one = finding("x", request_id="r", engine="e0", evidence=(Evidence(text="one"),))
    two = finding("x@window", engine="e0", confidence=Confidence.CERTAIN, evidence=(Evidence(text="two"), Evidence(text="one")), since_at=5)
    (both,) = merge([one, two])
    assert (both.confidence, both.request_id, [line.text for line in both.evidence]) == (Confidence.CERTAIN, "r", ["two", "one"])
    assert len(merge([one, msgspec.structs.replace(two, engine="e1")])) == 2


def test_gather_makes_one_finding_of_many_requests():
    many = [finding("x", request_id=f"r{n}", engine="e0", since_at=n, rank=n) for n in range(7)]
    (one,) = gather(many)
    assert (one.request_id, one.since_at, one.rank) == (None, 0, 6)
    assert one.evidence[-1].text == "7 requests: r0, r1, r2, r3, r4 and 2 more"
    assert gather(many[:1]) == many[:1]


def test_verdict_is_the_root_also_two_steps_up():
    found = [
        finding("c", request_id="r"),
        finding("b", explains=("c",), engine="e0"),
        finding("a", explains=("b",), engine="e0", confidence=Confidence.POSSIBLE),
    ]
    conclusion = conclude(evaluation(*found), REQUEST)
    assert conclusion.verdict.label == "a"
    assert conclusion.findings[0].label == "a"


def test_a_requests_own_cause_goes_before_a_window_cause_beside_it():
    found = [finding("own", request_id="r", confidence=Confidence.POSSIBLE), finding("leak", engine="e0", confidence=Confidence.CERTAIN)]
    assert conclude(evaluation(*found), REQUEST).verdict.label == "own"


def test_a_window_cause_is_the_verdict_of_a_failed_request_that_reached_the_engine():
    leak = finding("leak", engine="e0")
    assert conclude(evaluation(leak), REQUEST).verdict.label == "leak"
    assert conclude(evaluation(leak, subjects=[judged(decision="rate_limited")]), REQUEST).verdict.label == "inconclusive"


def test_window_causes_of_another_engine_or_after_the_end_do_not_concern_the_request():
    late = finding("late", engine="e0", since_at=END_US + NOTICED_US + 1)
    conclusion = conclude(evaluation(finding("other", engine="e1"), late), REQUEST)
    assert conclusion.verdict.label == "inconclusive"
    assert conclusion.findings == ()


def test_a_healthy_request_stays_healthy_beside_a_window_cause():
    healthy = finding("no-incident", kind="negative", request_id="r", severity=Severity.INFO)
    conclusion = conclude(evaluation(healthy, finding("leak", engine="e0")), REQUEST)
    assert conclusion.verdict.label == "no-incident"
    assert {f.label for f in conclusion.findings} == {"no-incident", "leak"}


def test_a_negative_gives_way_to_the_requests_own_cause_and_to_a_rule_that_asks_for_more():
    healthy = finding("no-incident", kind="negative", request_id="r")
    assert conclude(evaluation(healthy, finding("own", request_id="r")), REQUEST).verdict.label == "own"
    asked = Unknown(missing=("subjects.decision",), pointed=True)
    assert conclude(evaluation(healthy, unknown=[("asks", asked)]), REQUEST).verdict.label == "inconclusive"
    lacking = Unknown(missing=("gpu_samples.util",))
    assert conclude(evaluation(healthy, unknown=[("lacks", lacking)]), REQUEST).verdict.label == "no-incident"


def test_symptoms_are_shown_and_never_the_verdict():
    conclusion = conclude(evaluation(finding("burn", kind="symptom", request_id="r", confidence=Confidence.CERTAIN)), REQUEST)
    assert conclusion.verdict.label == "inconclusive"
    assert [f.label for f in conclusion.findings] == ["burn"]


def test_inconclusive_names_what_is_missing_and_first_what_a_rule_asked_for():
    lacking = Unknown(missing=("engine_samples.waiting",))
    asked = Unknown(missing=("subjects.decision",), pointed=True)
    verdict = conclude(evaluation(unknown=[("a", lacking)]), REQUEST).verdict
    assert verdict.cause == "could not tell, because this is missing: engine_samples.waiting"
    assert (verdict.stage, verdict.severity) == ("decode", Severity.WARNING)
    conclusion = conclude(evaluation(unknown=[("a", lacking), ("b", asked)]), REQUEST)
    assert conclusion.verdict.cause == "could not tell, because this is missing: subjects.decision"
    assert [(n.label, n.missing) for n in conclusion.not_evaluated] == [("b", asked.missing), ("a", lacking.missing)]
    assert "no rule fits" in conclude(evaluation(), REQUEST).verdict.cause


def test_what_is_missing_is_named_by_what_it_would_tell():
    """One thing that a rule with everything else lacks, before what many rules lack among others."""
    books = {
        "near": book("near", needs=("events.name", "engine_samples.running", "gpu_samples.util")),
        **{name: book(name, needs=("points.value", "spans.name")) for name in ("far", "farther")},
    }
    much = Unknown(missing=("points.value", "spans.name"))
    unknown = [("near", Unknown(missing=("gpu_samples.util",))), ("far", much), ("farther", much)]
    verdict = conclude(evaluation(unknown=unknown, books=books), REQUEST).verdict
    assert verdict.cause == "could not tell, because this is missing: gpu_samples.util, points.value, spans.name"


def test_files_are_well_only_if_every_request_is():
    ok = finding("no-incident", kind="negative", request_id="r")
    both = [judged(), judged(request_id="q")]
    assert conclude(evaluation(ok, subjects=both), FILES).verdict.label == "inconclusive"
    also = msgspec.structs.replace(ok, request_id="q")
    assert conclude(evaluation(ok, also, subjects=both), FILES).verdict.label == "no-incident"
    assert conclude(evaluation(ok, also, finding("own", request_id="q"), subjects=both), FILES).verdict.label == "own"


def test_a_request_without_an_id_is_the_only_one_there_is():
    found = evaluation(finding("own", request_id="r"))
    assert conclude(found, Subject(kind="request", request_id=None)).verdict.label == "own"


def test_a_label_is_ruled_out_only_if_both_its_files_are_quiet():
    books = {"x": book("x"), "x@window": book("x@window", scope="window")}
    quiet = Result(runbook=books["x"])
    unknown = Result(runbook=books["x@window"], window_unknown=Unknown(missing=("events.name",)))
    subjects = {"r": judged()}
    half = conclude(Evaluation(results=(quiet, unknown), subjects=subjects), REQUEST)
    assert half.ruled_out == ()
    assert [n.label for n in half.not_evaluated] == ["x"]
    whole = conclude(Evaluation(results=(quiet, Result(runbook=books["x@window"])), subjects=subjects), REQUEST)
    assert [r.label for r in whole.ruled_out] == ["x"]


def test_a_label_whose_request_rule_was_quiet_on_the_request_is_not_its_verdict_by_the_window_alone():
    books = {"x": book("x"), "x@window": book("x@window", scope="window")}
    window = Result(runbook=books["x@window"], findings=(finding("x@window", engine="e0"),))
    conclusion = conclude(Evaluation(results=(Result(runbook=books["x"]), window), subjects={"r": judged()}), REQUEST)
    assert conclusion.verdict.label == "inconclusive"
    assert [f.runbook for f in conclusion.findings] == ["x@window"]
