# ruff: noqa: E501  (lines as programs print them)
"""Tracebacks of every form and of several processes at once: one error each, with its own calls, and no line counted as not understood."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.dialects import load
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.read.lines import Clock, rfc3339
from lensd_collectors.rows import Event, Row


def read(lines: list[str], at_us: int | None = None) -> tuple[list[Event], int]:
    reader = LineReader(load()["vllm"], engine="e", path="log")
    rows: list[Row] = [row for number, line in enumerate(lines, 1) for row in reader.feed(line, number=number, at_us=at_us)]
    return [row for row in rows if isinstance(row, Event)], reader.unread


def calls(event: Event) -> object:
    return json.loads(event.fields or "{}").get("stack")


def traceback(prefix: str, function: str, error: str) -> list[str]:
    body = [
        "Traceback (most recent call last):",
        f'  File "/v/{function}.py", line 7, in {function}',
        "    return run()",
        "           ^^^^^",
        error,
    ]
    return [prefix + line for line in body]


PREFIXES = {
    "0.6 to 0.9, bare": "",
    "0.6 to 0.9, workers": "(VllmWorkerProcess pid=41) ERROR 12-25 10:00:01 worker.py:42] ",
    "0.8, framed": "ERROR 12-25 10:00:01 [core.py:42] ",
    "0.10 on, framed": "(EngineCore_DP0 pid=2) ERROR 11-29 14:45:50 [core.py:1512] ",
    "0.10 on, printed": "(Worker_TP0 pid=3) ",
    "torchrun": "[rank3]: ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_an_error_of_no_known_meaning_is_told_once_with_its_calls(prefix: str) -> None:
    events, unread = read(traceback(prefix, "step", "ValueError: something odd"))
    assert [(event.name, event.severity, calls(event), event.seq) for event in events] == [("engine.log.error", "error", ["step"], 5)]
    assert unread == 0


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_an_error_of_known_meaning_has_its_calls_too(prefix: str) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 350.00 MiB. GPU 0 has a total capacity of 23.68 GiB of which 212.81 MiB is free."
    events, unread = read(traceback(prefix, "forward", oom))
    assert [(event.name, calls(event)) for event in events] == [("engine.oom", ["forward"])]
    assert unread == 0


@settings(deadline=None)
@given(st.sampled_from(list(PREFIXES.values())[3:]), st.data())
def test_processes_that_print_at_once_keep_their_own_calls(form: str, data: st.DataObject) -> None:
    """Four ranks, each with its own error, their lines in any order that keeps each rank's own."""
    left = {
        rank: traceback(
            form.replace("pid=2", f"pid=2{rank}").replace("pid=3", f"pid=3{rank}").replace("rank3", f"rank{rank}"),
            f"f{rank}",
            f"ValueError: of {rank}",
        )
        for rank in range(4)
    }
    lines = []
    while left:
        rank = data.draw(st.sampled_from(sorted(left)))
        lines.append(left[rank].pop(0))
        if not left[rank]:
            del left[rank]
    for at_us in (None, 5):
        events, unread = read(lines, at_us)
        assert sorted((str(event.line)[-4:], calls(event)) for event in events) == [(f"of {rank}", [f"f{rank}"]) for rank in range(4)]
        assert unread == 0


def test_the_same_error_printed_again_without_frame_is_one() -> None:
    framed, bare = PREFIXES["0.10 on, framed"], PREFIXES["0.10 on, printed"]
    events, unread = read(
        traceback(framed, "step", "ValueError: odd") + traceback(bare, "step", "ValueError: odd") + traceback("", "step", "ValueError: odd")
    )
    assert [event.seq for event in events] == [5]
    assert unread == 0


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit: 0", "asyncio.exceptions.CancelledError"])
def test_being_told_to_stop_is_no_error(error: str) -> None:
    assert read(traceback("", "serve", error)) == ([], 0)


def test_torchs_own_lines() -> None:
    events, unread = read(
        [
            "[rank0]:[W1129 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] odd but well",
            "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] of no known meaning",
        ]
    )
    assert [(event.name, event.severity, event.seq) for event in events] == [("engine.log.error", "error", 2)]
    assert unread == 0


def test_torchs_own_lines_say_when() -> None:
    reader = LineReader(load()["vllm"], engine="e", path="log", clock=Clock(rfc3339("2026-11-29T12:00:00Z"), dated=True))
    lines = (
        "INFO 11-29 01:57:00 [x.py:1] the last that was heard",
        "[rank0]:[E1129 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] of no known meaning",
    )
    [event] = [row for number, line in enumerate(lines, 1) for row in reader.feed(line, number=number, at_us=None)]
    assert isinstance(event, Event)
    assert event.seen_at == rfc3339("2026-11-29T02:07:08.408271Z")


def test_text_that_only_looks_like_the_end_of_a_traceback_is_not_one() -> None:
    assert read(["ValueError: said without any traceback", '  File "/x.py", line 3, in f', "loading: 3"]) == ([], 3)


def test_lines_of_another_program_do_not_end_a_traceback() -> None:
    head = traceback("", "step", "ValueError: odd")
    events, unread = read([*head[:2], "Loading shards: 100%", *head[2:]])
    assert [calls(event) for event in events] == [["step"]]
    assert unread == 1


def test_a_call_has_the_path_of_its_module_and_nothing_of_the_machine() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/somebody/serve/hub.py", line 3, in handle_loop',
        "    await take()",
        '  File "/opt/venv/lib/python3.12/site-packages/zmq/_future.py", line 9, in _chain',
        "    loaded = load(buf)",
        "msgspec.DecodeError: MessagePack data is malformed: trailing characters (byte 1)",
    ]
    [event], _ = read(lines)
    assert json.loads(event.fields or "{}")["stack_files"] == ["serve/hub.py", "zmq/_future.py"]
