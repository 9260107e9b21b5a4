"""Each whole line once, whatever happens to the file."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.host import tail as tail_module
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import resolve
from lensd_collectors.host.facts import Facts
from lensd_collectors.host.logs import LogFollower, last_line_with
from lensd_collectors.host.tail import MOST_LINE_BYTES, Tail


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def follow(path: Path, rate: int = 1000, clock: Clock | None = None) -> Tail:
    return Tail(path, rate, clock or Clock())


def texts(tail: Tail) -> list[tuple[str, int]]:
    return [(line.text, line.number) for line in tail.poll()]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_follows_from_the_end_and_keeps_the_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old 1\nold 2\nhalf")
    tail = follow(log)
    assert texts(tail) == []
    append(log, " done\nnew\n")
    assert texts(tail) == [("half done", 3), ("new", 4)]
    assert texts(tail) == []


def test_a_file_that_comes_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = follow(log)
    assert texts(tail) == []
    log.write_text("a\nb\n")
    assert texts(tail) == [("a", 1), ("b", 2)]


def test_partial_line_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    tail = follow(log)
    append(log, "he")
    assert texts(tail) == []
    append(log, "llo\r\n")
    assert texts(tail) == [("hello", 1)]


def test_rotation_reads_the_old_file_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\n")
    tail = follow(log)
    append(log, "b\n")
    log.rename(tmp_path / "log.1")
    append(tmp_path / "log.1", "c\nlast without end")
    assert texts(tail) == [("b", 2), ("c", 3)]
    log.write_text("d\n")
    assert texts(tail) == [("last without end", 4), ("d", 1)]


@pytest.mark.parametrize("new", ["x\n", "quite another text, longer than before\n"])
def test_truncation_starts_again(tmp_path: Path, new: str) -> None:
    log = tmp_path / "log"
    log.write_text("aaaa\n")
    tail = follow(log)
    append(log, "bbbb\npart")
    assert texts(tail) == [("bbbb", 2)]
    with log.open("w") as file:
        file.write(new)
    assert texts(tail) == [("part", 3), (new.rstrip(), 1)]


def test_rate_delays_and_loses_nothing(tmp_path: Path) -> None:
    log, clock = tmp_path / "log", Clock()
    log.touch()
    tail = follow(log, 10, clock)
    append(log, "".join(f"{n}\n" for n in range(25)))
    assert [n for _, n in texts(tail)] == list(range(1, 11))
    assert texts(tail) == []
    clock.now += 0.5
    assert [n for _, n in texts(tail)] == list(range(11, 16))
    clock.now += 60
    assert [n for _, n in texts(tail)] == list(range(16, 26))


def test_a_lag_too_long_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "MOST_LAG_BYTES", 20)
    log = tmp_path / "log"
    log.touch()
    tail = follow(log)
    append(log, "".join(f"line {n:02d}\n" for n in range(100)))
    got = texts(tail)
    assert got == [("line 98", 99), ("line 99", 100)] or got[-1] == ("line 99", 100)
    assert len(got) <= 3
    assert tail.skipped_bytes == 800 - 8 * len(got)
    assert tail.standing == ("followed", "it was written faster than the rate allows: a part was skipped")


def test_long_line_is_cut_and_the_next_one_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    tail = follow(log)
    append(log, "x" * (3 * MOST_LINE_BYTES))
    assert texts(tail) == []
    append(log, "y" * 10 + "\nnext\n")
    assert texts(tail) == [("x" * MOST_LINE_BYTES, 1), ("next", 2)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["line\n", "pa", "rt\n", "\n", "rotate", "é\n"]), max_size=30), st.integers(1, 5))
def test_any_order_of_writes_gives_each_line_once(tmp_path_factory: pytest.TempPathFactory, steps: list[str], rate: int) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, clock = folder / "log", Clock()
    log.touch()
    tail, expected, got, whole = follow(log, rate, clock), [], [], ""
    for index, step in enumerate(steps):
        if step == "rotate":
            for _ in range(40):
                clock.now += 1
                got += [text for text, _ in texts(tail)]
            expected += whole.split("\n")[:-1] + ([whole.rpartition("\n")[2]] if not whole.endswith("\n") and whole else [])
            os.rename(log, folder / f"log.{index}")
            log.touch()
            whole = ""
        else:
            append(log, step)
            whole += step
        clock.now += 0.1
        got += [text for text, _ in texts(tail)]
    for _ in range(60):
        clock.now += 1
        got += [text for text, _ in texts(tail)]
    tail.close()
    assert got == expected + whole.split("\n")[:-1]


def follower(recorder: Any, log: Path) -> LogFollower:
    engine = resolve(WatchedEngine(url="http://127.0.0.1:8100", name="e0", log=str(log)))
    facts = Facts(engine, recorder, lambda engine, path: b"", lambda: 5)
    return LogFollower(engine, recorder, facts, follow(log), lambda: 5)


PROBES = 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK\n(APIServer pid=1) INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK\n'


def test_lines_become_events(recorder: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    following = follower(recorder, log)
    append(log, "\n   \n")
    append(log, 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable\n')
    append(log, "\x1b[1;36m(EngineCore pid=2)\x1b[0;0m ERROR 11-29 14:45:50 [x.py:1] died, api_key='sk-planted123'\n")
    append(log, "(APIServer pid=1) INFO 11-29 14:53:50 [a.py:1] non-default args: {'api_key': '***', 'max_num_seqs': 4}\n")
    following.follow()
    assert lines_of(recorder) == [
        ("3", "INFO", 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable'),
        ("4", "ERROR", "(EngineCore pid=2) ERROR 11-29 14:45:50 [x.py:1] died, api_key='[key]'"),
        ("5", "INFO", "(APIServer pid=1) INFO 11-29 14:53:50 [a.py:1] non-default args: {'api_key': '***', 'max_num_seqs': 4}"),
    ]
    assert recorder.facts() == {"max_num_seqs": "4"}


def lines_of(recorder: Any) -> list[tuple[str, str, str]]:
    lines = [event for event in recorder.events if event.event_name == "lensd.engine.log"]
    return [(recorder.attributes(each)["lensd.log.line"], each.severity_text, each.body.string_value) for each in lines]


def test_of_probes_the_first_is_told_and_then_one_a_minute(recorder: Any, tmp_path: Path) -> None:
    log, now = tmp_path / "log", [0]
    log.touch()
    engine = resolve(WatchedEngine(url="http://127.0.0.1:8100", name="e0", log=str(log)))
    facts = Facts(engine, recorder, lambda engine, path: b"", lambda: now[0])
    following = LogFollower(engine, recorder, facts, follow(log), lambda: now[0])
    for _ in range(121):
        append(log, PROBES)
        following.follow()
        now[0] += 1_000_000_000
    told = [number for number, _, text in lines_of(recorder) if "/health" in text]
    assert told == ["1", "121", "241"], "at 0, 60 and 120 s"
    assert len(lines_of(recorder)) == 6


def test_the_wrappers_own_instant_is_the_lines(recorder: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    following = follower(recorder, log)
    append(log, "2026-11-29T14:43:00.123456789Z stdout F INFO:     Shutting down\nINFO:     Finished\n")
    following.follow()
    first, second = recorder.events
    assert (first.time_unix_nano, first.body.string_value) == ("1795963380123456000", "INFO:     Shutting down")
    assert second.time_unix_nano == "5"


def test_an_earlier_start_gives_its_facts_but_no_events(recorder: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[a.py:1] non-default args: {'max_num_seqs': 2}\n[a.py:1] non-default args: {'max_num_seqs': 4}\n" + "x" * 100 + "\n")
    following = follower(recorder, log)
    following.look_back()
    following.follow()
    assert recorder.facts() == {"max_num_seqs": "4"}
    assert len(recorder.events) == 1


def test_the_facts_of_an_earlier_start_are_found_in_a_container_runtimes_file(recorder: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"log":"[a.py:1] non-default args: {\'max_num_seqs\': 4}\\n","stream":"stdout","time":"2026-11-29T14:43:00.5Z"}\n')
    follower(recorder, log).look_back()
    assert recorder.facts() == {"max_num_seqs": "4"}


def test_a_key_that_was_cut_in_two_does_not_leave_the_host(recorder: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    following = follower(recorder, log)
    append(log, "2026-11-29T14:43:00.1Z stdout P ERROR: refused: api_key='sk-plan\n")
    append(log, "2026-11-29T14:43:00.1Z stdout F ted12345'\n")
    following.follow()
    assert [text for _, _, text in lines_of(recorder)] == ["ERROR: refused: api_key='[key]'"]


@pytest.mark.parametrize("block", [3, 7, 16, 1000])
def test_last_line_is_found_over_block_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("lensd_collectors.host.logs.BLOCK_BYTES", block)
    log = tmp_path / "log"
    log.write_text("first MARK 1\nsecond MARK 2\nthird\nfourth\n")
    assert last_line_with(log, b"MARK") == "second MARK 2"
    assert last_line_with(log, b"first") == "first MARK 1"
    assert last_line_with(log, b"absent") == ""
    assert last_line_with(tmp_path / "no file", b"MARK") == ""
