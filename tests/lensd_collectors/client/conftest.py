"""A server that answers like an LLM's, and instrumentation that sends to it; nothing is left instrumented."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lensd_collectors.client import instrument
from llm_server import LlmServer


@pytest.fixture(scope="module")
def _started() -> Iterator[LlmServer]:
    server = LlmServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(_started: LlmServer) -> LlmServer:
    _started.seen.clear()
    _started.bodies.clear()
    _started.answers.clear()
    _started.headers.clear()
    return _started


@pytest.fixture
def spans(server: LlmServer) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Everything instrumented; called, gives the spans that have been sent by now."""
    watching = instrument(endpoint=server.url, token="t")

    def sent() -> list[dict[str, Any]]:
        assert watching.flush()
        return server.spans()

    yield sent
    watching()
