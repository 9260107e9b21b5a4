"""How often a server is asked again, how soon, and when not at all: counted at the server."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.client import Retries, retry, retry_async
from llm_callers import CALLERS, PATH, body
from llm_server import LlmServer

Spans = Callable[[], list[dict[str, Any]]]


class Clock:
    """Instead of sleeping."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.waits.append(seconds)


def plenty(chance: float = 0.5, **kwargs: Any) -> Retries:
    return Retries(chance=lambda: chance, **kwargs)


def post(server: LlmServer, model: str = "ok") -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.post(server.url + PATH, json=body(model, False), timeout=5)


def test_three_more_at_most_with_waits_that_double(server: LlmServer) -> None:
    clock = Clock()
    server.answers = [500] * 9
    assert retry(lambda: post(server), retries=plenty(), sleep=clock.sleep).status_code == 500
    assert len(server.seen) == 4
    assert clock.waits == [1.5, 3, 6]


def test_one_that_passes_is_answered(server: LlmServer) -> None:
    clock = Clock()
    server.answers = [503, 429]
    assert retry(lambda: post(server), retries=plenty(0), sleep=clock.sleep).status_code == 200
    assert clock.waits == [2, 2]


@pytest.mark.parametrize(
    ("header", "waits"),
    [
        ((b"retry-after", b"7"), [7]),
        ((b"retry-after", b"0"), [2]),
        ((b"retry-after-ms", b"3500"), [3.5]),
        ((b"retry-after", b"garbage"), [2]),
        ((b"retry-after", b"3600"), []),  # nobody waits an hour: the answer is given back
        ((b"x-should-retry", b"false"), []),
    ],
)
def test_a_busy_server_says_when(server: LlmServer, header: tuple[bytes, bytes], waits: list[float]) -> None:
    clock = Clock()
    server.answers, server.headers = [503], [header]
    reply = retry(lambda: post(server), retries=plenty(0), sleep=clock.sleep)
    assert (reply.status_code, clock.waits) == (200 if waits else 503, waits)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 501])
def test_what_will_not_pass_is_asked_once(server: LlmServer, status: int) -> None:
    server.answers = [status]
    assert retry(lambda: post(server), retries=plenty(), sleep=Clock().sleep).status_code == status
    assert len(server.seen) == 1


def test_errors_that_bear_their_answer_count_as_it(server: LlmServer) -> None:
    for caller in ("httpx", "requests", "openai", "aiohttp"):
        server.seen.clear()
        server.answers, clock = [503], Clock()
        retry(lambda caller=caller: CALLERS[caller](server.url, "ok", False), retries=plenty(0), sleep=clock.sleep)  # type: ignore[misc]
        assert (len(server.seen), clock.waits) == (2, [2]), caller


def test_the_last_error_is_raised_as_it_came(server: LlmServer) -> None:
    with pytest.raises(openai.InternalServerError):
        retry(lambda: CALLERS["openai"](server.url, "busy", False), retries=plenty(), sleep=Clock().sleep)
    assert len(server.seen) == 4


def test_coroutines_too(server: LlmServer) -> None:
    clock = Clock()
    server.answers = [503, 500]

    async def main() -> int:
        async with aiohttp.ClientSession() as session:

            async def send() -> aiohttp.ClientResponse:
                return await session.post(server.url + PATH, json=body("ok", False))

            reply = await retry_async(send, retries=plenty(0), sleep=clock.sleep_async)
            await reply.read()
            return reply.status

    assert asyncio.run(main()) == 200
    assert clock.waits == [2, 2]


def test_attempts_are_one_call_with_one_id_and_a_span_each(server: LlmServer, spans: Spans) -> None:
    server.answers = [503, 503]
    retry(lambda: post(server), retries=plenty(0), sleep=Clock().sleep)
    assert len({seen.request_id for seen in server.seen}) == len({seen.trace_id for seen in server.seen}) == 1
    assert len({seen.parent_span_id for seen in server.seen}) == 3
    assert [span["attributes"]["lensd.client.attempt"] for span in spans()] == [1, 2, 3]
    assert [span["attributes"].get("error.type") for span in spans()] == ["503", "503", None]


def test_the_attempts_of_openais_own_are_one_call_too(server: LlmServer, spans: Spans) -> None:
    server.answers, server.headers = [503, 503], [(b"retry-after-ms", b"1")]
    with openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=2) as client:
        client.chat.completions.create(**body("ok", False))
    assert len({span["traceId"] for span in spans()}) == len({seen.request_id for seen in server.seen}) == 1
    assert [span["attributes"]["lensd.client.attempt"] for span in spans()] == [1, 2, 3]


def test_after_a_byte_of_content_nothing_is_asked_again(server: LlmServer, spans: Spans) -> None:
    for model in ("cut", "stall"):
        server.seen.clear()
        with pytest.raises(httpx.TransportError):
            retry(lambda model=model: CALLERS["httpx"](server.url, model, True, 0.3), retries=plenty(), sleep=Clock().sleep)  # type: ignore[misc]
        assert len(server.seen) == 1


def test_before_one_a_time_out_is_asked_again(server: LlmServer, spans: Spans) -> None:
    with pytest.raises(httpx.ReadTimeout):
        retry(lambda: CALLERS["httpx"](server.url, "slow", True, 0.1), retries=plenty(most=1), sleep=Clock().sleep)
    assert len(server.seen) == 2


def test_where_nobody_saw_whether_one_came_it_is_not(server: LlmServer) -> None:
    with pytest.raises(httpx.ReadTimeout):
        retry(lambda: CALLERS["httpx"](server.url, "slow", True, 0.1), retries=plenty(), sleep=Clock().sleep)
    assert len(server.seen) == 1


def test_a_server_that_is_not_there_is_tried_again() -> None:
    clock = Clock()
    with pytest.raises(httpx.ConnectError):
        retry(lambda: CALLERS["httpx"]("http://127.0.0.1:1", "ok", True), retries=plenty(), sleep=clock.sleep)
    assert len(clock.waits) == 3


def test_other_errors_pass_at_once() -> None:
    clock = Clock()
    with pytest.raises(KeyError):
        retry(lambda: {}["x"], retries=plenty(), sleep=clock.sleep)
    assert clock.waits == []


def test_a_server_that_is_down_is_not_asked_more_than_a_tenth_more(server: LlmServer) -> None:
    retries, clock = plenty(), Clock()
    for _ in range(100):
        retry(lambda: post(server, "busy"), retries=retries, sleep=clock.sleep)
    assert len(server.seen) == 110


@given(st.lists(st.integers(0, 4), max_size=400))
def test_of_n_calls_never_more_than_a_tenth_or_three_are_added(failures: list[int]) -> None:
    retries = Retries()
    added = 0
    for calls, failing in enumerate(failures, start=1):
        retries.call()
        for attempt in range(1, failing + 1):
            if retries.wait(attempt, 503, None) is None:
                break
            added += 1
        assert added <= max(3, calls / 10 + 1e-6)


@given(st.integers(1, 3), st.sampled_from([None, 408, 429, 500, 503]), st.none() | st.floats(0, 30), st.floats(0, 1, exclude_max=True))
def test_no_wait_is_shorter_than_it_may_be(attempt: int, status: int | None, retry_after: float | None, chance: float) -> None:
    wait = Retries(chance=lambda: chance).wait(attempt, status, retry_after)
    least = max(2.0 ** (attempt - 1), 2 if status in (429, 503) else 0, retry_after or 0)
    assert wait is not None
    assert least <= wait <= least + 2.0 ** (attempt - 1)


def test_after_a_long_calm_three_are_saved_up_and_no_more() -> None:
    retries = Retries()
    for _ in range(1000):
        retries.call()
    assert [retries.wait(1, 503, None) is not None for _ in range(5)] == [True, True, True, False, False]
