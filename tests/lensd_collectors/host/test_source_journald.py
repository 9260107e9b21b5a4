"""A unit's lines through a journalctl that may end, be denied, be missing or write half a line: each once, and where it stopped."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lensd_collectors.host.journald import MOST_WAIT_S, Journal
from lensd_collectors.host.line import FOLLOWED, State

FAKE = """#!{python}
import json, os, sys, time
folder = {folder!r}
with open(folder + "/calls", "a") as file:
    file.write(json.dumps([os.getpid(), *sys.argv[1:]]) + "\\n")
sys.stderr.write(open(folder + "/stderr").read())
sys.stderr.flush()
given = 0
while not os.path.exists(folder + "/end"):
    data = open(folder + "/out").read()
    sys.stdout.write(data[given:])
    sys.stdout.flush()
    given = len(data)
    time.sleep(0.01)
os.unlink(folder + "/end")
sys.exit(1)
"""


class Unit:
    """A fake journalctl and what it is to print."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0
        for name in ("out", "stderr", "calls"):
            (folder / name).touch()
        self.journal = Journal("vllm.service", 1000, lambda: self.now, wall_s=lambda: 1_700_000_000.9)

    def prints(self, text: str) -> None:
        with (self.folder / "out").open("a") as file:
            file.write(text)

    def ends(self) -> None:
        (self.folder / "out").write_text("")
        (self.folder / "end").touch()

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def lines(self) -> list[str]:
        return [json.loads(line.text)["MESSAGE"] for line in self.journal.poll()]

    def until(self, done: Callable[[], object], got: list[str]) -> None:
        limit = time.monotonic() + 10
        while not done():
            assert time.monotonic() < limit, f"did not come: {got} {self.journal.standing}"
            got += self.lines()
            time.sleep(0.01)


def entry(number: int) -> str:
    return json.dumps({"__CURSOR": f"s=1;i={number}", "__REALTIME_TIMESTAMP": str(1_700_000_000_000_000 + number), "MESSAGE": f"m{number}"})


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unit]:
    import sys

    binary = tmp_path / "bin" / "journalctl"
    binary.parent.mkdir()
    binary.write_text(FAKE.format(python=sys.executable, folder=str(tmp_path)))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    made = Unit(tmp_path)
    yield made
    made.journal.close()


def test_lines_come_once_and_a_new_child_goes_on_after_the_last(unit: Unit) -> None:
    got: list[str] = []
    unit.prints(entry(1) + "\n" + entry(2)[:20])
    unit.until(lambda: got, got)
    unit.prints(entry(2)[20:] + "\n")
    unit.until(lambda: len(got) == 2, got)
    unit.ends()
    unit.until(lambda: unit.journal.standing.state is State.MISSING, got)
    assert "ended" in unit.journal.standing.reason
    assert unit.lines() == [], "not before its time"
    unit.prints(entry(3) + "\n")
    unit.now += 2
    unit.until(lambda: len(got) == 3, got)
    assert got == ["m1", "m2", "m3"]
    assert unit.journal.standing == FOLLOWED
    first, second = unit.calls()
    assert first[1:3] == ["--unit=vllm.service", "--follow"]
    assert "--lines=0" in first
    assert {"--after-cursor=s=1;i=2", "--no-tail"} <= set(second)


def test_a_child_that_ends_before_its_first_line_loses_nothing(unit: Unit) -> None:
    unit.until(lambda: unit.calls(), [])
    unit.ends()
    unit.until(lambda: unit.journal.standing.state is State.MISSING, [])
    unit.now += 2
    unit.until(lambda: len(unit.calls()) == 2, [])
    assert {"--since=@1700000000", "--no-tail"} <= set(unit.calls()[1])


def test_a_user_who_may_not_read_the_journal_is_told_so(unit: Unit) -> None:
    (unit.folder / "stderr").write_text("Hint: You are currently not seeing messages from other users and the system.\n")
    unit.until(lambda: unit.journal.standing.state is State.DENIED, [])
    assert unit.journal.standing.reason == "this user may not read the system's journal"


def test_no_journalctl_is_named_and_tried_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [0.0]
    journal = Journal("x.service", 1000, lambda: now[0], wall_s=lambda: 0.0, command=str(tmp_path / "journalctl"))
    starts = 0
    started = journal._start

    def counted() -> bool:
        nonlocal starts
        starts += 1
        return started()

    monkeypatch.setattr(journal, "_start", counted)
    for _ in range(36_000):
        now[0] += 0.1
        assert list(journal.poll()) == []
    assert journal.standing.state is State.MISSING
    assert journal.standing.reason.endswith("journalctl: no such file or directory")
    assert 3600 / MOST_WAIT_S <= starts <= 3600 / MOST_WAIT_S + 8


def test_closing_ends_the_child(unit: Unit) -> None:
    unit.until(lambda: unit.calls(), [])
    pid = int(unit.calls()[0][0])
    unit.journal.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def test_what_comes_over_the_rate_waits(unit: Unit) -> None:
    unit.journal._allowance._rate = 10
    unit.prints("".join(entry(number) + "\n" for number in range(35)))
    got: list[str] = []
    for at_most in (10, 20, 30, 35):
        unit.now += 1
        unit.until(lambda at_most=at_most: len(got) == at_most, got)  # type: ignore[misc]
        assert unit.lines() == []
    assert got == [f"m{number}" for number in range(35)]
