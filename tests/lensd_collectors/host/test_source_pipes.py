"""Standard input never holds up its writer; the kernel's log is followed from now on, and names the engine whose process it killed."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.host.kmsg import MOST_PIDS, KernelFollower, Kmsg, Pids
from lensd_collectors.host.line import FOLLOWED, MOST_LINE_BYTES, Splitter, State
from lensd_collectors.host.standard_input import StandardInput

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = os.pipe()
    yield made
    for fd in made:
        with contextlib.suppress(OSError):
            os.close(fd)


def test_lines_of_standard_input_and_its_end(pipe: Pipe) -> None:
    reading, writing = pipe
    source = StandardInput(1000, lambda: 0.0, reading)
    assert list(source.poll()) == []
    os.write(writing, b"one\ntw")
    assert [(line.text, line.number) for line in source.poll()] == [("one", 1)]
    os.write(writing, b"o\r\nlast")
    os.close(writing)
    assert [(line.text, line.number) for line in source.poll()] == [("two", 2), ("last", 3)]
    assert source.standing == (State.ENDED, "its end was reached")
    assert list(source.poll()) == []


def test_its_writer_never_waits_and_what_is_dropped_is_counted(pipe: Pipe) -> None:
    reading, writing = pipe
    source = StandardInput(10, lambda: 0.0, reading)
    fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
    given = 0
    for _ in range(100):
        os.write(writing, b"0123456789012345678901234567890\n" * 1000)  # BlockingIOError: the writer would wait
        given += len(list(source.poll()))
    assert (given, source.dropped) == (10, 100_000 - 10)
    assert source.standing == (State.FOLLOWED, "more lines came than the rate allows: some were dropped")


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20)))
def test_bytes_cut_anywhere_give_the_same_lines(parts: list[bytes]) -> None:
    splitter = Splitter()
    lines = [line for part in parts for line in splitter.feed(part)]
    whole = b"".join(parts).split(b"\n")
    assert [*lines, splitter.rest()] == [line.rstrip(b"\r").decode("utf-8", "replace") for line in whole]


def test_a_line_without_end_is_bounded() -> None:
    splitter = Splitter()
    for _ in range(100):
        assert splitter.feed(b"x" * 10_000) == []
    assert [len(line) for line in splitter.feed(b"\nnext\n")] == [MOST_LINE_BYTES, 4]


KERNEL = (
    b"6,1,10,-;usb 1-1: new device\n SUBSYSTEM=usb\n"
    b"3,1201,99,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4471, name=python3, GPU has fallen off the bus.\n DEVICE=+pci:0000:3b:00.0\n"
    b"3,1202,99,-;Memory cgroup out of memory: Killed process 4471 (VLLM::EngineCor) total-vm:90000000kB\n"
    b"3,1203,99,-;Out of memory: Killed process 99 (chrome) total-vm:1kB\n"
    b"not a record; Killed process 1 (x)\n"
)


def test_what_the_kernel_says_of_gpus_and_killed_processes(recorder: Any, tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    source, pids = Kmsg(fifo), Pids()
    pids.add(4471, "e0")
    follower = KernelFollower(recorder, source, pids, lambda: 5)
    follower.follow()
    with fifo.open("wb", buffering=0) as file:
        for start in range(0, len(KERNEL), 50):
            file.write(KERNEL[start : start + 50])
            follower.follow()
    assert source.standing == FOLLOWED
    told = [(recorder.attributes(each).get("lensd.engine"), recorder.attributes(each)["lensd.log.line"]) for each in recorder.events]
    assert told == [("e0", "1201"), ("e0", "1202"), (None, "1203")]
    assert {recorder.attributes(each)["lensd.engine.kind"] for each in recorder.events} == {"kernel"}
    assert recorder.events[1].body.string_value.startswith("Memory cgroup out of memory: Killed process 4471")
    source.close()


def test_records_that_were_overwritten_are_counted_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kmsg").touch()
    source = Kmsg(tmp_path / "kmsg")
    answers: list[bytes | OSError] = [BrokenPipeError(), b"3,7,1,-;later\n", BlockingIOError()]

    def read(fd: int, most: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("lensd_collectors.host.kmsg.os.read", read)
    assert [(line.text, line.number) for line in source.poll()] == [("later", 7)]
    assert source.lost == 1
    assert source.standing == (State.FOLLOWED, "records were overwritten before they were read")
    source.close()


@pytest.mark.parametrize(
    ("error", "standing"),
    [
        (PermissionError(1, "Operation not permitted"), (State.DENIED, "operation not permitted")),
        (FileNotFoundError(2, "No such file or directory"), (State.MISSING, "no such file or directory")),
    ],
)
def test_a_kernel_log_that_may_not_be_read_is_named(monkeypatch: pytest.MonkeyPatch, error: OSError, standing: tuple[State, str]) -> None:
    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr("lensd_collectors.host.kmsg.os.open", refuse)
    source = Kmsg()
    assert source.standing == standing
    assert list(source.poll()) == []


def test_processes_that_are_gone_are_remembered_up_to_a_limit() -> None:
    pids = Pids()
    for pid in range(MOST_PIDS + 10):
        pids.add(pid, "e")
    assert pids.engine_in("Killed process 9 (x)") is None
    assert pids.engine_in("Killed process 10 (x)") == "e"
    assert pids.engine_in("no process named") is None
