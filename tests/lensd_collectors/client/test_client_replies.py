"""However a reply is read, or left unread, it is the reply that came, and its span says how it ended."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
from lensd_collectors.client import instrument
from llm_callers import CALLERS, PATH, body
from llm_server import ANSWER, LlmServer
from opentelemetry.sdk.trace import TracerProvider

Spans = Callable[[], list[dict[str, Any]]]


def only(spans: Spans) -> dict[str, Any]:
    [span] = spans()
    return span


READS: dict[str, Callable[[aiohttp.ClientResponse], Any]] = {
    "read": lambda reply: reply.read(),
    "text": lambda reply: reply.text(),
    "lines": lambda reply: joined(reply.content),
    "any": lambda reply: joined(reply.content.iter_any()),
    "chunked": lambda reply: joined(reply.content.iter_chunked(10)),
    "chunks": lambda reply: joined(chunk async for chunk, _ in reply.content.iter_chunks()),
    "exactly": lambda reply: reply.content.readexactly(20),
    "until": lambda reply: reply.content.readuntil(b"\n\n"),
}


async def joined(parts: Any) -> bytes:
    return b"".join([part async for part in parts])


@pytest.mark.parametrize("how", READS)
def test_aiohttp_reads_the_same_in_each_of_its_ways(server: LlmServer, spans: Spans, how: str) -> None:
    async def main() -> Any:
        async with aiohttp.ClientSession() as session, session.post(server.url + PATH, json=body("ok", True)) as reply:
            return await READS[how](reply)

    read = asyncio.run(main())
    text = read if isinstance(read, str) else read.decode()
    said = only(spans)["attributes"]
    if how in ("exactly", "until"):
        assert text.startswith('data: {"id": "chatcm')
        assert said["error.type"] == "cancelled"  # it left the rest
    else:
        assert (text[:10], text[-14:]) == ('data: {"id', "data: [DONE]\n\n")
        assert ANSWER in text
        assert "error.type" not in said
        assert said["lensd.stream.chunks"] == 3


@pytest.mark.parametrize("size", [1, 7, None])
def test_requests_reads_the_same_in_each_of_its_ways(server: LlmServer, spans: Spans, size: int | None) -> None:
    reply = requests.post(server.url + PATH, json=body("ok", True), stream=True)
    text = "".join(part.decode() for part in reply.iter_content(size))
    assert text.endswith("data: [DONE]\n\n")
    assert ANSWER in text
    again = requests.post(server.url + PATH, json=body("ok", False))
    assert again.json()["choices"][0]["message"]["content"] == ANSWER
    assert b"".join(again.iter_content(5)) == again.content
    assert [span["attributes"].get("error.type") for span in spans()] == [None, None]
    assert spans()[0]["attributes"]["lensd.stream.chunks"] == 3


def test_openai_gives_what_the_model_said(server: LlmServer, spans: Spans) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="x") as client:
        whole = client.chat.completions.create(**body("ok", False))
        parts = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**body("ok", True))]
        with client.chat.completions.create(**body("ok", True)) as stream:
            stepped = next(stream)
    assert whole.choices[0].message.content == "".join(parts) == ANSWER
    assert stepped.choices[0].delta.content == ""
    assert len(spans()) == 3


@pytest.mark.parametrize("caller", CALLERS)
def test_a_packed_stream_is_read_all_the_same(server: LlmServer, spans: Spans, caller: str) -> None:
    CALLERS[caller](server.url, "gzip", True)
    said = only(spans)["attributes"]
    assert (said["lensd.stream.chunks"], said["lensd.stream.done_seen"]) == (2, True)
    assert said["lensd.client.first_content_ms"] > 0


def test_a_stream_left_before_its_end_was_the_callers_choice(server: LlmServer, spans: Spans) -> None:
    with httpx.stream("POST", server.url + PATH, json=body("stall", True)) as reply:
        next(reply.iter_lines())
    span = only(spans)
    assert (span["attributes"]["error.type"], span["status"]["code"]) == ("cancelled", 2)
    assert "lensd.client.max_gap_ms" not in span["attributes"]


def test_a_stream_left_after_its_last_event_is_whole(server: LlmServer, spans: Spans) -> None:
    with httpx.stream("POST", server.url + PATH, json=body("ok", True)) as reply:
        for line in reply.iter_lines():
            if line == "data: [DONE]":
                break
    assert "error.type" not in only(spans)["attributes"]


def test_a_reply_that_is_dropped_unread_has_its_span(server: LlmServer, spans: Spans) -> None:
    reply: Any = requests.post(server.url + PATH, json=body("stall", True), stream=True)
    del reply
    gc.collect()
    assert only(spans)["attributes"]["error.type"] == "cancelled"


def test_a_reply_that_the_garbage_collector_finds_waits_for_no_lock(server: LlmServer, spans: Spans) -> None:
    circle: list[Any] = [requests.post(server.url + PATH, json=body("stall", True), stream=True)]
    circle.append(circle)
    exporter = instrument(libraries=())._outlet._exporter
    assert exporter is not None
    with exporter._lock:  # the collector may run in the middle of anything
        del circle
        gc.collect()
    assert only(spans)["attributes"]["error.type"] == "cancelled"


@pytest.mark.parametrize("caller", ["httpx", "aiohttp"])
def test_a_cancelled_task_is_told_and_its_error_left_alone(server: LlmServer, spans: Spans, caller: str) -> None:
    async def ask() -> None:
        if caller == "httpx":
            async with httpx.AsyncClient() as client:
                await client.post(server.url + PATH, json=body("slow", False))
        else:
            async with aiohttp.ClientSession() as session:
                await session.post(server.url + PATH, json=body("slow", False))

    async def main() -> BaseException:
        task = asyncio.create_task(ask())
        while not server.seen:
            await asyncio.sleep(0.01)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError) as gone:
            await task
        return gone.value

    error = asyncio.run(main())
    assert error.args in (("enough",), ())
    assert only(spans)["attributes"]["error.type"] == "cancelled"


def test_a_total_limit_is_the_one_in_force_where_it_fires(server: LlmServer, spans: Spans) -> None:
    async def main() -> None:
        timeout = aiohttp.ClientTimeout(total=0.3)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(server.url + PATH, json=body("stall", True)) as reply:
            await reply.read()

    with pytest.raises(TimeoutError) as late:
        asyncio.run(main())
    assert type(late.value) is TimeoutError
    assert server.seen[0].request_id in str(late.value)
    said = only(spans)["attributes"]
    assert (said["error.type"], said["lensd.client.timeout_ms"]) == ("timeout", 300)


def test_the_span_that_opentelemetry_has_open_is_the_parent(server: LlmServer, spans: Spans) -> None:
    tracer = TracerProvider().get_tracer("app")
    for caller in CALLERS:
        server.seen.clear()
        with tracer.start_as_current_span("turn") as turn:
            CALLERS[caller](server.url, "ok", False)
            CALLERS[caller](server.url, "ok", True)
        above = turn.get_span_context()
        told = spans()[-2:]
        assert {span["traceId"] for span in told} == {seen.trace_id for seen in server.seen} == {f"{above.trace_id:032x}"}
        assert {span["parentSpanId"] for span in told} == {f"{above.span_id:016x}"}
        assert len({seen.request_id for seen in server.seen}) == 2, "requests of one trace have an id each"


def test_many_at_once_keep_apart(server: LlmServer, spans: Spans) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(timeout=20) as client:
            await asyncio.gather(*(client.post(server.url + PATH, json=body("gap", True)) for _ in range(20)))

    asyncio.run(main())
    assert len({seen.request_id for seen in server.seen}) == 20
    assert {seen.request_id for seen in server.seen} == {span["attributes"]["lensd.request.id"] for span in spans()}
    assert {seen.parent_span_id for seen in server.seen} == {span["spanId"] for span in spans()}
