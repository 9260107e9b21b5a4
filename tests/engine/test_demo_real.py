"""`lensd demo`: seven faults named right on an engine of its own, and from their bundles; an engine of somebody else's is left alone."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading

import pytest
from checkout import ENGINE, ROOT
from recorded import triage

pytestmark = pytest.mark.engine

FAULTS = {
    "wrong key": "auth-wrong-key",
    "key without this model": "auth-key-scope-denied",
    "unknown model": "route-wrong-model-name",
    "client gives up": "client-read-timeout-too-short",
    "prompt too long": "context-length-server-limit-low",
    "queue timeout": "queue-saturation",
    "engine killed": "engine-crash",
}
OWN_ONLY = ("prompt too long", "queue timeout", "engine killed")


def demo(folder, *options):
    command = [sys.executable, "-m", "lensd", "demo", "--once", "--engine-dir", str(ENGINE), "--folder", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=400, check=False)


def test_seven_faults_are_named_right_on_an_engine_of_its_own(require, tmp_path):
    require("engine")
    done = demo(tmp_path / "demo")
    print(done.stdout, done.stderr)
    for name, label in FAULTS.items():
        assert f"\n{name}: {label} (ok)\n" in done.stdout
    assert done.stdout.count("healthy request: no-incident (ok)") == 2
    assert "webhook: 1 alert for engine-crash" in done.stdout
    assert "7 of 7 faults named right, 2 healthy requests called no-incident, 0 not run" in done.stdout
    assert done.returncode == 0
    told = re.findall(r"^[a-z ]+: ([a-z-]+) \(ok\)$.*?lensd diagnose (\S+)$", done.stdout, re.MULTILINE | re.DOTALL)
    assert [label for label, _ in told] == ["no-incident", "no-incident", *FAULTS.values()]
    assert {ident: from_bundle(tmp_path / "demo", ident) for _, ident in told} == {ident: label for label, ident in told}


def from_bundle(folder, ident):
    """The label that triage gives to the bundle of a request of the demo."""
    packed = folder / f"{ident}.zip"
    command = [sys.executable, "-m", "lensd", "bundle", ident, "-o", str(packed), "--config", str(folder / "lensd.toml")]
    subprocess.run(command, cwd=ROOT, timeout=120, check=True)
    return triage(packed)["verdict"]["label"]


def test_an_engine_that_is_not_ours_keeps_its_processes_and_its_other_callers(engine, tmp_path):
    before = sorted(engine.processes())
    streams = []
    stop = threading.Event()

    def other_caller():
        while not stop.is_set():
            streams.append(stream_to_its_end(engine))

    caller = threading.Thread(target=other_caller)
    caller.start()
    done = demo(tmp_path / "demo", "--engine-url", engine.url)
    stop.set()
    caller.join(60)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    for name, label in FAULTS.items():
        said = f"{name}: not run: not our engine" if name in OWN_ONLY else f"{name}: {label} (ok)"
        assert f"\n{said}\n" in done.stdout
    assert sorted(engine.processes()) == before
    assert len(streams) > 3
    assert set(streams) == {(200, 1, True)}


def stream_to_its_end(engine):
    """Status, how often an end for length was said and whether the stream was closed in order, of one long stream to the engine."""
    address = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    body = {"model": engine.model, "prompt": "the queue", "max_tokens": 450, "stream": True, "ignore_eos": True}
    address.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = address.getresponse()
    text = reply.read().decode()
    address.close()
    return reply.status, text.replace(" ", "").count('"finish_reason":"length"'), text.rstrip().endswith("data: [DONE]")
