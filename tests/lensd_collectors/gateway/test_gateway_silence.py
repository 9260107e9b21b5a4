"""What silence of an engine means: where a heartbeat would be taken for an event, and which stages a late first byte leaves open."""

import asyncio

import openai
import pytest
from gateway_stage import CHAT, run, stage
from lensd_collectors.gateway.frames import HEARTBEAT
from lensd_collectors.gateway.sse import Scanner

CONTENT = b'data: {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n'
LAST = b'data: {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize("stream", [b"id: 7\n" + CONTENT, b"id:7\r\n\r\n", b"id: 7\n\n" + CONTENT], ids=["an event", "with CR", "alone"])
def test_events_with_ids_are_noticed_however_they_are_cut(stream: bytes) -> None:
    for cut in range(len(stream) + 1):
        scanner = Scanner()
        scanner.feed(stream[:cut])
        scanner.feed(stream[cut:])
        assert scanner.has_ids


def test_nothing_else_is_taken_for_an_id() -> None:
    scanner = Scanner()
    scanner.feed(b": id: 7\n\nidea: 7\n" + CONTENT % b"id: 7")
    assert not scanner.has_ids


@pytest.mark.parametrize(("numbered", "beats"), [(b"", True), (b"id: 7\n", False)], ids=["plain", "with ids"])
def test_the_official_client_reads_through_the_silence(numbered: bytes, beats: bool) -> None:
    """Its decoder keeps the last id, and makes an event of the blank line after a comment from then on."""

    async def script(call) -> None:
        await call.start_stream()
        await call.chunk(numbered + CONTENT % b"on")
        await asyncio.sleep(0.3)
        await call.chunk(numbered + CONTENT % b"ward" + LAST + b"data: [DONE]\n\n")
        await call.end_stream()

    async def main() -> tuple[str, bytes]:
        async with stage(script, heartbeat_s=0.04) as s:
            raw = (await s.ask({**CHAT, "stream": True})).body
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="k", max_retries=0) as client:
                stream = await client.chat.completions.create(**CHAT, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream]), raw

    text, raw = run(main())
    assert text == "onward"
    assert (HEARTBEAT in raw) is beats


@pytest.mark.parametrize(
    ("streaming", "where"),
    [
        (True, "the request was in its queue or in prefill"),
        (False, "its reply comes whole, so the request was in its queue, in prefill or in decode"),
    ],
)
def test_a_late_first_byte_says_which_stages_it_can_have_been(streaming: bool, where: str) -> None:
    async def script(call) -> None:
        await call.gone.wait()

    async def main() -> str:
        async with stage(script, first_byte_timeout_s=0.1) as s:
            answer = await s.ask({**CHAT, "stream": streaming})
            assert (answer.status, answer.headers["x-lensd-timeout"]) == (504, "first_byte")
            return answer.error["message"]

    assert run(main()) == f"the engine sent no byte within 0.1 s: {where}"
