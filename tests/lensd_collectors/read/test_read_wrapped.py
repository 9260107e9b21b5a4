"""A line is the same line whatever a container runtime, journald or a JSON formatter made of it, wherever they cut it."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.dialects import load
from lensd_collectors.read import Kind, read
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.read.lines import LONGEST_JOINED, Pieces, rfc3339, unwrap
from lensd_collectors.rows import Event, HttpExchange, Instant, Row

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
AT = "2026-11-29T14:43:00.123456789Z"
INSTANT = rfc3339(AT)
LINE = '(APIServer pid=1) ERROR 11-29 14:43:00 [x.py:1] it said "no", C:\\tmp, é and \t more'


def cri(pieces: list[str], stream: str = "stdout") -> list[str]:
    return [f"{AT} {stream} {'F' if number == len(pieces) else 'P'} {piece}" for number, piece in enumerate(pieces, 1)]


def docker(pieces: list[str], stream: str = "stderr") -> list[str]:
    return [
        json.dumps({"log": piece + ("\n" if number == len(pieces) else ""), "stream": stream, "time": AT})
        for number, piece in enumerate(pieces, 1)
    ]


def journald(pieces: list[str], _: str = "") -> list[str]:
    stamp = {"__REALTIME_TIMESTAMP": str(INSTANT), "__CURSOR": "s=1;i=2"}
    ends = [{"_LINE_BREAK": "line-max"}] * (len(pieces) - 1) + [{}]
    return [json.dumps({**stamp, **end, "MESSAGE": piece}) for piece, end in zip(pieces, ends, strict=True)]


Wrap = Callable[[list[str], str], list[str]]
WRAPS: list[Wrap] = [cri, docker, journald]


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(places)] or [text]


def joined(lines: list[str]) -> list[tuple[str, int | None, int]]:
    pieces = Pieces()
    return [tuple(whole) for number, line in enumerate(lines, 1) if (whole := pieces.take(unwrap(line), number)) is not None]


@settings(deadline=None)
@given(
    st.sampled_from(WRAPS), st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=80), st.lists(st.integers(0, 200))
)
def test_a_line_cut_anywhere_is_whole_again_at_its_first_piece(wrap: Wrap, text: str, cuts: list[int]) -> None:
    text = "x" + text  # as it is, no line of another kind begins with it
    assert joined(wrap(pieces_of(text, cuts), "stdout")) == [(text, INSTANT, 1)]


@settings(deadline=None)
@given(st.sampled_from([cri, docker]), st.lists(st.booleans(), min_size=4, max_size=12))
def test_pieces_of_two_streams_do_not_mix(wrap: Wrap, order: list[bool]) -> None:
    out, err = wrap(["(APIServer pid=1) ", "INFO ", "out"], "stdout"), wrap(["(EngineCore pid=2) ", "ERROR ", "err"], "stderr")
    lines = []
    for is_out in [*order, *[True] * 3, *[False] * 3]:
        chosen = out if is_out else err
        if chosen:
            lines.append(chosen.pop(0))
    assert sorted(text for text, _, _ in joined(lines)) == ["(APIServer pid=1) INFO out", "(EngineCore pid=2) ERROR err"]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    pieces = Pieces()
    for number in range(200):
        assert pieces.take(unwrap(f"{AT} stdout P " + "x" * 16_000), number) is None
    [whole] = pieces.rest()
    assert len(whole.text) == LONGEST_JOINED
    for number in range(100):
        pieces.take(unwrap(json.dumps({"log": "x", "stream": f"s{number}", "time": AT})), number)
    assert len(pieces.rest()) <= 8


@pytest.mark.parametrize(
    "line",
    [
        '{"hello": "world"}',
        '{"log": "x"}',
        '{"log": 5, "time": "y", "stream": "stdout"}',
        '{"message": "no level"}',
        "{not json",
        '{"MESSAGE": null}',
        "[1, 2]",
    ],
)
def test_other_json_stays_as_it_is(line: str) -> None:
    assert unwrap(line) == (line, None, False, "")


@pytest.mark.parametrize("key", ["ts", "timestamp", "@timestamp"])
def test_a_shippers_records_are_whole_lines(key: str) -> None:
    assert unwrap(json.dumps({key: AT, "log": LINE})) == (LINE, INSTANT, False, "")


@pytest.mark.parametrize(
    "text", ["[2026-11-29 14:43:00] said", "Loading shards: 100%", '  File "x.py", line 1', "torch.OutOfMemoryError: CUDA"]
)
def test_slurms_labels_are_taken_off(text: str) -> None:
    assert unwrap(f"12: {text}").text == text
    assert unwrap("2: eth0: <BROADCAST,UP> mtu 1500").text == "2: eth0: <BROADCAST,UP> mtu 1500"


def test_bytes_that_are_no_text_and_what_is_too_long_for_journald() -> None:
    stamp = {"__REALTIME_TIMESTAMP": str(INSTANT)}
    assert unwrap(json.dumps({**stamp, "MESSAGE": [27, 91, 51, 54, 109, 104, 105, 255]})).text == "hi\ufffd"
    assert unwrap(json.dumps({**stamp, "MESSAGE": None})) == ("", INSTANT, False, "")


RECORD = {
    "asctime": "2026-11-29 14:43:00,123",
    "levelname": "ERROR",
    "name": "vllm.v1.engine.core",
    "processName": "EngineCore_DP0",
    "process": 27,
}


def test_vllms_json_lines_are_its_plain_lines() -> None:
    said = json.dumps(
        {
            **RECORD,
            "message": "EngineCore encountered a fatal error.",
            "exc_info": 'Traceback (most recent call last):\n  File "/a/core.py", line 3, in step\n    x()\nValueError: odd',
        }
    )
    frame = "(EngineCore_DP0 pid=27) ERROR 11-29 14:43:00 [vllm/v1/engine/core.py:0] "
    assert unwrap(said).text.split("\n") == [
        frame + "EngineCore encountered a fatal error.",
        frame + "Traceback (most recent call last):",
        frame + '  File "/a/core.py", line 3, in step',
        frame + "    x()",
        frame + "ValueError: odd",
    ]
    reader = LineReader(load()["vllm"], engine="e", path="log")
    rows = reader.feed(docker([said], "stdout")[0], number=7, at_us=None)
    events = [row for row in rows if isinstance(row, Event)]
    assert [(row.name, row.seen_at, row.seq) for row in events] == [("engine.dead", INSTANT, 7), ("engine.log.error", INSTANT, 7)]
    assert json.loads(events[1].fields or "{}")["stack"] == ["step"]


def test_uvicorns_json_lines_are_exchanges() -> None:
    said = json.dumps(
        {
            **RECORD,
            "levelname": "INFO",
            "name": "uvicorn.access",
            "processName": "MainProcess",
            "message": '10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 401',
        }
    )
    [row] = LineReader(load()["vllm"], engine="e", path="log").feed(said, number=1, at_us=None)
    assert isinstance(row, HttpExchange)
    assert (row.status, row.path) == (401, "/v1/completions")


def test_a_mailed_log_of_vllms_json_lines_is_a_vllm_log(tmp_path: Path) -> None:
    path = tmp_path / "log (2).txt"
    said = {**RECORD, "levelname": "INFO", "processName": "MainProcess", "name": "vllm.entrypoints.launcher"}
    path.write_text(
        "".join(json.dumps({**said, "message": text}) + "\n" for text in ("Using max model len 512", "something new", "Shutting down"))
    )
    found = read(path)
    assert (found.kind, found.dialect, found.unread_lines) == (Kind.ENGINE_LOG, "vllm", 0)
    assert [name for name, _ in told(found.rows["events"])] == ["engine.stopping"]
    assert len(found.rows["config_facts"]) == 1


def told(rows: list[Row]) -> list[tuple[str, str | None]]:
    return [(row.name or "", row.line) for row in rows if isinstance(row, Event)]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("name", ["kill9-server-log.txt", "killworker-server-log.txt", "startup-http-otlp-compile.log"])
def test_a_real_log_gives_the_same_events_wrapped_and_cut(tmp_path: Path, wrap: Wrap, name: str) -> None:
    lines = (CAPTURES / name).read_text(encoding="utf-8", errors="replace").split("\n")
    path = tmp_path / "mailed.txt"
    path.write_text("\n".join(piece for line in lines if line.strip() for piece in wrap(pieces_of(line, [40, 90]), "stdout")) + "\n")
    wrapped, plain = read(path, name="x"), read(CAPTURES / name, name="x")
    assert (wrapped.kind, wrapped.dialect, wrapped.unread_lines) == (Kind.ENGINE_LOG, "vllm", plain.unread_lines)
    assert told(wrapped.rows["events"]) == told(plain.rows["events"])
    assert all(row.seen_at == INSTANT for row in wrapped.rows["events"] if isinstance(row, Event))


def test_the_end_of_a_file_ends_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(
        "\n".join(cri(["(APIServer pid=1) INFO 11-29 14:43:00 [x.py:1] up"]) + cri(["INFO:     Shut", "ting down", "…"])[:2]) + "\n"
    )
    assert told(read(path).rows["events"]) == [("engine.stopping", "INFO:     Shutting down")]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(WRAPS), st.integers(0, 400), st.text(max_size=20))
def test_no_mangled_wrapper_makes_it_raise(wrap: Wrap, at: int, junk: str) -> None:
    reader = LineReader(load()["vllm"], engine=None, path="x")
    for number, line in enumerate(wrap([LINE, LINE], "stdout"), 1):
        reader.feed(line[: at % len(line)] + junk + line[at % len(line) :], number=number, at_us=5)
    reader.rest()


def test_what_journald_says_of_a_line_without_a_time_is_in_the_zone_of_those_that_have_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.txt"
    path.write_text(
        "Nov 04 08:10:02 box ollama[18]: time=2026-11-04T08:10:02+01:00 level=INFO source=routes.go:1 "
        'msg="Listening on [::]:11434 (version 0.12.6)"\n'
        "Nov 04 08:11:30 box ollama[18]: load_tensors: offloaded 49/49 layers to GPU\n"
    )
    found = read(path, reference_us=Instant(1_793_776_202_000_000))
    assert [row.seen_at for row in found.rows["events"] if isinstance(row, Event)] == [1_793_776_202_000_000, 1_793_776_290_000_000]


def test_what_a_shell_prints_below_a_date_was_seen_then(tmp_path: Path) -> None:
    path = tmp_path / "poll.txt"
    path.write_text(
        "# 2026-11-12 09:41:10\n$ curl -s localhost:8080/metrics | grep -v '^#'\nllamacpp:tokens_predicted_total 22\n"
        "llamacpp:requests_processing 3\nllamacpp:requests_deferred 1\n"
    )
    [sample] = read(path).rows["engine_samples"]
    assert getattr(sample, "seen_at", None) == 1_794_476_470_000_000
