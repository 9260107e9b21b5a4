"""Whatever is in the folder: a verdict or one line that says why not, never a traceback, never a cause made of noise."""

import errno
import os
import shutil
from pathlib import Path

import incident_texts as t
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triage_folder import run, write

from lensd.diagnosis import folder
from lensd.errors import UnreadableError

CRASH = t.lines(t.stats("10:31:00", running=5, waiting=0), *t.TRACEBACK)
HEADS = (
    b"", CRASH.encode(), b"HTTP/1.1 401 Unauthorized\n\n", b'{"resourceSpans": [', b'[\n{"trace_id": "a", "span_id": "b", "attributes": {',
    b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n", b"$ curl http://x/v1\n", b'{"max_position_embeddings": ',
    b"vllm serve x --max-model-len ", b'{"error": {"message": ', b'INFO:     1.2.3.4:5 - "GET /v1/models HTTP/1.1" 200 OK\n', b"\xff\xfe",
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(HEADS), st.binary(max_size=400)), min_size=1, max_size=4))
def test_random_bytes_after_the_heads_of_real_files(tmp_path: Path, parts: list[tuple[bytes, bytes]]) -> None:
    root = tmp_path / "f"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for number, (head, tail) in enumerate(parts):
        (root / str(number)).write_bytes(head + tail)
    try:
        found = run(root)
    except UnreadableError:
        return
    allowed = {"inconclusive", "no-incident"} | ({"engine-crash"} if any(head == HEADS[1] for head, _ in parts) else set())
    assert found.verdict.label in allowed | ({"auth-wrong-key"} if any(b"Unauthorized" in head for head, _ in parts) else set())


def test_an_empty_folder_and_empty_files_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"nothing in .* was understood"):
        run(tmp_path)
    (tmp_path / "a.log").touch()
    (tmp_path / "b").mkdir()
    with pytest.raises(UnreadableError, match=r"nothing in .* was understood"):
        run(tmp_path)


def test_empty_and_strange_files_beside_a_log_do_no_harm(tmp_path: Path) -> None:
    write(
        tmp_path, {"a/b/c/d/e/engine.log": CRASH, "a/notes (1).md": "what happened?\n", "ünïcode – 日本.txt": "", "a/b/x y.log": "\n" * 50}
    )
    (tmp_path / "core.bin").write_bytes(os.urandom(4096))
    found = run(tmp_path)
    assert found.verdict.label == "engine-crash"
    assert {file.path for file in found.files} == {
        "a/b/c/d/e/engine.log", "a/notes (1).md", "ünïcode – 日本.txt", "a/b/x y.log", "core.bin",
    }  # fmt: skip


def test_one_huge_line_is_read_and_what_follows_keeps_its_number(tmp_path: Path) -> None:
    huge = "(EngineCore pid=77) ERROR 11-18 10:00:00 [core.py:1] " + "x" * (5 << 20)
    write(tmp_path, {"engine.log": huge + "\n" + CRASH})
    found = run(tmp_path)
    assert found.findings[0].evidence[0].source == "engine.log:3"
    assert found.findings[0].evidence[0].quote == t.TRACEBACK[0]


def test_a_huge_line_without_an_end_in_each_kind_of_file(tmp_path: Path) -> None:
    for number, head in enumerate(HEADS):
        (tmp_path / str(number)).write_bytes(head + b"a" * (2 << 20))
    assert run(tmp_path).verdict.label in ("engine-crash", "inconclusive", "auth-wrong-key")


def test_links_in_a_circle_are_walked_once(tmp_path: Path) -> None:
    write(tmp_path, {"a/engine.log": CRASH})
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "again.log").symlink_to(tmp_path / "a" / "engine.log")
    found = run(tmp_path)
    assert found.verdict.label == "engine-crash"
    assert [file.path for file in found.files if file.records] == ["a/engine.log"]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"outside/engine.log": CRASH, "inside/ok.log": t.lines(t.access(), t.stats("10:00:00", running=1, waiting=0))})
    (tmp_path / "inside" / "engine.log").symlink_to(tmp_path / "outside" / "engine.log")
    found = run(tmp_path / "inside")
    assert found.verdict.label == "inconclusive"
    assert {file.path: file.kind for file in found.files}["engine.log"] == "unreadable: a link out of the folder"


def test_a_file_named_by_a_link_is_read(tmp_path: Path) -> None:
    write(tmp_path, {"engine-7.log": CRASH})
    (tmp_path / "latest").symlink_to("engine-7.log")
    assert run(tmp_path / "latest").verdict.label == "engine-crash"


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    write(tmp_path, {"engine.log": CRASH})
    os.mkfifo(tmp_path / "pipe")
    assert run(tmp_path).verdict.label == "engine-crash"


def test_a_file_that_vanishes_or_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"engine.log": CRASH, "gone.prom": t.scrape("10:00:00", num_requests_running=1.0), "secret.log": CRASH})
    real = folder.read

    def read(path: Path, **more: object) -> object:
        if path.name == "gone.prom":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if path.name == "secret.log":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(folder, "read", read)
    found = run(tmp_path)
    assert found.verdict.label == "engine-crash"
    kinds = {file.path: file.kind for file in found.files}
    assert kinds["gone.prom"] == "unreadable: No such file or directory"
    assert kinds["secret.log"] == "unreadable: Permission denied"


def test_only_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"secret.log": CRASH})

    def read(path: Path, **_: object) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(folder, "read", read)
    with pytest.raises(UnreadableError, match=r"^cannot read secret.log in .*: Permission denied$"):
        run(tmp_path)


def test_a_file_that_vanishes_before_it_is_quoted_leaves_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"engine.log": CRASH})
    real = folder.read

    def read(path: Path, **more: object) -> object:
        rows = real(path, **more)  # type: ignore[arg-type]
        path.unlink()
        return rows

    monkeypatch.setattr(folder, "read", read)
    [line, *_] = run(tmp_path).findings[0].evidence
    assert (line.quote, line.source) == (None, "engine.log:2")


def test_too_many_files_are_refused_before_any_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5000):
        (tmp_path / f"{number}.log").touch()
    monkeypatch.setattr(folder, "read", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UnreadableError, match=r"^more than the 2000 files that are read at once: name a folder below"):
        run(tmp_path)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"^no such file or folder: .*nowhere$"):
        run(tmp_path / "nowhere")


def test_the_year_of_a_log_is_that_of_what_is_dated_beside_it(tmp_path: Path) -> None:
    """The log's own time of change is that of a copy; the scrapes say 2023."""
    scrapes = {
        f"m{n}.prom": t.scrape(clock, num_requests_running=2.0).replace(t.DAY, "2023-11-18")
        for n, clock in enumerate(("10:30:00", "10:31:00"))
    }
    write(tmp_path, {**scrapes, "engine.log": CRASH})
    read = folder.read_folder([tmp_path])
    [event] = {row.seen_at // 31_556_952_000_000 for row in read.files["engine.log"].rows["events"]}  # type: ignore[attr-defined]
    assert 1970 + event == 2023


def test_one_engines_rotated_logs_are_one_engine(tmp_path: Path) -> None:
    write(tmp_path, {"engine.log.1": t.lines(t.started("09:00:00"), t.ready()), "engine.log": CRASH})
    read = folder.read_folder([tmp_path])
    assert {row.engine for file in read.files.values() for row in file.rows["events"]} == {None}  # type: ignore[attr-defined]
