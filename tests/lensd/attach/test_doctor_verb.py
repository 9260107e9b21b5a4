"""`lensd doctor`: each line for what it is about, what to do, and 3 where one fails."""

import contextlib
import io
import os
import subprocess
import time

import msgspec
import pytest
from lensd_collectors.rows import EngineSample, Event, SpanRow
from pretending import BY_GRPC, CAPTURES, DOOR, INSIDE, SENDS, SPANS, TRACED, pretending
from seeded import TOKEN, served

from lensd.cli.main import run
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("LENSD_", "ENGINE_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    return tmp_path


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["doctor", *arguments])
    assert "s3cr3t" not in out.getvalue() + err.getvalue()
    assert TOKEN not in out.getvalue() + err.getvalue()
    return status, out.getvalue(), err.getvalue()


def settings(folder, *, url="", api="127.0.0.1:1", more=""):
    engine = f'engines = [{{ name = "e0", url = "{url}"{more} }}]' if url else ""
    text = f'[serve]\napi = "{api}"\notlp = "127.0.0.1:4318"\ntoken_file = "{folder}/token"\nstore = "{folder}/store"\n[agent]\n{engine}\n'
    (folder / "lensd.toml").write_text(text)


def checked(folder, *flags, heard=None, **given):
    """Lines by what they are about, for a pretended engine started like this and a daemon that has heard these rows."""
    with contextlib.ExitStack() as stack:
        pretender = stack.enter_context(pretending(folder, *flags, log=folder / "vllm.log", **given))
        if heard is None:
            settings(folder, url=pretender.url)
        else:
            store = MemoryStore()
            store.append(batch_of(heard))
            settings(folder, url=pretender.url, api=stack.enter_context(served(store)).removeprefix("http://"))
        status, out, err = call("--json")
        assert err == ""
        assert {line.split()[0] for line in pretender.asked} == {"GET"}
    document = msgspec.json.decode(out)
    assert status == (3 if document["worst"] == "fail" else 0)
    lines = {}
    for check in document["checks"]:
        lines.setdefault(check["about"], []).append(check)
    return lines


def only(lines, about):
    (line,) = lines[about]
    return line["health"], line["said"], line.get("do") or ""


def now():
    return time.time_ns() // 1000


def sampled(seconds_ago=1):
    return {"engine_samples": [EngineSample(seen_at=now() - seconds_ago * 1_000_000, engine="e0", up=True)]}


def test_all_is_said_to_be_well_where_it_is(folder):
    (folder / "plugin" / "lensd-1.dist-info").mkdir(parents=True)
    span = {"trace_id": "t", "kind": "server", "engine": "e0", "started_at": now() - 5_000_000}
    heard = sampled() | {
        "spans": [SpanRow(span_id="a", name="llm_request", **span), SpanRow(span_id="b", name="POST", scope="lensd.vllm", **span)],
        "events": [Event(seen_at=now() - 3 * 3_600_000_000, engine="e0", name="lensd.engine.request", request_id="r")],
    }
    environment = {**TRACED, **SENDS, "PYTHONPATH": str(folder / "plugin")}
    lines = checked(folder, *SPANS, *INSIDE, heard=heard, **environment)
    for about in ("configuration", "token", "daemon", "link", "samples", "log", "spans", "plugin", "middleware"):
        assert only(lines, about)[0] == "ok", lines[about]
    assert only(lines, "plugin")[1] == "its last record is of 3 h ago"
    assert only(lines, "link")[1].startswith("vllm 0.32.0, tiny-llama, at http://127.0.0.1:")
    assert {line["engine"] for line in lines["spans"]} == {"e0"}


def test_a_daemon_that_is_not_there(folder):
    settings(folder)
    status, out, _ = call()
    assert status == 3
    assert "fail  daemon: nobody answers at http://127.0.0.1:1" in out
    assert "lensd serve" in out
    assert "warn  engines: none is watched\n      lensd attach URL\n" in out


def test_a_token_that_others_can_read_and_one_that_is_another_daemons(folder):
    (folder / "token").chmod(0o644)
    with served() as url:
        settings(folder, api=url.removeprefix("http://"))
        assert f"chmod 600 {folder}/token" in call()[1]
        (folder / "token").write_text("s3cr3t-of-another")
        status, out, _ = call()
    assert status == 3
    assert "refuses the token" in out


def test_a_configuration_that_does_not_hold_is_a_line(folder):
    (folder / "lensd.toml").write_text("[serve]\nstor = 1\n")
    status, out, _ = call()
    assert status == 3
    assert out.startswith("fail  configuration: ")
    assert "unknown key serve.stor; did you mean serve.store?" in out


@pytest.mark.parametrize(("seconds", "health"), [(1, "ok"), (60, "fail")])
def test_the_age_of_the_last_sample(folder, seconds, health):
    assert only(checked(folder, heard=sampled(seconds)), "samples")[0] == health


def test_no_sample_at_all(folder):
    found = only(checked(folder, heard={}), "samples")
    assert (found[0], found[2]) == ("fail", "start lensd agent on the engine's host")


def test_an_engine_that_does_not_answer(folder):
    settings(folder, url="http://127.0.0.1:9")
    status, out, _ = call()
    assert status == 3
    assert "fail  e0 link: http://127.0.0.1:9: " in out
    assert "nothing listens there" in out


@pytest.mark.parametrize(
    ("flags", "environment", "health", "said", "do"),
    [
        ((), {}, "warn", "vLLM sends none", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"),
        (SPANS, TRACED, "warn", "none has come in a day", "has one?"),
        (SPANS, {**TRACED, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "fail", "by gRPC", "PROTOCOL=http/protobuf"),
        (BY_GRPC, {**TRACED, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "warn", "none has come in a day", "has one?"),
        (("--otlp-traces-endpoint", DOOR), TRACED, "fail", "adds no path", f"{DOOR}/v1/traces"),
        (("--otlp-traces-endpoint", "http://127.0.0.1:9999"), TRACED, "warn", "go to http://127.0.0.1:9999", ""),
    ],
)
def test_spans_that_do_not_come(folder, flags, environment, health, said, do):
    found = only(checked(folder, *flags, heard=sampled(), **environment), "spans")
    assert found[0] == health
    assert said in found[1]
    assert do in found[1] + found[2]


def test_an_export_that_failed_stands_in_the_log(folder):
    (folder / "vllm.log").write_text("(APIServer pid=1) Failed to export span batch code: 401, reason: \n")
    assert only(checked(folder, *SPANS, heard=sampled(), **TRACED), "spans")[0] == "fail"


def test_tracing_without_stats_is_told_before_it_ends_the_engine(folder):
    lines = checked(folder, *SPANS, "--disable-log-stats", heard=sampled(), **TRACED)
    assert lines["spans"][0]["health"] == "fail"
    assert "--disable-log-stats" in lines["spans"][0]["said"]


@pytest.mark.parametrize(
    ("listed", "do"), [("a,b", "VLLM_PLUGINS=a,b,lensd"), ("", "VLLM_PLUGINS=lensd"), ("lensd_filter", "VLLM_PLUGINS=lensd_filter,lensd")]
)
def test_a_list_of_plugins_that_leaves_lensd_out(folder, listed, do):
    (folder / "plugin" / "lensd-1.dist-info").mkdir(parents=True)
    found = only(checked(folder, VLLM_PLUGINS=listed, PYTHONPATH=str(folder / "plugin"), **SENDS), "plugin")
    assert (found[0], found[2]) == ("fail", do)
    assert "leaves lensd out" in found[1]


def test_a_list_of_plugins_that_has_lensd_is_no_fault(folder):
    (folder / "plugin" / "lensd-1.dist-info").mkdir(parents=True)
    found = only(checked(folder, VLLM_PLUGINS="a, lensd", PYTHONPATH=str(folder / "plugin"), **SENDS), "plugin")
    assert (found[0], found[1]) == ("warn", "no record has come in a day")


def test_a_plugin_that_sends_nothing_for_want_of_a_door(folder):
    (folder / "plugin" / "lensd-1.dist-info").mkdir(parents=True)
    found = only(checked(folder, PYTHONPATH=str(folder / "plugin")), "plugin")
    assert "no LENSD_OTLP" in found[1]
    assert not found[2].startswith("pip install")
    assert only(checked(folder, *INSIDE), "middleware")[0] == "fail"


def test_a_plugin_and_a_middleware_that_send_elsewhere(folder):
    (folder / "plugin" / "lensd-1.dist-info").mkdir(parents=True)
    lines = checked(folder, *INSIDE, PYTHONPATH=str(folder / "plugin"), LENSD_OTLP="127.0.0.1:9999")
    for about in ("plugin", "middleware"):
        health, said, do = only(lines, about)
        assert health == "fail"
        assert "send to 127.0.0.1:9999 (LENSD_OTLP)" in said
        assert do.startswith(f"LENSD_OTLP={DOOR} ")


def test_the_rust_front_end_is_named(folder):
    lines = checked(folder, VLLM_USE_RUST_FRONTEND="1")
    assert "Rust" in only(lines, "front end")[1]
    assert not {"spans", "plugin", "middleware"} & set(lines)


def test_names_that_a_server_lacks(folder):
    lines = checked(folder, version="0.32.0", metrics="metrics-4-after-load.txt")["names"]
    assert [line["health"] for line in lines] == ["ok"]
    assert "come with what it was not started with" in lines[0]["said"]
    assert "vllm:kv_block_lifetime_seconds" in lines[0]["names"]
    page = folder / "old.txt"
    kept = [line for line in (CAPTURES / "metrics-4-after-load.txt").read_text().splitlines() if "num_preemptions" not in line]
    page.write_text("\n".join(kept) + "\n")
    lines = checked(folder, version="0.32.0", metrics=str(page))["names"]
    assert [line["health"] for line in lines] == ["warn", "ok"]
    assert "vllm:num_preemptions_total" in lines[0]["said"]
    assert "preemptions_total is not known" in lines[0]["said"]


def test_what_the_agent_cannot_read_is_told(folder):
    fields = '{"lensd.source.name": "/dev/kmsg", "lensd.source.state": "denied", "lensd.source.reason": "needs root"}'
    heard = sampled() | {"events": [Event(seen_at=now(), host="gpu-1", name="lensd.agent.source", fields=fields)]}
    found = only(checked(folder, heard=heard), "source")
    assert (found[0], found[1]) == ("warn", "the agent on gpu-1 cannot read /dev/kmsg: needs root")


def test_a_log_that_is_not_there(folder):
    with pretending(folder, output=subprocess.DEVNULL) as pretender:
        settings(folder, url=pretender.url, more=f', log = "{folder}/gone.log"')
        status, out, _ = call()
    assert status == 3
    assert f"fail  e0 log: there is no file {folder}/gone.log" in out
