"""How an engine's processes are ended and counted, shown on a stand-in that behaves as vLLM does; no vLLM needed."""

import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from checkout import serving

STAND_IN = """
import http.server, os, signal, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
open(os.environ["TMPDIR"] + "/vllm_dist_1", "w").close()
print("VLLM_API_KEY", os.environ.get("VLLM_API_KEY"), os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS"), flush=True)
if "--die" in sys.argv:
    print("ValueError: To serve at least one request, 4.0 GiB KV cache is needed")
    sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "VLLM::EngineCore"])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *a):
        pass
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like build.py's whose Python runs the stand-in instead of vLLM."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    python = tmp_path / "venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/stand_in.py "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IEXEC)
    return tmp_path


@pytest.fixture(autouse=True)
def _not_counted_as_real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(serving.STARTS_FILE, str(tmp_path / "starts"))


@pytest.mark.parametrize("options", [(), ("--stubborn",)])
def test_stop_ends_the_whole_group_and_leaves_nothing(folder: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "STOP_LIMIT_S", 3.0)
    engine = serving.Engine(folder, folder / "log", options=options)
    with engine:
        scratch = engine._scratch
        assert (scratch / "vllm_dist_1").exists()
        assert sorted(engine.processes()) == sorted({engine.pid, engine.core_pid()})
    assert engine.processes() == {}
    assert not engine.running
    assert not scratch.exists()
    engine.stop()


def test_children_of_a_killed_server_are_ended_too(folder: Path) -> None:
    with serving.Engine(folder, folder / "log") as engine:
        core = engine.core_pid()
        engine.signal(signal.SIGKILL, engine.pid)
        engine._process.wait(5)
        assert list(engine.processes()) == [core]
    assert engine.processes() == {}


def states(engine: Any) -> set[str]:
    """How the kernel says that its processes are."""
    return {(Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] for pid in engine.processes()}


def test_a_paused_engine_does_not_answer_until_it_goes_on(folder: Path) -> None:
    with serving.Engine(folder, folder / "log") as engine:
        with engine.paused():
            end = time.monotonic() + 5
            while (stood := states(engine)) != {"T"} and time.monotonic() < end:  # a signal is on its way for a moment
                time.sleep(0.01)
            assert stood == {"T"}
        assert engine.healthy()


def test_a_death_at_the_start_is_told_with_its_cause(folder: Path) -> None:
    engine = serving.Engine(folder, folder / "log", options=("--die",)).start()
    with pytest.raises(serving.EngineError, match=r"died while starting: ValueError: .* 4\.0 GiB KV cache"):
        engine.wait_ready()
    engine.stop()


def test_secrets_are_handed_over_in_the_environment_only(folder: Path) -> None:
    spans = {"otlp_endpoint": "http://127.0.0.1:9/v1/traces", "otlp_headers": {"authorization": "Bearer tok en"}}
    with serving.Engine(folder, folder / "log", api_key="sk-1", **spans) as engine:
        assert "sk-1" not in " ".join(engine.processes().values())
    assert "VLLM_API_KEY sk-1 authorization=Bearer%20tok%20en" in (folder / "log").read_text()


def test_every_start_is_counted_and_a_second_refused(folder: Path, tmp_path: Path) -> None:
    before = serving.Engine.starts
    with serving.Engine(folder, folder / "log") as engine, pytest.raises(serving.EngineError, match="started before"):
        engine.start()
    assert serving.Engine.starts == before + 1
    (line,) = (tmp_path / "starts").read_text().splitlines()
    assert line.startswith(f"{engine.host} serve ")


def test_another_model_and_more_environment(folder: Path) -> None:
    with pytest.raises(serving.EngineError, match=r"model-32k/config\.json is missing.*make engine"):
        serving.Engine(folder, folder / "log", model_dir="model-32k").start()
    (folder / "model-32k").mkdir()
    (folder / "model-32k/config.json").write_text("{}")
    given = {"model_dir": "model-32k", "environment": {"VLLM_API_KEY": "from-the-environment"}}
    with serving.Engine(folder, folder / "log", **given) as engine:
        assert f"serve {folder}/model-32k" in engine.processes()[engine.pid]
    assert "VLLM_API_KEY from-the-environment" in (folder / "log").read_text()


@pytest.mark.parametrize("gone", ["venv/bin/python", "model/config.json"])
def test_an_incomplete_folder_says_what_to_run(folder: Path, gone: str) -> None:
    (folder / gone).unlink()
    with pytest.raises(serving.EngineError, match=f"{gone} is missing.*make engine"):
        serving.Engine(folder, folder / "log").start()


def test_a_pid_of_somebody_else_is_refused(folder: Path) -> None:
    with serving.Engine(folder, folder / "log") as engine, pytest.raises(serving.EngineError, match="pid 1 is not one"):
        engine.signal(signal.SIGTERM, 1)


@pytest.mark.parametrize(("flags", "options"), [("fpu avx512f amx_bf16 amx_tile", ("--dtype", "float16")), ("fpu avx512f", ()), (None, ())])
def test_a_processor_with_amx_is_asked_for_no_bfloat16(flags: str | None, options: tuple[str, ...], tmp_path: Path) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    assert serving.dtype_options(tmp_path / "cpuinfo") == options
