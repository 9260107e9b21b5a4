"""The rules about memory and hardware over each other's cases: each picture has one root, and a look-alike is nobody's by that name."""

from pathlib import Path

import pytest

from lensd.diagnosis.cases import Case, cases_path, evaluate_case, fill, load_cases
from lensd.diagnosis.causes import Conclusion, conclude
from lensd.diagnosis.evaluate import Evaluation, Fired
from lensd.diagnosis.runbook import Runbook, built_in_folder, parse
from lensd.records import Subject
from lensd.store.memory import MemoryStore

MEMORY = (
    "oom-model-load", "oom-profiling-warmup", "oom-runtime-activation-spike", "oom-fragmentation", "kv-cache-too-small", "kv-cache-leak",
    "gpu-memory-leak", "gpu-memory-held-by-other-process", "host-ram-oom", "config-drift", "scheduler-deadlock-never-fits",
    "gpu-hardware-fault", "slow-decode-gpu-throttle", "slow-decode-cpu-offload",
)  # fmt: skip
ENDS_ENGINES = (
    "oom-model-load", "oom-profiling-warmup", "oom-runtime-activation-spike", "oom-fragmentation", "kv-cache-too-small",
    "gpu-memory-held-by-other-process", "host-ram-oom", "gpu-hardware-fault",
)  # fmt: skip
"""What can end an engine; its death is then an effect, whatever the engine says of it."""

THERE = {
    path.stem: parse(path)
    for path in sorted(built_in_folder().glob("*.md"))
    if path.stem.partition("@")[0] in MEMORY and cases_path(path).is_file()
}
CRASH = {name: parse(built_in_folder() / f"{name}.md") for name in ("engine-crash", "engine-crash@window", "engine-silent-stall@window")}
CASES = [(book, case) for book in THERE.values() for case in load_cases(cases_path(Path(book.path)))]


def of(expect: str) -> tuple[list[tuple[Runbook, Case]], list[str]]:
    some = [(book, case) for book, case in CASES if case.expect == expect]
    return some, [f"{book.id}: {case.case}" for book, case in some]


def judged(case: Case) -> tuple[Evaluation, Conclusion]:
    store = MemoryStore(memory_limit="256MiB")
    try:
        keys, bounds = fill(store, case.rows)
        with store.cursor() as cursor:
            evaluation = evaluate_case(cursor, [*THERE.values(), *CRASH.values()], keys, bounds)
    finally:
        store.close()
    one = next(iter(evaluation.subjects), None)
    return evaluation, conclude(evaluation, Subject(kind="request", request_id=one) if one else Subject(kind="files"))


def named(evaluation: Evaluation) -> set[str]:
    answers = [(result.runbook.label, result.of(None)) for result in evaluation.results]
    return {label for label, answer in answers if isinstance(answer, Fired)}


@pytest.mark.parametrize("name", MEMORY)
def test_a_rule_of_this_name_is_there_with_its_cases(name: str) -> None:
    if not (built_in_folder() / f"{name}.md").is_file():
        pytest.skip("not written yet")
    assert name in THERE
    assert {case.expect for book, case in CASES if book.label == name} == {"fires", "quiet", "unknown"}


@pytest.mark.parametrize(("book", "case"), of("fires")[0], ids=of("fires")[1])
def test_what_one_rule_names_no_other_calls_a_root(book: Runbook, case: Case) -> None:
    evaluation, conclusion = judged(case)
    roots = {finding.label for finding in conclusion.findings if finding.kind == "cause" and finding.explained_by is None}
    assert (conclusion.verdict.label, roots) == (book.label, {book.label}), sorted(named(evaluation))


@pytest.mark.parametrize(("book", "case"), [*of("quiet")[0], *of("unknown")[0]], ids=[*of("quiet")[1], *of("unknown")[1]])
def test_a_look_alike_has_not_this_name(book: Runbook, case: Case) -> None:
    evaluation, conclusion = judged(case)
    assert book.label not in named(evaluation)
    assert conclusion.verdict.label != book.label


@pytest.mark.parametrize("name", ENDS_ENGINES)
def test_what_can_end_an_engine_explains_its_death_and_is_explained_by_none_of_its_effects(name: str) -> None:
    if name not in THERE:
        pytest.skip("not written yet")
    assert "engine-crash" in THERE[name].explains
    assert all(name not in book.explains for book in CRASH.values())


def test_the_gpus_and_the_hosts_memory_do_not_explain_each_other() -> None:
    if "host-ram-oom" not in THERE:
        pytest.skip("not written yet")
    gpu = {name for name in THERE if name.startswith(("oom-", "gpu-memory"))}
    assert not gpu & set(THERE["host-ram-oom"].explains)
    assert all("host-ram-oom" not in THERE[name].explains for name in gpu)
