"""A rule that lacks what it needs is unknown and names it; it never falls silent as if all were well."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from one_store import evaluated

from lensd.diagnosis.cases import Case, cases_path, load_cases
from lensd.diagnosis.evaluate import Answer, Quiet, Unknown
from lensd.diagnosis.runbook import Runbook, files, parse

BOOKS = [parse(path) for path in files().values()]
FIRING = [(book, case) for book in BOOKS for case in load_cases(cases_path(Path(book.path))) if case.expect == "fires"]


def without(case: Case, *needs: str) -> dict[str, list[dict[str, Any]]]:
    """The case's rows with these columns empty."""
    gone = {tuple(need.split(".")) for need in needs}
    return {
        table: [{**row, **{column: None for name, column in gone if name == table}} for row in rows] for table, rows in case.rows.items()
    }


def answer(book: Runbook, rows: dict[str, list[dict[str, Any]]]) -> Answer:
    [result] = evaluated(rows, [book]).results
    return result.of(None)


def needed() -> Iterator[Any]:
    for book, case in FIRING:
        yield from (pytest.param(book, case, (need,), (need,), id=f"{book.id}: {case.case}: {need}") for need in book.needs)
        if book.needs_any:
            every = tuple(need for group in book.needs_any for need in group)
            yield pytest.param(book, case, every, every, id=f"{book.id}: {case.case}: {', '.join(every)}")


def one_of_several() -> Iterator[Any]:
    for book, case in FIRING:
        for need in (need for group in book.needs_any for need in group):
            yield pytest.param(book, case, need, id=f"{book.id}: {case.case}: {need}")


@pytest.mark.parametrize(("book", "case", "gone", "named"), list(needed()))
def test_without_what_it_needs_it_is_unknown_with_that_name(book, case, gone, named):
    said = answer(book, without(case, *gone))
    assert isinstance(said, Unknown)
    assert set(named) <= set(said.missing)


EVENTS = "events.name"
ONLY_WITNESS = {
    # that the beginning changes is told by one, that nothing of it was found again by the other
    "the gateway's record of the complete answer, after the line of the caller that left (a gateway of one's own)": {
        "events.name",
        "http_exchanges.request_id",
    },
    "SGLang reads a long talk anew at each turn, in chunks, and something in it changes": {"events.name", "points.value"},  # likewise
    "a proxy tells of calls with one beginning, of which the file of the prompt says that it changes": {
        EVENTS,
        "http_exchanges.cached_tokens",
    },
    "a hybrid model's block is larger than the prompts": {"engine_samples.prefix_queries_total"},  # that somebody asked the cache at all
    "a card is lost to the sampler while the others go on": {EVENTS},  # the sampler's word; that the other cards go on says nothing
    "what Ollama reckoned, with a context too long for the card": {EVENTS},  # its log; the facts that are left speak of other things
    # by the facts that are left, all is on the GPU
    "every layer on the GPU by name, with the experts of all of them in main memory": {EVENTS},
    # of how many layers 28 are asked onto the GPU nobody says any more
    "the log's beginning is gone, and more than half of the KV cache lies in main memory": {EVENTS},
    # the driver's word for why; a clock that stays below a neighbour's may have been set so
    "one look at two cards, one of them held back by heat": {"gpu_samples.throttle"},
    "three readings in forty seconds, of a card that the power brake holds back among its neighbours": {"gpu_samples.throttle"},
    "two hosts with the same card and load, one of them held at half the power": {"gpu_samples.throttle"},
    # one reading of a process is left, which shows no growth
    "the card's own series, and one listing that names the only process on it": {"gpu_samples.used_bytes"},
    "a pod is told to stop while nothing runs, and its engine calls itself dead": {EVENTS},  # the calls that are left were all served
    # that fewer run while others wait; a setting that was lowered and hurts nobody is no incident
    "two scrapes, and between them the revision whose diff lowered the batch (TensorRT-LLM)": {
        "engine_samples.waiting",
        "engine_samples.running",
    },
    # when the first byte came by either way; the engine's own time is that of a sound one
    "one call by two ways, as long as a whole, and the proxy that buffers gives nothing for two seconds (llama.cpp's own timings)": {
        "http_exchanges.ttfb_ms"
    },
    "a cache with room, counted once": {"engine_samples.generation_tps"},  # that tokens are made; nothing else here says that all is well
    # what changes is told by one, that nothing of it was found again by the other
    "counters say that nothing is found, and what changes stands at the beginning of the prompts": {
        EVENTS,
        "engine_samples.prefix_queries_total",
    },
    "spans say what form was wanted, and a dump of the threads what the engine does": {"spans.attributes"},  # that a form was wanted
    # what the engine took in and what it aborted is told by one, whose caller had left by the other
    "the engine took in what the first proxy saw cut, by its ids, and aborted only what was asked of it directly (vLLM behind LiteLLM)": {
        EVENTS,
        "http_exchanges.request_id",
    },
    "two probes by their ids, one asked the engine itself and was aborted, one asked the gateway and ran on": {
        EVENTS,
        "http_exchanges.request_id",
    },
}
"""Cases that one of several sources alone tells of, by what is then gone, while what is left is true of a sound machine too."""


@pytest.mark.parametrize(("book", "case", "gone"), list(one_of_several()))
def test_without_one_of_several_it_may_still_tell_but_is_not_quiet(book, case, gone):
    is_quiet = isinstance(answer(book, without(case, gone)), Quiet)
    assert is_quiet == (gone in ONLY_WITNESS.get(case.case, ()))


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.id)
def test_every_rule_has_a_case_that_fires_one_that_is_quiet_and_one_that_is_unknown(book):
    assert {case.expect for case in load_cases(cases_path(Path(book.path)))} == {"fires", "quiet", "unknown"}
