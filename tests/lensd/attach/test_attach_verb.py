"""`lensd attach` on pretended engines at each rung: what it says is there, the one line it adds, the file it writes."""

import contextlib
import io
import os
import subprocess
import sys
import tomllib

import msgspec
import pytest
from lensd_collectors.rows import EngineSample, GpuSample, SpanRow
from pretending import DOOR, INSIDE, KEY, SENDS, SPANS, TRACED, pretending
from seeded import T0, TOKEN, served

from lensd.attach.see import MIDDLEWARE
from lensd.cli.main import run
from lensd.config import load
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("LENSD_", "ENGINE_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text('[serve]\napi = "127.0.0.1:1"\ntoken_file = "/etc/lensd/token"\n')
    return tmp_path


def attach(*arguments, config="settings.toml"):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["attach", *arguments, "--config", config])
    assert "s3cr3t" not in out.getvalue() + err.getvalue()
    assert TOKEN not in out.getvalue() + err.getvalue()
    return status, out.getvalue(), err.getvalue()


def seen(folder, *flags, arguments=(), config="settings.toml", **given):
    """The document about a pretended engine started like this."""
    with pretending(folder, *flags, **given) as pretender:
        status, out, _ = attach(pretender.url, "--json", *arguments, config=config)
        assert status == 0, out
        assert pretender.asked == ["GET /version", "GET /v1/models", "GET /metrics"]
    return msgspec.json.decode(out)


def test_rung_0_whose_log_nobody_can_read(folder):
    told = seen(folder, output=subprocess.DEVNULL)
    assert (told["rung"], told["rungs"], told["ids"]) == (0, ["0"], [])
    assert set(told["stages"].values()) == {None}
    assert "engine-crash" in told["labels"]
    assert (told["next"]["rung"], told["next"]["line"]) == (1, 'log = "/var/log/vllm.log"')
    assert "its output goes to /dev/null" in told["because"]


def test_rung_1_and_the_line_of_rung_2(folder):
    told = seen(folder, log=folder / "vllm.log", arguments=("--name", "e0"))
    assert (told["rung"], told["rungs"]) == (1, ["0", "1"])
    assert told["next"]["rung"] == 2
    assert told["next"]["line"] == (
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf "
        'OTEL_EXPORTER_OTLP_TRACES_HEADERS="authorization=Bearer%20$(cat /etc/lensd/token)" '
        "OTEL_RESOURCE_ATTRIBUTES=lensd.engine=e0 vllm serve ... --otlp-traces-endpoint http://127.0.0.1:4318/v1/traces"
    )


def test_resource_attributes_that_are_there_are_kept(folder):
    told = seen(folder, log=folder / "vllm.log", arguments=("--name", "e0"), OTEL_RESOURCE_ATTRIBUTES="team=a")
    assert ' OTEL_RESOURCE_ATTRIBUTES="$OTEL_RESOURCE_ATTRIBUTES,lensd.engine=e0" ' in told["next"]["line"]


def test_rung_2_and_the_line_of_rung_3(folder):
    told = seen(folder, *SPANS, log=folder / "vllm.log", arguments=("--name", "e 0"), **TRACED)
    assert (told["rung"], told["frontend"]) == (2, "llm_request")
    assert told["stages"] == {
        "client": None, "auth_routing": None, "queue": "llm_request", "prefill": "llm_request", "decode": "llm_request", "streaming": None,
    }  # fmt: skip
    assert "queue-saturation" in told["labels"]
    assert "auth-wrong-key" not in told["labels"]
    assert told["next"]["rung"] == 3
    assert told["next"]["line"].endswith(
        f"LENSD_OTLP={DOOR} LENSD_TOKEN_FILE=/etc/lensd/token LENSD_ENGINE='e 0' vllm serve ... --middleware {MIDDLEWARE}"
    )


def test_rung_3_and_the_gateway_as_the_next(folder):
    (folder / "plugin" / "lensd-1.dist-info").mkdir(parents=True)
    environment = {**TRACED, **SENDS, "PYTHONPATH": str(folder / "plugin")}
    told = seen(folder, *SPANS, *INSIDE, log=folder / "vllm.log", **environment)
    assert told["rungs"] == ["0", "1", "2", "3a", "3b"]
    assert told["stages"] == {
        "client": None, "auth_routing": None, "queue": "plugin", "prefill": "plugin", "decode": "plugin", "streaming": "middleware",
    }  # fmt: skip
    assert {"auth-wrong-key", "client-read-timeout-too-short", "engine-crash"} <= set(told["labels"])
    assert (told["next"]["rung"], told["next"]["line"].startswith("upstreams = [{ name = ")) == (5, True)


def test_a_plugin_that_sends_to_another_door_is_not_ours(folder):
    (folder / "plugin" / "lensd-1.dist-info").mkdir(parents=True)
    environment = {**SENDS, "PYTHONPATH": str(folder / "plugin"), "LENSD_OTLP": "http://127.0.0.1:9999"}
    told = seen(folder, *INSIDE, log=folder / "vllm.log", **environment)
    assert told["rungs"] == ["0", "1"]
    assert "plugin and middleware send to http://127.0.0.1:9999 (LENSD_OTLP), not to http://127.0.0.1:4318" in told["because"]


def test_a_line_for_the_plugin_names_it_where_only_some_are_let_in(folder):
    told = seen(folder, *SPANS, log=folder / "vllm.log", arguments=("--name", "e0"), VLLM_PLUGINS="a,b", **TRACED)
    assert "VLLM_PLUGINS=a,b,lensd LENSD_OTLP=" in told["next"]["line"]
    assert any("leaves lensd out" in reason for reason in told["because"])


def test_a_middleware_without_a_door_sends_nothing(folder):
    assert seen(folder, *INSIDE, log=folder / "vllm.log")["rungs"] == ["0", "1"]


@pytest.mark.parametrize(
    ("flags", "environment", "because", "rung"),
    [
        (SPANS, {}, "gRPC", 2),
        (("--otlp-traces-endpoint", DOOR), TRACED, "has to be http://127.0.0.1:4318/v1/traces", 2),
        (SPANS, {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, "no token", 2),
        (("--otlp-traces-endpoint=http://collector:9999",), TRACED, "let what listens there pass them on", 3),
    ],
)
def test_spans_that_do_not_arrive_are_not_counted(folder, flags, environment, because, rung):
    told = seen(folder, *flags, log=folder / "vllm.log", **environment)
    assert "2" not in told["rungs"]
    assert any(because in reason for reason in told["because"])
    assert told["next"]["rung"] == rung


def test_before_tracing_stats_have_to_be_on(folder):
    told = seen(folder, *SPANS, "--disable-log-stats", log=folder / "vllm.log", **TRACED)
    assert told["next"]["line"] == "vllm serve ...   # without --disable-log-stats"
    assert any("ends at its first finished request" in reason for reason in told["because"])


def test_a_rust_front_end_is_named_and_gets_no_line_of_python(folder):
    told = seen(folder, log=folder / "vllm.log", VLLM_USE_RUST_FRONTEND="1")
    assert any("Rust" in reason for reason in told["because"])
    assert told["next"]["rung"] == 5


@pytest.mark.parametrize(("version", "rung"), [("0.9.2", 3), ("0.10.1", 3), ("0.10.2", 2), ("0.33.0", 2), ("0.1.dev7+gabc", 2)])
def test_spans_are_offered_from_the_version_that_has_them(folder, version, rung):
    assert seen(folder, log=folder / "vllm.log", version=version)["next"]["rung"] == rung


def test_ids_in_the_log_are_told_of(folder):
    assert seen(folder, "--enable-log-requests", log=folder / "vllm.log")["ids"] == ["chatcmpl-ID in the engine's log, without times"]


@pytest.mark.parametrize("on_card", ["e0", "another", None])
def test_what_the_daemon_has_heard_counts_where_the_process_says_nothing(folder, on_card):
    store = MemoryStore()
    span = {"trace_id": "t", "name": "x", "kind": "server", "started_at": T0}
    store.append(
        batch_of(
            {
                "engine_samples": [EngineSample(seen_at=T0, engine="e0", up=True)],
                "gpu_samples": [GpuSample(seen_at=T0, host="h", gpu="0", pid=11, pid_engine=on_card, pid_used_bytes=1)],
                "spans": [
                    SpanRow(span_id="a", engine="e0", **span | {"name": "llm_request"}),
                    SpanRow(span_id="b", engine="e0", scope="lensd.gateway", **span),
                    SpanRow(span_id="c", scope="lensd.client", **span | {"kind": "client"}),
                    SpanRow(span_id="d", engine="another", scope="lensd.vllm", **span),
                ],
            }
        )
    )
    with served(store) as url:
        (folder / "token").write_text(TOKEN)
        api = url.removeprefix("http://")
        (folder / "running.toml").write_text(f'[serve]\napi = "{api}"\ntoken_file = "{folder}/token"\n')
        told = seen(folder, log=folder / "vllm.log", arguments=("--name", "e0"), config="running.toml")
    assert told["rungs"] == ["0", "1", "2", "5", *(["host"] if on_card == "e0" else [])]
    assert told["rung"] == 5
    assert ("slow-decode-gpu-throttle" in told["labels"]) == (on_card == "e0")
    assert told["stages"] == {
        "client": "client", "auth_routing": "gateway", "queue": "llm_request", "prefill": "llm_request", "decode": "llm_request",
        "streaming": "gateway",
    }  # fmt: skip


def test_the_file_loads_back_and_watches_the_engine(folder):
    (folder / "key").write_text(KEY)
    with pretending(folder, log=folder / "vllm.log", key=KEY) as pretender:
        status, out, _ = attach(pretender.url + "/v1", "--name", 'the "one"', "--api-key-file", str(folder / "key"))
    assert status == 0
    assert "wrote lensd.toml" in out
    (watched,) = load(str(folder / "lensd.toml")).agent.engines
    assert (watched.name, watched.url, watched.kind) == ('the "one"', pretender.url, "vllm")
    assert (watched.log, watched.api_key_file) == (str(folder / "vllm.log"), str(folder / "key"))
    assert KEY not in (folder / "lensd.toml").read_text()


def test_a_file_that_says_otherwise_stays_as_it_is(folder):
    (folder / "lensd.toml").write_text("[serve]\n# mine\n")
    with pretending(folder, log=folder / "vllm.log") as pretender:
        status, out, err = attach(pretender.url)
        assert status == 2
        assert err.count("\n") == 1
        assert "lensd.toml is there already" in err
        assert tomllib.loads(out[out.index("[agent]") :])["agent"]["engines"][0]["url"] == pretender.url
        status, out, _ = attach(pretender.url, "--json")
        document = msgspec.json.decode(out)
        assert (status, document["config"]["state"]) == (2, "differs")
        assert tomllib.loads(document["config"]["text"])["agent"]["engines"][0]["url"] == pretender.url
    assert (folder / "lensd.toml").read_text() == "[serve]\n# mine\n"


def test_a_file_that_says_so_already_may_say_more(folder):
    with pretending(folder, log=folder / "vllm.log") as pretender:
        attach(pretender.url)
        mine = (folder / "lensd.toml").read_text() + "scrape_interval_s = 5.0\n"
        (folder / "lensd.toml").write_text(mine)
        status, out, _ = attach(pretender.url, config="lensd.toml")
    assert status == 0
    assert "nothing to change in lensd.toml" in out
    assert (folder / "lensd.toml").read_text() == mine


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("http://127.0.0.1:9",), 5, "nothing listens there"),
        (("ftp://x",), 2, "is no http or https URL"),
        (("http://127.0.0.1:9", "--api-key-file", "nowhere"), 2, "api_key_file nowhere"),
        ((), 2, "missing argument"),
    ],
)
def test_what_goes_wrong_is_one_line(folder, arguments, status, said):
    got, out, err = attach(*arguments)
    assert (got, out) == (status, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (folder / "lensd.toml").exists()


def test_without_a_place_to_write_to_it_says_so(folder):
    with pretending(folder, log=folder / "vllm.log") as pretender:
        status, _, err = attach(pretender.url, "--out", "no/such/folder.toml")
    assert (status, err.count("\n")) == (2, 1)
    assert "no/such/folder.toml" in err


def test_the_verb_needs_no_database_to_be_loaded(folder):
    code = "import sys; from lensd.cli.main import run; run(['attach', 'http://127.0.0.1:9']); sys.exit('duckdb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
