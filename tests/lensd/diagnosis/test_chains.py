"""The built-in runbooks' own words on what follows from what: whole chains hang under their first link, by evidence and not by name."""

import msgspec
import pytest

from lensd.diagnosis.causes import rank
from lensd.diagnosis.runbook import load
from lensd.records import Confidence, Finding

BOOKS = load()
CHAINS = (
    (
        "config-drift",
        "oom-runtime-activation-spike",
        "engine-crash",
        "client-retry-storm",
        "queue-saturation",
        "client-read-timeout-too-short",
    ),
    ("config-drift", "kv-cache-too-small", "engine-crash"),
    ("gpu-memory-leak", "oom-runtime-activation-spike", "engine-crash", "gateway-idle-timeout", "client-retry-storm"),
    ("gpu-memory-held-by-other-process", "oom-profiling-warmup", "engine-start-failed", "engine-crash"),
    ("gpu-hardware-fault", "engine-hang-collective", "engine-silent-stall", "client-read-timeout-too-short"),
    ("host-ram-oom", "engine-crash", "client-retry-storm"),
    ("crash-loop-probe-kill", "cold-start-slow", "client-read-timeout-too-short"),
    ("unbounded-generation", "kv-preemption-thrash", "queue-saturation", "client-read-timeout-too-short"),
    ("prefix-cache-ineffective", "slow-prefill-long-prompt", "client-read-timeout-too-short"),
    ("queue-head-of-line-blocking", "queue-saturation", "client-read-timeout-too-short"),
    ("regression-after-upgrade", "queue-saturation", "client-read-timeout-too-short"),
    ("slow-decode-gpu-throttle", "queue-saturation", "client-read-timeout-too-short"),
    ("zombie-engine-abort-lost", "queue-saturation"),
    ("zombie-gateway-no-cancel", "queue-saturation"),
    ("auth-upstream-credential-missing", "route-wrong-model-name"),
    ("server-overload-reject", "queue-saturation"),
    ("engine-crash-malformed-input", "engine-hang-collective"),
)


def finding(label: str, **changes: object) -> Finding:
    """What a rule of this label would say, as sure as its front matter has it."""
    book = next(book for book in BOOKS.values() if book.label == label)
    explains = tuple(dict.fromkeys(each for other in BOOKS.values() if other.label == label for each in other.explains))
    plain = Finding(
        label=label,
        runbook=book.id,
        title=book.title,
        kind=book.kind,
        stage=book.stage,
        severity=book.severity,
        confidence=Confidence.CERTAIN,
        cause=book.title,
        fix=book.fix,
        explains=explains,
        engine="e0",
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize("chain", CHAINS, ids=" > ".join)
def test_a_chain_hangs_under_its_first_link(chain):
    for order in (chain, chain[::-1]):
        ranked = rank([finding(label) for label in order], BOOKS)
        assert ranked[0].label == chain[0]
        assert [one.label for one in ranked if one.explained_by is None] == [chain[0]]


@pytest.mark.parametrize("chain", CHAINS, ids=" > ".join)
def test_a_link_explains_the_next_also_where_it_is_less_sure_but_not_on_another_engine(chain):
    cause, effect = chain[:2]
    likely = finding(cause, confidence=Confidence.LIKELY)
    assert rank([finding(effect), likely], BOOKS)[0].label == cause
    elsewhere = rank([finding(effect), msgspec.structs.replace(likely, engine="e1")], BOOKS)
    assert [one.label for one in elsewhere] == [effect, cause]
    assert {one.explained_by for one in elsewhere} == {None}


def test_no_symptom_and_no_negative_explains_anything():
    assert {book.id for book in BOOKS.values() if book.explains and book.kind != "cause"} == set()
