"""What the front matter says of when a rule can be told, and when it is to be asked, is checked."""

from pathlib import Path

import pytest
from runbook_files import FRONT, write

from lensd.diagnosis.check import check
from lensd.store.memory import MemoryStore

WINDOW = FRONT.replace("scope: request", "scope: window").replace("[subjects.queue_ms]", "[requests.queue_ms]")
WINDOW_SQL = "select engine, queue_ms, cite(src, 'queue_ms') as queue_cite from requests where queue_ms > $least_ms"


@pytest.fixture
def problems(tmp_path: Path):
    def of(front: str, **more: str) -> list[str]:
        store = MemoryStore(memory_limit="256MiB")
        try:
            with store.cursor() as cursor:
                return [f"{problem.line}: {problem.message}" for problem in check([write(tmp_path, front=front, **more)], cursor)]
        finally:
            store.close()

    return of


@pytest.mark.parametrize(
    "more",
    [
        "asks: queue_ms > 5\n",
        "asks: outcome = 'timed_out' or status between 500 and 599\n",
        'rung: "3b"\nrung_because: because of that\n',
        "rung: host\nrung_because: because of that\n",
        "live: false\n",
    ],
)
def test_what_holds(more: str, problems) -> None:
    assert problems(FRONT + more) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("asks: queue_mss > 5\n", "15: asks is no condition on subjects: "),
        ("asks: queue_ms > $least_ms\n", "15: asks uses $least_ms, but no params are bound to it"),
        ("asks: queue_ms >\n", "15: asks is no condition on subjects: "),
        ("asks: (select count(*) from read_csv('/etc/passwd')) > 0\n", "15: asks is no condition on subjects: "),
        ("asks: true) from subjects; select (1\n", "15: asks is no condition on subjects: "),
        ('rung: "7"\nrung_because: why\n', "15: rung is 7; the rungs are 0, 1, 2, 3a, 3b, 4, 5, host"),
        ('rung: "1"\n', "15: rung and rung_because go together"),
        ("rung_because: why\n", "15: rung and rung_because go together"),
        ('live: false\nrung: "1"\nrung_because: why\n', "16: rung is said of a rule with live: false"),
        ("accounts_for: [errors-logged]\n", "15: accounts_for is for negatives"),
    ],
)
def test_what_does_not_hold(more: str, said: str, problems) -> None:
    assert [problem for problem in problems(FRONT + more) if problem.startswith(said)], problems(FRONT + more)


def test_asks_of_a_window_rule(problems) -> None:
    found = problems(WINDOW + "asks: queue_ms > 5\n", sql=WINDOW_SQL)
    assert "15: asks is for request rules: it is a condition on subjects" in found


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('stirs: {engine_samples: "max(waiting) > $least_ms"}\nstirs_before: back\n', None),
        ('stirs: {engine_samples: "max(waiting) > $least"}\n', "stirs uses $least, which params does not have"),
        ('stirs: {engine_sample: "max(waiting) > 1"}\n', "stirs names engine_sample, which is no public table"),
        ('stirs: {engine_samples: "max(wating) > 1"}\n', "stirs is no condition on engine_samples"),
        ("stirs_before: least_ms\n", "stirs_before names least_ms, which is no duration in params"),
        ("stirs_before: nothing\n", "stirs_before names nothing, which is no duration in params"),
    ],
)
def test_what_stirs_a_window_rule(more: str, said: str | None, problems) -> None:
    front = WINDOW.replace("{least_ms: 10}", "{least_ms: 10, back: 1d}")
    found = problems(front + more, sql=f"{WINDOW_SQL} and started_at > $from - $back")
    assert (found == []) if said is None else any(said in problem for problem in found)
