"""A GPU exporter's scrape is forwarded under its own names, and the receiver makes rows of it."""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from lensd_collectors.dialects import load
from lensd_collectors.host import agent
from lensd_collectors.host.config import AgentConfig
from lensd_collectors.host.dcgm import ExporterScraper, target
from lensd_collectors.host.engine import AgentError, Engine, FetchError, FetchFailure
from lensd_collectors.host.line import FOLLOWED, State

from lensd.receive.gpu_rows import GpuRows

LABELS = 'gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA H100",Hostname="node-1",namespace="serving",pod="vllm-0"'
BODY = f"""\
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{{LABELS}}} 79810
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{{LABELS},err_msg="No Error"}} 0
DCGM_FI_DEV_VGPU_LICENSE_STATUS{{{LABELS}}} 0
DCGM_FI_DEV_FB_USED_OTHER{{{LABELS}}} 1
go_goroutines 9
"""


def scraper(recorder: Any, answer: str | FetchError) -> ExporterScraper:
    def fetch(engine: Engine, path: str) -> bytes:
        assert (engine.url, path) == ("http://127.0.0.1:9400", "/metrics")
        if isinstance(answer, FetchError):
            raise answer
        return answer.encode()

    return ExporterScraper("http://127.0.0.1:9400/metrics", recorder, fetch, lambda: 1_000)


def test_what_the_dialect_reads_is_forwarded_whole(recorder: Any) -> None:
    one = scraper(recorder, BODY)
    assert one.scrape() == FOLLOWED
    assert {name: value for (name, _), value in recorder.values().items()} == {"DCGM_FI_DEV_FB_USED": 79810, "DCGM_FI_DEV_XID_ERRORS": 0}
    assert recorder.batches == [2]
    _, kind, metric = recorder.metrics[0]
    (point,) = metric.gauge.data_points
    attributes = recorder.attributes(point)
    assert (kind, attributes["UUID"], attributes["pod"]) == ("gauge", "GPU-aa", "vllm-0")
    assert attributes["lensd.scrape.target"] == "http://127.0.0.1:9400/metrics"


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        (FetchError(FetchFailure.REFUSED), State.MISSING, "nothing listens there"),
        (FetchError(FetchFailure.TIMEOUT), State.MISSING, "it does not answer: timeout"),
        (FetchError(FetchFailure.STATUS, 403), State.DENIED, "it answers 403"),
        (FetchError(FetchFailure.STATUS, 500), State.MISSING, "it answers 500"),
        (FetchError(FetchFailure.BROKEN, said="nobody knows the name gpu-host"), State.MISSING, "nobody knows the name gpu-host"),
        ("<html>not metrics</html>", State.MISSING, "it tells of no GPU"),
        ("", State.MISSING, "it tells of no GPU"),
    ],
)
def test_what_does_not_answer_sends_nothing_and_is_told(recorder: Any, answer: str | FetchError, state: State, reason: str) -> None:
    one = scraper(recorder, answer)
    assert one.scrape() == (state, reason)
    assert recorder.metrics == []


def test_it_is_followed_again_when_it_answers(recorder: Any) -> None:
    answers: list[str | FetchError] = [FetchError(FetchFailure.REFUSED), BODY]

    def fetch(engine: Engine, path: str) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, FetchError):
            raise answer
        return answer.encode()

    one = ExporterScraper("gpu-host:9400", recorder, fetch, lambda: 1_000)
    assert [one.scrape().state for _ in range(2)] == [State.MISSING, State.FOLLOWED]
    assert one.name == "gpu exporter http://gpu-host:9400"


@pytest.mark.parametrize("url", ["ftp://gpu-host", "http://joe:secret@", "http://h:port"])
def test_a_url_of_no_use_is_named_without_its_secrets(url: str) -> None:
    with pytest.raises(AgentError, match="gpu_exporters: ") as caught:
        target(url)
    assert "secret" not in str(caught.value)


def test_every_name_forwarded_is_one_that_the_receiver_reads() -> None:
    table = load()["dcgm"].gpu
    assert table is not None
    assert table.names <= GpuRows(load(), Counter()).names


class Exporting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(BODY.encode())

    def log_message(self, format: str, *args: Any) -> None: ...


def test_the_agent_scrapes_what_its_settings_name_and_tells_of_it(recorder: Any) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    try:
        parts = agent.Parts(AgentConfig(gpu_exporters=(url,), kmsg=False), recorder).all([])
        (step,) = [make() for name, _, make in parts if name == f"gpu-exporter-{url}"]
        step()
    finally:
        server.shutdown()
        server.server_close()
    assert recorder.batches == [2]
    told = [recorder.attributes(each) for each in recorder.events]
    assert [(each["lensd.source.name"], each["lensd.source.state"]) for each in told] == [
        (f"gpu exporter {url.removesuffix('/metrics')}", "followed")
    ]


def test_the_agent_does_not_start_with_an_exporter_of_no_use() -> None:
    with pytest.raises(AgentError, match="gpu_exporters: 'ftp://gpu-host'"):
        agent.run(AgentConfig(gpu_exporters=("ftp://gpu-host",)), None, stop=threading.Event())
