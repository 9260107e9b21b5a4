"""A prompt and a key that came in by every way are in no file: our own exporter → door → journal → store, over a real socket."""

import logging
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from lensd_collectors.export import Exporter
from otlp_bodies import AT_NS, logs, metrics, traces

from lensd.receive.decode import Decoder
from lensd.receive.http import OtlpDoor
from lensd.receive.intake import Intake
from lensd.store.folder import FolderStore
from lensd.store.journal import Journal
from lensd.store.writer import Writer

PROMPT = "tell me about the planted walrus 7741"
KEY = "sk-planted0walrus0key7741"


@contextmanager
def served(door: OtlpDoor) -> Iterator[str]:
    """The door behind uvicorn on a free port."""
    server = uvicorn.Server(uvicorn.Config(door, log_level="warning", lifespan="on", access_log=False))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def post(url: str, body: bytes) -> int:
    request = urllib.request.Request(url, body, {"content-type": "application/x-protobuf", "authorization": "Bearer t"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return int(answer.status)


def test_a_planted_prompt_and_key_are_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    journal, store = Journal(tmp_path / "journal"), FolderStore(tmp_path / "store")
    intake = Intake(journal, "t")
    door = OtlpDoor(intake)
    writer = Writer(journal, store, Decoder().decode)
    planted = {
        "gen_ai.prompt": PROMPT,
        "gen_ai.input.messages": PROMPT,
        "http.request.header.authorization": f"Bearer {KEY}",
        "note": f"key {KEY}",
    }
    with served(door) as url:
        exporter = Exporter(url, token="t", service="lensd-gateway", scope="lensd.gateway", flush_every_s=0.05)
        exporter.span(
            f"POST /v1?q={KEY}", trace_id="a" * 32, span_id="b" * 16, parent_span_id=None, kind="server", start_ns=AT_NS, end_ns=AT_NS + 1,
            attributes={**planted, "lensd.request.id": "r-kept"}, ok=False, message=f"refused Bearer {KEY}",
        )  # fmt: skip
        line = (
            f"INFO 11-16 09:00:10 [logger.py:39] Received request cmpl-1-0: prompt: '{PROMPT}', params: SamplingParams(n=1), api_key={KEY}"
        )
        about = {"lensd.engine": "one", "lensd.engine.kind": "vllm", "log.file.path": "/l", "lensd.log.line": 1}
        error = f"ERROR 11-16 09:00:10 [logger.py:39] something new: prompt: '{PROMPT}' with Bearer {KEY}"
        for body in (line, error):
            exporter.event("lensd.engine.log", at_ns=AT_NS, attributes=about, body=body)
        exporter.event("lensd.request.started", at_ns=AT_NS, attributes={**planted, "lensd.request.id": "r-kept"}, body=f"Bearer {KEY}")
        exporter.gauge("vllm:num_requests_running", 1.0, at_ns=AT_NS, attributes={**planted, **about, "model_name": "tiny"})
        assert exporter.flush(10)
        exporter.close()
        assert (exporter.sent, exporter.failed, exporter.dropped) == (5, 0, 0)
        for attributes in (dict.fromkeys(planted, "harmless"), {"note": 7, "gen_ai.prompts": 1.5}, planted, planted):
            body = traces({"attributes": {**attributes, "seen": "before"}}, {"attributes": {**attributes, "lensd.chunks": 5}})
            assert post(f"{url}/v1/traces", body.SerializeToString()) == 200
        assert (
            post(
                f"{url}/v1/traces", traces({"attributes": planted, "events": [("gen_ai.choice", {"message": PROMPT})]}).SerializeToString()
            )
            == 200
        )
        assert (
            post(
                f"{url}/v1/logs",
                logs(
                    {"name": "gen_ai.user.message", "body": {"content": PROMPT}}, {"name": "e", "body": {"prompt": PROMPT}}
                ).SerializeToString(),
            )
            == 200
        )
        assert post(f"{url}/v1/metrics", metrics(("m", 1.0, planted)).SerializeToString()) == 200
    journal.close()
    kept = b"".join(file.read_bytes() for file in (tmp_path / "journal").iterdir())
    writer.drain_now()
    with store.cursor() as cursor:
        assert cursor.execute("SELECT request_id FROM spans WHERE request_id IS NOT NULL").fetchall() == [("r-kept",)]
        assert cursor.execute("SELECT count(*) > 2 FROM events").fetchall() == [(True,)]
        assert cursor.execute("SELECT engine, running FROM engine_samples").fetchall() == [("one", 1.0)]
    store.close()
    for file in (tmp_path / "store").iterdir():
        kept += file.read_bytes()
    kept += caplog.text.encode()
    assert b"r-kept" in kept
    for secret in (PROMPT, "walrus", KEY, KEY[3:]):
        assert secret.encode() not in kept
    assert intake.scrubber.counts.total() > 10
