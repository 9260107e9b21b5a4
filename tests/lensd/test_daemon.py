"""A real `lensd serve` on free ports and a store of its own: what it acknowledged survives a kill, what it told it tells once."""

import json
import signal
import socket
import time
from collections import Counter

import pytest
from daemon_process import LIMIT_S, Daemon, until
from judged_house import T0, Call, S, webhooks
from lensd_collectors import conventions as c


@pytest.fixture
def daemon(tmp_path):
    made = Daemon(tmp_path)
    yield made
    made.clean_up()


def send(exporter, rows, ago_s=1.0):
    """Spans as if they had begun `ago_s` ago."""
    moved = (time.time_ns() // 1000 - round(ago_s * S) - T0) * 1000
    for row in rows:
        exporter.span(
            row.name, trace_id=row.trace_id, span_id=row.span_id, parent_span_id=row.parent_span_id, kind=row.kind,
            start_ns=row.started_at * 1000 + moved, end_ns=row.ended_at * 1000 + moved, attributes=json.loads(row.attributes),
        )  # fmt: skip


REFUSED = {c.OUTCOME: "refused", c.DECISION: "key_unknown", c.HTTP_STATUS: 401, c.SAID_BY: "gateway", c.CHUNKS: 0}


@pytest.mark.slow
def test_kill_9_right_after_the_answer_loses_and_doubles_nothing(daemon):
    wanted = Counter()
    for life in range(3):
        daemon.start()
        gateway, engine = daemon.exporter(c.SCOPE_GATEWAY), daemon.exporter("vllm")
        for n in range(life * 20 + 1, life * 20 + 21):
            call = Call(n, at=0, about=REFUSED if n % 4 == 0 else {})
            send(gateway, call.gateway())
            send(engine, call.llm_request() if n % 4 else [])
            assert gateway.flush(LIMIT_S)
            wanted[call.request_id] += 1
        assert engine.flush(LIMIT_S)
        assert (gateway.failed, gateway.dropped, gateway.ambiguous) == (0, 0, 0)
        assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
        read = daemon.requests("--store", str(daemon.store))
        assert Counter(row["request_id"] for row in read) == wanted
        verdict = daemon.cli("diagnose", f"r{life * 20 + 20}", "--store", str(daemon.store))["verdict"]
        assert verdict["label"] == "auth-wrong-key"
    daemon.start()
    rows = until(lambda: all_judged(daemon.requests(), len(wanted)))
    assert Counter(row["request_id"] for row in rows) == wanted
    labels = {row["request_id"]: row["label"] for row in rows}
    assert labels == {name: "auth-wrong-key" if int(name[1:]) % 4 == 0 else "no-incident" for name in wanted}
    assert daemon.end(signal.SIGTERM) == 0


def all_judged(rows, count):
    return rows if len(rows) == count and all(row["label"] for row in rows) else None


@pytest.mark.slow
def test_a_dead_engine_is_told_once_whatever_becomes_of_the_daemon(tmp_path):
    with webhooks() as (url, got):
        daemon = Daemon(tmp_path, url)
        try:
            daemon.start()
            agent, gateway = daemon.exporter(c.SCOPE_AGENT), daemon.exporter(c.SCOPE_GATEWAY)
            engine = {c.ENGINE: "e0", c.ENGINE_KIND: "vllm"}

            def say(state, code=None):
                told = {**engine, c.PROCESS_STATE: state, c.PROCESS_PID: 7, c.PROCESS_EXIT: code}
                agent.event(c.EVENT_ENGINE_PROCESS, at_ns=time.time_ns(), attributes=told)
                agent.gauge("up", 1.0 if state == "running" else 0.0, at_ns=time.time_ns(), attributes=engine)

            say("running")
            assert agent.flush(LIMIT_S)
            open_one, cut = Call(1, at=0), Call(2, at=0, total=900, about={c.OUTCOME: "cut", c.DONE_SEEN: False, c.FINISH_REASONS: None})
            event = open_one.open(1000)
            gateway.event(
                event.name, at_ns=time.time_ns(), attributes=json.loads(event.fields), trace_id=event.trace_id, span_id=event.span_id
            )
            send(gateway, cut.gateway())
            say("exited", -9)
            began = time.monotonic()
            assert gateway.flush(LIMIT_S)
            assert agent.flush(LIMIT_S)
            until(lambda: got)
            assert time.monotonic() - began < 10
            until(lambda: {row["request_id"]: row["outcome"] for row in daemon.requests()} == {"r1": "open", "r2": "cut"})
            assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
            daemon.start()
            until(lambda: [i for i in daemon.cli("incidents", "ls") if i["label"] == "engine-crash"])
            assert daemon.end(signal.SIGTERM) == 0
            daemon.start()
            time.sleep(1)  # several ticks of the third process
            assert daemon.end(signal.SIGINT) == 0
        finally:
            daemon.clean_up()
    assert [(body["status"], body["commonLabels"]["alertname"]) for body in got] == [("firing", "engine-crash")]


@pytest.mark.parametrize("setting", ["otlp", "otlp_grpc"])
def test_a_port_that_is_taken_is_said_in_one_line(daemon, setting):
    port = getattr(daemon, setting)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = daemon.lensd("serve")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use; set serve.{setting} to a free one" in done.stderr
    assert not daemon.store.exists()
