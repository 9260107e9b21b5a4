"""The dashboard as a process: short links, who may talk to it, what it keeps to itself, and one look with a real browser."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import canned
import fake_api
import pytest
from checkout import ROOT, load_by_path
from lensd_dashboards import server
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from lensd.errors import UsageError

TOKEN = "s3cret-token"
RUN = """
import os
from lensd_dashboards import server
server.run(os.environ["API_URL"], os.environ["API_TOKEN"], port=int(os.environ["PORT"]), public_url=os.environ["PUBLIC_URL"])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get(port: int, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def wait_until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(300):
        assert process.poll() is None, "the dashboard ended"
        try:
            if get(port, "/_stcore/health").status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the dashboard did not come up within 30 s")


@pytest.fixture(scope="module")
def dashboard() -> Iterator[tuple[int, fake_api.FakeApi]]:
    """Port of a dashboard over canned documents, and the daemon behind it."""
    port = free_port()
    with fake_api.running(TOKEN) as api:
        given = {"API_URL": api.url, "API_TOKEN": TOKEN, "PORT": str(port), "PUBLIC_URL": "https://ops.example/lensd/"}
        process = subprocess.Popen([sys.executable, "-c", RUN], env=os.environ | given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            wait_until_healthy(process, port)
            yield port, api
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=20)
        assert TOKEN.encode() not in said
        assert b"Traceback" not in said


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/i/01KXENGINECRASH0000000001", "/incident?id=01KXENGINECRASH0000000001"),
        ("/r/chatcmpl-6f1c", "/request?id=chatcmpl-6f1c"),
        ("/r/a%2Fb%3Fc%20d%26e", "/request?id=a%2Fb%3Fc+d%26e"),
        ("/r/https:%2F%2Fevil.example", "/request?id=https%3A%2F%2Fevil.example"),
        ("/r/a/b", "/request?id=a%2Fb"),
        ("/runbook/engine-crash", "/runbooks?label=engine-crash"),
        ("/requests?label=oom&key=team-chat", "/?label=oom&key=team-chat"),
        ("/requests", "/"),
    ],
)
def test_short_links_lead_to_the_page(dashboard: tuple[int, fake_api.FakeApi], path: str, target: str) -> None:
    answer = get(dashboard[0], path)
    assert answer.status == 307
    for published in ("http://127.0.0.1:8501", "https://ops.example/lensd"):  # a proxy takes its prefix off before it passes a path on
        assert urljoin(f"{published}{path}", answer.headers["location"]) == f"{published}{target}"


@pytest.mark.parametrize("path", ["/", "/request?id=x", "/incidents", "/incident?id=x", "/runbooks?label=x"])
def test_pages_answer_without_the_token(dashboard: tuple[int, fake_api.FakeApi], path: str) -> None:
    answer = get(dashboard[0], path)
    assert answer.status == 200
    assert TOKEN.encode() not in answer.read()


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 101), ("ops.example", 101), ("rebound.example", 403)])
def test_only_known_host_names_reach_a_session(dashboard: tuple[int, fake_api.FakeApi], host: str, status: int) -> None:
    asked = {
        "Host": host, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    assert get(dashboard[0], "/_stcore/stream", **asked).status == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "ops.example"])
def test_a_host_that_others_reach_must_be_asked_for(host: str) -> None:
    with pytest.raises(UsageError, match="allow_remote"):
        server.run(host=host, port=free_port())


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}.*dashboard.listen"):
            server.run(port=port)


def test_nothing_is_sent_out() -> None:
    chosen = server.settings("127.0.0.1", 8501, "")
    assert chosen["browser.gatherUsageStats"] is False
    assert chosen["client.showErrorDetails"] == "none"
    assert chosen["logger.hideWelcomeMessage"] is True  # the welcome looks up the machine's outer address


@pytest.mark.chromium
def test_a_short_link_opens_the_request_in_a_browser(dashboard: tuple[int, fake_api.FakeApi], browser: Any) -> None:
    port, _ = dashboard
    picture = load_by_path("screenshot", ROOT / "tools" / "screenshot.py")
    browser.get(f"http://127.0.0.1:{port}/r/{canned.HEALTHY}")
    picture.settle(browser, "Take it along", 40)
    said = browser.find_element(By.TAG_NAME, "body").text
    assert "Every stage was seen and none was slow" in said
    assert not browser.find_elements(By.CSS_SELECTOR, "[data-testid='stSidebarNav']")  # Streamlit's own navigation is not in the way
    assert len(browser.find_elements(By.CSS_SELECTOR, "[data-testid='stVegaLiteChart']")) == 2
    assert TOKEN not in browser.page_source
    assert "None" not in said


@pytest.mark.chromium
def test_a_tick_in_the_list_opens_that_request(dashboard: tuple[int, fake_api.FakeApi], browser: Any) -> None:
    port, _ = dashboard
    picture = load_by_path("screenshot", ROOT / "tools" / "screenshot.py")
    browser.get(f"http://127.0.0.1:{port}/")
    picture.settle(browser, "4 requests shown", 40)
    table = browser.find_element(By.CSS_SELECTOR, "[data-testid='stDataFrame'] canvas")
    left, top = -table.size["width"] // 2, -table.size["height"] // 2
    ActionChains(browser).move_to_element_with_offset(table, left + 16, top + 35 + 34 * 2 + 17).click().perform()
    picture.settle(browser, "The request waited 29.99 s", 40)
    assert browser.current_url.endswith(f"/request?id={canned.QUEUED}")
