"""However it was handed over: folder, archive or pipe, the verdict is the same; what is too large or too strange is one clear line."""

import bz2
import gzip
import io
import lzma
import os
import random
import resource
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import incident_texts as t
import pyarrow as pa
import pytest
from triage_folder import BOOKS, run, write

from lensd.diagnosis import find, unpack
from lensd.diagnosis.find import Intake
from lensd.diagnosis.triage import triage
from lensd.errors import UnreadableError
from lensd.timeline.limits import Limits

CRASH = t.lines(t.stats("10:31:00", running=5, waiting=0), *t.TRACEBACK)
FINE = t.lines(t.access(), t.stats("10:00:00", running=1, waiting=0))


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1_700_000_000
            archive.addfile(member, io.BytesIO(content))
    return path


def judged(*paths: Path, **limits: object):
    return triage(list(paths), BOOKS, {}, Limits(), None, Intake(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst", "no telling name"])
def test_an_archive_is_as_the_folder_in_it(tmp_path: Path, form: str) -> None:
    files = {"logs/engine.log": CRASH.encode(), "logs/other/ok.log": FINE.encode()}
    path = tmp_path / f"mailed.{form}"
    if form in ("zip", "no telling name"):
        zipped(path, files)
    else:
        plain = tarred(tmp_path / "plain", files).read_bytes()
        packed = {"tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress, "tar.zst": zstd}
        path.write_bytes(packed[form](plain))
    folder = write(tmp_path / "folder", {name: text.decode() for name, text in files.items()})
    from_folder, from_archive = run(folder), run(path)
    assert from_archive.verdict == from_folder.verdict
    assert [f.evidence for f in from_archive.findings] == [f.evidence for f in from_folder.findings]
    assert [f.path for f in from_archive.files] == [f.path for f in from_folder.files]


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


def test_a_rotated_log_in_a_tarball_in_a_zip_beside_a_plain_log(tmp_path: Path) -> None:
    inner = tarred(tmp_path / "t", {"engine.log.1.gz": gzip.compress(CRASH.encode())}).read_bytes()
    write(tmp_path / "mail", {"ok.log": FINE})
    zipped(tmp_path / "mail" / "all.zip", {"logs.tar": inner})
    found = run(tmp_path / "mail")
    assert found.verdict.label == "engine-crash"
    assert {file.path for file in found.files} == {"ok.log", "all.zip/logs.tar/engine.log.1.gz"}
    assert found.findings[0].evidence[0].source == "all.zip/logs.tar/engine.log.1.gz:2"


def test_archives_deeper_than_that_are_named(tmp_path: Path) -> None:
    content, name = CRASH.encode(), "engine.log"
    for depth in range(5):
        content, name = zipped(tmp_path / f"{depth}.zip", {name: content}).read_bytes(), f"{depth}.zip"
    with pytest.raises(UnreadableError, match="an archive in an archive in an archive"):
        run(tmp_path / "4.zip")


def test_names_in_an_archive_lead_nowhere_else(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", {"../../etc/engine.log": CRASH.encode(), "/abs.log": FINE.encode(), "..": b"x"})
    assert {file.path for file in run(path).files} == {"etc/engine.log", "abs.log"}
    assert not (tmp_path / "etc").exists()


def test_links_and_devices_in_a_tarball_are_named_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        member = tarfile.TarInfo("engine.log")
        member.size = len(CRASH)
        archive.addfile(member, io.BytesIO(CRASH.encode()))
    found = run(path)
    assert found.verdict.label == "engine-crash"
    assert {file.path: file.kind for file in found.files}["passwd"] == "unreadable: a link or device in an archive"


def test_of_an_archive_cut_short_what_came_out_is_read(tmp_path: Path) -> None:
    content = gzip.compress((CRASH * 400).encode() + random.Random(1).randbytes(200_000))
    (tmp_path / "engine.log.gz").write_bytes(content[: len(content) // 2])
    found = run(tmp_path)
    assert found.verdict.label == "engine-crash"
    assert any(file.kind.startswith("unreadable: cut short") for file in found.files)


@pytest.mark.parametrize("content", [b"PK\x03\x04 and no more", b"\x1f\x8b\x08\x00" + b"\xff" * 50, b"\xfd7zXZ\0\xff\xff", b"BZh9zzzz"])
def test_a_damaged_archive_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UnreadableError, match=r"^cannot read x in .*: a damaged archive \("):
        run(tmp_path / "x")


def test_an_encrypted_member_is_named(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", {"engine.log": CRASH.encode()})
    content = bytearray(path.read_bytes())
    for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + place] |= 1
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match=r"^cannot read engine.log in .*: encrypted$"):
        run(path)


def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.log", "w") as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    with pytest.raises(UnreadableError, match="grows to more than 250 times its size"):
        run(path)
    write(tmp_path / "mail", {"engine.log": CRASH})
    path.rename(tmp_path / "mail" / "bomb.zip")
    found = run(tmp_path / "mail")
    assert found.verdict.label == "engine-crash"
    assert any("250 times" in file.kind for file in found.files if file.path == "bomb.zip")


def test_many_members_are_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", {f"{number}.log": b"x" for number in range(unpack.MOST_MEMBERS + 1)})
    with pytest.raises(UnreadableError, match="holds more than the 2000 files"):
        run(path)


def test_no_more_is_read_than_was_allowed(tmp_path: Path) -> None:
    write(tmp_path, {"a.log": CRASH, "b.log": FINE * 100})
    found = judged(tmp_path, max_bytes=len(CRASH) + 10)
    assert found.verdict.label == "engine-crash"
    assert {file.path: file.kind for file in found.files}["b.log"] == "unreadable: it is larger than --max-bytes " + (
        f"{len(CRASH) + 10:,} bytes allows" if len(CRASH) < 1014 else f"{(len(CRASH) + 10) / 1024:,.2f} KiB allows"
    )
    zipped(tmp_path / "z.zip", {"engine.log": CRASH.encode() * 50})
    with pytest.raises(UnreadableError, match="larger than --max-bytes 1 KiB allows"):
        judged(tmp_path / "z.zip", max_bytes=1024)


def test_nothing_unpacked_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(find.tempfile, "tempdir", str(scratch))
    run(zipped(tmp_path / "x.zip", {"engine.log": CRASH.encode()}))
    with pytest.raises(UnreadableError):
        run(zipped(tmp_path / "y.zip", {"engine.log": b"nothing"}))
    assert list(scratch.iterdir()) == []


class Pipe:
    """A pipe named as a path, into which a thread writes."""

    def __init__(self, path: Path, pieces, pause_s: float = 0.0) -> None:
        os.mkfifo(path)
        self.path, self._pieces, self._pause_s = path, pieces, pause_s
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            with self.path.open("wb", buffering=0) as file:
                for piece in self._pieces:
                    file.write(piece)
                    time.sleep(self._pause_s)
        except BrokenPipeError:
            pass


def test_a_pipe_that_is_named_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path / "pipe", [CRASH.encode()])
    found = run(pipe.path)
    assert found.verdict.label == "engine-crash"
    assert found.findings[0].evidence[0].source == f"{pipe.path}:2"


def test_an_archive_comes_through_a_pipe(tmp_path: Path) -> None:
    content = tarred(tmp_path / "x.tgz", {"engine.log": CRASH.encode()}, "w:gz").read_bytes()
    assert run(Pipe(tmp_path / "pipe", [content]).path).verdict.label == "engine-crash"


@pytest.mark.parametrize("piece", [b"\0\xfe" * 4096, b"y\n" * 4096], ids=["bytes", "words"])
def test_an_endless_pipe_without_a_readable_record(tmp_path: Path, piece: bytes) -> None:
    pipe = Pipe(tmp_path / "pipe", iter(lambda: piece, b""))
    with pytest.raises(UnreadableError, match=r"^cannot read .*pipe: nothing in its first 16 MiB is readable$"):
        run(pipe.path)


def test_a_pipe_is_read_no_further_than_allowed(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path / "pipe", iter(lambda: CRASH.encode() * 10, b""))
    found = judged(pipe.path, max_bytes=100_000)
    assert found.verdict.label == "engine-crash"
    assert any("no further than --max-bytes" in file.kind for file in found.files)


@pytest.mark.parametrize("first", [b"", CRASH.encode()], ids=["nothing", "a log"])
def test_a_pipe_that_falls_silent_is_not_waited_for(tmp_path: Path, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack.spool, "__defaults__", (0.2,))
    stop = threading.Event()

    def pieces():
        yield first
        stop.wait(20)

    pipe = Pipe(tmp_path / "pipe", pieces())
    try:
        if first:
            found = run(pipe.path)
            assert found.verdict.label == "engine-crash"
            assert any("nothing readable came for" in file.kind for file in found.files)
        else:
            with pytest.raises(UnreadableError, match="nothing readable came for"):
                run(pipe.path)
    finally:
        stop.set()


def test_standard_input_is_read_for_a_dash() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lensd", "triage", "-", "-q"], input=CRASH.encode(), capture_output=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode, done.stderr) == (b"engine-crash\n", 3, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"", b"a"),
        (b"", b"\x07\xff\0"),
        (FINE.encode(), b"b"),
        (b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n", b"c"),
        (b'{"resourceSpans": [', b"d"),
        (b"HTTP/1.1 401 Unauthorized\n\n", b"e"),
        (b"index, memory.used [MiB], utilization.gpu [%]\n0, 100 MiB, 3 %\n", b"f"),
    ],
    ids=["words", "bytes", "log", "scrape", "spans", "exchange", "table"],
)
def test_a_line_of_a_gigabyte_stays_small_in_memory(tmp_path: Path, head: bytes, piece: bytes) -> None:
    path = tmp_path / "engine.log"
    with path.open("wb") as file:
        file.write(head)
        for _ in range(1024):
            file.write(piece * ((1 << 20) // len(piece)))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (1536 << 20, 1536 << 20))

    process = subprocess.Popen(
        [sys.executable, "-m", "lensd", "triage", str(path), "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limited
    )
    _, said = process.communicate(timeout=300)
    path.unlink()
    assert process.returncode in (0, 3, 5), said
    assert said.count(b"\n") <= 1
    assert b"Traceback" not in said
