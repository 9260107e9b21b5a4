"""Processes that pretend to be a vLLM: a listener with its command line, environment and output, and captured pages."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request

from checkout import ROOT, serving

CAPTURES = ROOT / "tests" / "captures" / "vllm-0.32.0"
SCRIPT = ROOT / "tests" / "lensd" / "attach" / "pretend_vllm.py"
DOOR = "http://127.0.0.1:4318"
SPANS = ("--otlp-traces-endpoint", f"{DOOR}/v1/traces")
BY_GRPC = ("--otlp-traces-endpoint", "http://127.0.0.1:4317")
TRACED = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Bearer%20s3cr3t"}
INSIDE = ("--middleware", "lensd_collectors.vllm.middleware.LensdMiddleware")
SENDS = {"LENSD_OTLP": DOOR, "LENSD_TOKEN": "s3cr3t"}
KEY = "sk-s3cr3t-of-the-engine"


class Pretender:
    """`asked` is what it was asked for, `url` where."""

    def __init__(self, folder, process, port, log):
        self.process, self.port, self.log = process, port, log
        self.url = f"http://127.0.0.1:{port}"
        self._asked = folder / f"asked-{port}"

    @property
    def asked(self):
        return self._asked.read_text().splitlines() if self._asked.exists() else []


@contextlib.contextmanager
def pretending(folder, *flags, version="0.32.0", metrics="metrics-4-after-load.txt", key="", log=None, output=None, **environment):
    """A pretended vLLM started with these flags and variables; `log` is a file for its output, `output` anything Popen takes."""
    port = serving.free_port()
    given = {
        "PATH": os.environ["PATH"], "PRETEND_PAGES": str(CAPTURES), "PRETEND_VERSION": version, "PRETEND_METRICS": metrics,
        "PRETEND_ASKED": str(folder / f"asked-{port}"), "PRETEND_KEY": key, **environment,
    }  # fmt: skip
    with contextlib.ExitStack() as open_files:
        target = output if log is None else open_files.enter_context(open(log, "ab"))
        command = [sys.executable, str(SCRIPT), "serve", "tiny", "--port", str(port), *flags]
        process = subprocess.Popen(command, env=given, stdin=subprocess.DEVNULL, stdout=target, stderr=target)
    made = Pretender(folder, process, port, log)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{made.url}/health", timeout=1).close()
                break
            assert process.poll() is None
            time.sleep(0.05)
        made._asked.unlink(missing_ok=True)
        yield made
    finally:
        process.kill()
        process.wait()
