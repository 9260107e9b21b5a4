"""Every artefact of the labelled incidents and every real capture is known for what it is, by content alone."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.read import Kind, read, recognise

TESTS = Path(__file__).parents[2]
KINDS = {
    "engine_log": Kind.ENGINE_LOG,
    "metrics": Kind.PROMETHEUS,
    "http": Kind.HTTP_EXCHANGE,
    "otlp": Kind.SPANS,
    "gpu_samples": Kind.GPU_CSV,
}
CONFIG = {
    "serve.args": Kind.FLAGS,
    "env.txt": Kind.FLAGS,
    "model_config.json": Kind.MODEL_CONFIG,
    "deploy.txt": Kind.FLAGS,
    "route.yaml": Kind.FLAGS,
}
CAPTURES = {
    "kill9-server-log.txt": Kind.ENGINE_LOG,
    "sigterm-stuck-drain-log.txt": Kind.ENGINE_LOG,
    "startup-http-otlp-compile.log": Kind.ENGINE_LOG,
    "kill9-raw-stream.bin": Kind.HTTP_EXCHANGE,
    "metrics-6-preempt-after.txt": Kind.PROMETHEUS,
    "http/models.json": Kind.HTTP_EXCHANGE,
    "http/err-405.json": Kind.HTTP_EXCHANGE,
    "otlp/0005.http.json": Kind.SPANS,
}


def artefacts() -> list[tuple[Path, str]]:
    cases = sorted((TESTS / "corpus").glob("*/case.json"))
    return [(case.parent / one["file"], one["kind"]) for case in cases for one in json.loads(case.read_text())["artefacts"]]


def test_all_cases_are_here() -> None:
    split = json.loads((TESTS / "corpus" / "SPLIT.json").read_text())
    assert sorted(path.parent.name for path in (TESTS / "corpus").glob("*/case.json")) == sorted(split["given"])
    assert len(split["given"]) == 18


@pytest.mark.parametrize(
    ("path", "kind"), artefacts(), ids=lambda value: f"{value.parent.name[:2]}-{value.name}" if isinstance(value, Path) else ""
)
def test_artefacts(path: Path, kind: str) -> None:
    found = read(path)
    if kind == "config":
        assert found.kind is CONFIG[path.name]
    elif kind in KINDS:
        assert found.kind is KINDS[kind]
        if kind in ("metrics", "http", "otlp"):
            assert found.records > 0
        if kind == "engine_log" and path.name != "dmesg.txt":
            assert found.unread_lines == 0
    assert recognise(Path("other.bin"), path.read_bytes()) is found.kind
    assert found.records == sum(len(rows) for rows in found.rows.values())
    assert all(str(row.src).startswith(path.name + ":") for rows in found.rows.values() for row in rows)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "kind"), CAPTURES.items())
def test_real_captures(name: str, kind: Kind) -> None:
    found = read(TESTS / "captures" / "vllm-0.32.0" / name, name=name)
    assert found.kind is kind
    assert found.records > 0


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", Kind.UNKNOWN),
        (b"\x7fELF\0\0", Kind.UNKNOWN),
        (b'{"hello": "world", "note": "run with --max-model-len 16"}', Kind.UNKNOWN),
        ("Es hängt seit heute früh, bitte helfen.\n".encode(), Kind.NOTES),
        (b"timestamp, index, memory.used [MiB], memory.total [MiB]\n2026/11/06 07:43:50, 0, 79810, 81152\n", Kind.GPU_CSV),
        (b'{"error":"Unauthorized"}', Kind.HTTP_EXCHANGE),
        (b'HTTP/1.1 200 OK\n\n{"choices":[{"finish_reason":"stop","stop_reason":128009}]}\n', Kind.HTTP_EXCHANGE),
        (b"containerStatuses:\n  exitCode: 137\n  reason: OOMKilled\n", Kind.ENGINE_LOG),
        (b"up 0\n", Kind.PROMETHEUS),
        (b'10.0.0.1 - - [18/Nov/2026:10:00:05 +0000] "POST /v1/chat/completions HTTP/1.1" 504 167\n', Kind.ACCESS_LOG),
        (b"============ Serving Benchmark Result ============   # before\nMean TPOT (ms):     18.41\n", Kind.BENCHMARK),
        (b'{\n "date": "20261117-103015",\n "mean_ttft_ms": 96.3,\n "mean_tpot_ms": 18.41\n}\n', Kind.BENCHMARK),
        (b"[ 12.345678] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n", Kind.ENGINE_LOG),
    ],
)
def test_kinds(head: bytes, kind: Kind) -> None:
    assert recognise(Path("x"), head) is kind


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=400), st.sampled_from([path for path, _ in artefacts()]).map(Path.read_bytes)), st.integers(0, 400))
def test_no_file_makes_it_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes, cut: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(content[cut:] + content[: cut // 2])
    assert isinstance(read(path).kind, Kind)
