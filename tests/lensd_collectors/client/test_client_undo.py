"""What instrumenting leaves alone: other requests, other libraries, the libraries themselves once it is undone, and every answer."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests
from lensd_collectors.client import instrument
from lensd_collectors.client.attempt import Attempt
from llm_callers import CALLERS, PATH, body
from llm_server import LlmServer

Spans = Callable[[], list[dict[str, Any]]]
CLASSES = (
    *(getattr(module, name) for module in (httpx, httpx2) for name in ("HTTPTransport", "AsyncHTTPTransport", "Response", "ReadTimeout")),
    *(requests.adapters.HTTPAdapter, requests.Response, requests.ReadTimeout, requests.ConnectionError, requests.HTTPError),
    *(aiohttp.ClientSession, aiohttp.ClientResponse, aiohttp.StreamReader, aiohttp.SocketTimeoutError, aiohttp.ClientResponseError),
    *(
        cls
        for top in (openai.OpenAI, openai.AsyncOpenAI, openai.Stream, openai.AsyncStream, openai.APITimeoutError)
        for cls in top.__mro__[:-1]
    ),
)


def members() -> list[dict[str, Any]]:
    return [{name: value for name, value in vars(cls).items() if not name.startswith("_abc")} for cls in CLASSES]


def test_undone_every_class_is_as_it_was(server: LlmServer) -> None:
    before = members()
    undo = instrument(endpoint=server.url)
    assert members() != before
    for caller in CALLERS:
        for model in ("slow", "refuse"):
            with pytest.raises(Exception, match=r"request [0-9a-f]{32}"):
                CALLERS[caller](server.url, model, True, 0.1)
    undo()
    assert members() == before
    server.seen.clear()
    with pytest.raises(Exception) as plain:
        CALLERS["requests"](server.url, "slow", True, 0.1)
    assert "request " not in str(plain.value)
    assert "traceparent" not in server.seen[0].headers
    undo()


def test_twice_is_once(server: LlmServer) -> None:
    first = instrument(endpoint=server.url, libraries=("httpx",))
    again = instrument(endpoint=server.url, libraries=("httpx", "requests"))
    assert first is again
    assert first.libraries == ("httpx", "requests")
    for caller in ("httpx", "requests"):
        CALLERS[caller](server.url, "ok", False)
    assert again.flush()
    assert len(server.spans()) == 2
    first()


def test_openai_alone_brings_the_library_it_sends_with(server: LlmServer) -> None:
    watching = instrument(endpoint=server.url, libraries=("openai",))
    CALLERS["openai"](server.url, "ok", True)
    assert watching.flush()
    assert {"openai", "httpx2"} <= set(watching.libraries)
    assert len(server.spans()) == 1
    watching()


def test_a_library_that_is_not_here_is_named_and_the_others_are_followed(server: LlmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    watching = instrument(endpoint=server.url, libraries=("aiohttp", "requests"))
    assert (watching.libraries, watching.missing) == (("requests",), ("aiohttp",))
    watching()


def test_a_library_that_nobody_knows_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="instrument urllib: known are openai, httpx, httpx2, aiohttp, requests"):
        instrument(libraries=("urllib",))


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("POST", "/v1/charges"), ("POST", "/v1/logs"), ("POST", "/forms/7/responses"), ("GET", PATH), ("POST", "/")],
)
def test_requests_of_other_kinds_are_not_touched(server: LlmServer, spans: Spans, method: str, path: str) -> None:
    for send in (requests.request, httpx.request, httpx2.request):
        send(method, server.url + path)
    assert all(not {"traceparent", "x-request-id", "x-lensd-client-timeout-ms"} & set(seen.headers) for seen in server.seen)
    assert spans() == []


def test_paths_may_be_told(server: LlmServer) -> None:
    watching = instrument(endpoint=server.url, paths=("/infer/*",))
    for path in ("/infer/a/b", PATH):
        httpx.post(server.url + path, json=body("ok", False))
    assert watching.flush()
    assert [span["attributes"]["http.route"] for span in server.spans()] == ["/infer/a/b"]
    watching()


@pytest.mark.parametrize("caller", CALLERS)
def test_where_lensd_is_not_there_requests_go_on(server: LlmServer, caller: str) -> None:
    undo = instrument(endpoint="http://127.0.0.1:1")
    CALLERS[caller](server.url, "ok", True)
    assert server.seen[0].request_id
    undo()


@pytest.mark.parametrize("bad", ["ftp://x", "http://", "::::"])
def test_an_endpoint_that_is_none_costs_the_spans_only(server: LlmServer, bad: str) -> None:
    undo = instrument(endpoint=bad)
    CALLERS["httpx"](server.url, "ok", True)
    assert server.seen[0].request_id
    undo()


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("part", ["_look", "_note_gap", "_judged", "__init__"])
def test_a_fault_of_ours_is_not_the_callers(server: LlmServer, monkeypatch: pytest.MonkeyPatch, caller: str, part: str) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Attempt, part, broken)
    undo = instrument(endpoint=server.url)
    CALLERS[caller](server.url, "gap", True)
    CALLERS[caller](server.url, "ok", False)
    undo()


def test_a_request_that_could_not_be_followed_has_no_span(server: LlmServer, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("lensd_collectors.client.watch.write_traceparent", broken)
    CALLERS["httpx"](server.url, "ok", False)
    assert spans() == []


LOADED = """
import sys
import msgspec
before = set(sys.modules)
import lensd_collectors.client as client
client.budget(1, 1, 1), client.instrument(endpoint="http://127.0.0.1:1", libraries=())(), client.retry(lambda: 1)
from lensd_collectors.client.foreign import callers
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""


def test_it_needs_the_standard_library_and_msgspec_only() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"lensd_collectors", "typing_extensions"}  # the second is msgspec's, where it is there


UNLOADED = """
import sys, httpx
from lensd_collectors.client import instrument
undo = instrument(endpoint=sys.argv[1], libraries=("httpx",))
httpx.post(sys.argv[1] + "/v1/completions", json={"model": "ok"}, trust_env=False)
undo()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_opentelemetry_is_not_loaded_for_it(server: LlmServer) -> None:
    done = subprocess.run([sys.executable, "-c", UNLOADED, server.url], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert len(server.spans()) == 1


FORKED = """
import os, sys, httpx
from lensd_collectors.client import instrument
watching = instrument(endpoint=sys.argv[1], libraries=("httpx",))
ask = lambda model: httpx.post(sys.argv[1] + "/v1/completions", json={"model": model}, trust_env=False)
ask("parent"); watching.flush()
child = os.fork()
if child == 0:
    ask("child")
    os._exit(0 if watching.flush() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_sends_its_own(server: LlmServer) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, server.url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(span["attributes"]["gen_ai.request.model"] for span in server.spans()) == ["child", "parent"]
