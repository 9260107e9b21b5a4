"""What a running engine shows: pages, the process behind its port, its log; and that nothing secret is kept of them."""

import os
from pathlib import Path

import psutil
import pytest
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import Engine, FetchError, FetchFailure, fetch_with, resolve
from lensd_collectors.host.look import RESOURCE_ENGINE, Looked, flags_of, look, plugins_named
from lensd_collectors.host.place import PlaceKind
from pretending import CAPTURES, KEY, Pretender, pretending

fetch = fetch_with(5.0)


def seen(pretender: Pretender, **given: str) -> Looked:
    return look(resolve(WatchedEngine(url=pretender.url, **given)), fetch)


def test_version_models_names_process_and_log(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    environment = {"LENSD_OTLP": "http://user:s3cr3t@127.0.0.1:4318", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Bearer%20s3cr3t",
                   "LENSD_TOKEN": "s3cr3t", "OTEL_RESOURCE_ATTRIBUTES": "team=a,lensd.engine=e%2D0", "VLLM_PLUGINS": "x"}  # fmt: skip
    flags = ("--otlp-traces-endpoint", "http://user:s3cr3t@h:4318/v1/traces", "--api-key", "s3cr3t", "--enable-log-requests")
    with pretending(tmp_path, *flags, log=log, **environment) as pretender:
        found = seen(pretender)
        assert pretender.asked == ["GET /version", "GET /v1/models", "GET /metrics"]
    assert (found.answers, found.kind, found.version, found.models, found.max_model_len) == (True, "vllm", "0.32.0", ("tiny-llama",), 512)
    assert {"vllm:num_requests_running", "vllm:time_to_first_token_seconds"} <= found.names
    assert not any(name.startswith(("python_", "http_", "process_")) for name in found.names)
    assert (found.log.kind, found.log.spec) == (PlaceKind.FILE, str(log))
    assert found.process is not None
    assert found.process.pid == pretender.process.pid
    assert found.process.flags == {"otlp-traces-endpoint": ("http://h:4318/v1/traces",), "enable-log-requests": ("",)}
    assert found.process.environment == {
        "LENSD_OTLP": "http://127.0.0.1:4318", "LENSD_TOKEN": "set", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "set",
        "OTEL_RESOURCE_ATTRIBUTES": "set", RESOURCE_ENGINE: "e-0", "VLLM_PLUGINS": "x",
    }  # fmt: skip
    assert found.process.is_rust is False
    assert "s3cr3t" not in repr(found)


def test_an_engine_that_wants_a_key_is_seen_but_for_its_models(tmp_path: Path) -> None:
    with pretending(tmp_path, key=KEY) as pretender:
        without = seen(pretender)
        (tmp_path / "key").write_text(KEY)
        known = seen(pretender, api_key_file=str(tmp_path / "key"))
    assert (without.answers, without.models) == (True, ())
    assert any("--api-key-file" in reason for reason in without.reasons)
    assert known.models == ("tiny-llama",)
    assert KEY not in repr(known)


def test_nothing_listens() -> None:
    def refused(engine: Engine, path: str) -> bytes:
        raise FetchError(FetchFailure.REFUSED)

    found = look(resolve(WatchedEngine(url="http://127.0.0.1:9")), refused, find=lambda _: None)
    assert not found.answers
    assert "/health: nothing listens there" in found.reasons


@pytest.mark.parametrize("body", [b"\xff\x00", b"<html>", b"[]", b'{"version": 7}', b'{"version": "\\u001b[31m"}', b"vllm:x{ 1\n", b""])
def test_whatever_a_server_answers_gives_what_can_be_told(body: bytes) -> None:
    found = look(resolve(WatchedEngine(url="http://127.0.0.1:9")), lambda *_: body, find=lambda _: None)
    assert (found.answers, found.version, found.models, found.names) == (True, None, (), frozenset())


def test_another_engine_is_told_by_its_names() -> None:
    def other(engine: Engine, path: str) -> bytes:
        if path == "/metrics":
            return b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 1\n"
        raise FetchError(FetchFailure.STATUS, 404)

    found = look(resolve(WatchedEngine(url="http://127.0.0.1:9")), other, find=lambda _: None)
    assert (found.answers, found.kind, found.names) == (True, "llamacpp", frozenset({"llamacpp:requests_processing"}))


def test_the_rust_front_end_is_told_by_its_command_and_by_the_environment(tmp_path: Path) -> None:
    with pretending(tmp_path, VLLM_USE_RUST_FRONTEND="1") as pretender:
        found = seen(pretender)
        assert found.process is not None
        assert found.process.is_rust is True
    with pretending(tmp_path, VLLM_USE_RUST_FRONTEND="0") as pretender:
        found = seen(pretender)
        assert found.process is not None
        assert found.process.is_rust is False
    found = look(resolve(WatchedEngine(url="http://127.0.0.1:9")), lambda *_: b"", find=lambda _: Frontend(os.getpid()))
    assert found.process is not None
    assert found.process.is_rust is True


class Frontend(psutil.Process):
    """A process whose child is the Rust front end."""

    def children(self, recursive: bool = False) -> list[psutil.Process]:
        class Child:
            def cmdline(self) -> list[str]:
                return ["/site-packages/vllm/vllm-rs", "frontend", "--listen-fd", "11", "--input-listener-fd", "12"]

        return [Child()]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("vllm serve m --otlp_traces_endpoint=http://h/v1/traces", {"otlp-traces-endpoint": ("http://h/v1/traces",)}),
        ("vllm serve m --middleware a.B --middleware c.D --port 8000", {"middleware": ("a.B", "c.D")}),
        ("vllm serve m --disable-log-stats --port 1", {"disable-log-stats": ("",)}),
        ("vllm serve m --enable-log-requests --no-enable-log-requests", {}),
        ("vllm serve m --config", {"config": ("",)}),
        ("vllm serve m --hf-token abc --api-key def", {}),
        ("vllm", {}),
    ],
)
def test_flags_as_vllm_reads_them(command: str, flags: dict[str, tuple[str, ...]]) -> None:
    assert flags_of(command.split()) == flags


def test_plugins_are_those_of_the_last_start_in_the_log() -> None:
    log = (CAPTURES / "startup-noflags-plugin.log").read_text()
    assert plugins_named(log) == ("lensprobe_stats",)
    assert plugins_named(f"{log}\n{log.replace('lensprobe_stats', 'lensd')}") == ("lensd",)
    assert plugins_named("INFO something else") is None
