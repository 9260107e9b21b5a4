"""Replies of other endpoints on their way through the gateway, and what counts as content."""

import asyncio

import aiohttp
import pytest
from engine_scripts import sending
from gateway_stage import MODEL, Call, run, stage
from stream_pieces import DONE, STREAMED, WHOLE

EMBEDDING = (
    b'{"object":"list","model":"tiny-llama","data":[{"index":0,"embedding":[0.10,1e-3]}],"usage":{"prompt_tokens":3,"total_tokens":3}}'
)
RESPONSE = b'{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":3,"output_tokens":5}}'
SPEECH = bytes(range(256)) * 8192


@pytest.mark.parametrize(
    ("path", "body", "content_type", "usage"),
    [
        ("/v1/embeddings", EMBEDDING, "application/json", (3, None)),
        ("/v1/responses", RESPONSE, "application/json", (3, 5)),
        ("/v1/completions", WHOLE, "application/json", (12, 16)),
        ("/v1/rerank", b'{"results": [ ]}', "application/json", (None, None)),
        ("/v1/audio/speech", SPEECH, "audio/mpeg", (None, None)),
        ("/v1/chat/completions", b"<html>not JSON</html>", "text/html; charset=latin-1", (None, None)),
        ("/v1/chat/completions", b"", "application/json", (None, None)),
        ("/v1/chat/completions", WHOLE + b" " * (9 << 20), "application/json", (None, None)),  # over what is held back
    ],
)
def test_whole_replies_pass_whatever_they_are(path, body, content_type, usage):
    async def script(call: Call) -> None:
        await call.reply(200, body, content_type)

    async def main():
        async with stage(script, routes=("/v1/rerank", "/v1/audio/speech")) as s:
            return await s.ask({"model": MODEL, "input": "x"}, path), s.engine.calls[0], await s.record()

    answer, call, record = run(main())
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["content-type"] == content_type
    assert call.path == path
    assert (record.get("gen_ai.usage.input_tokens"), record.get("gen_ai.usage.output_tokens")) == usage
    assert (record["lensd.outcome"], record["lensd.bytes_sent"], record["http.route"]) == ("ok", len(body), path)
    if len(body) < 8 << 20:
        assert answer.headers["content-length"] == str(len(body))


def test_a_large_reply_that_breaks_off_is_seen_to_break_off():
    async def script(call: Call) -> None:
        size = 12 << 20
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size + b"x" * (size // 2))
        await call.send(b"x" * (size // 4))
        await asyncio.sleep(0.02)
        call.cut()

    async def main():
        async with stage(script) as s:
            with pytest.raises(aiohttp.ClientError):
                await s.ask()
            return await s.record()

    record = run(main())
    assert (record["lensd.outcome"], record["error.type"]) == ("cut", "reply_cut")


def test_what_counts_as_the_first_content_and_the_largest_gap():
    role = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
    text = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
    script = sending(role, 0.08, b": comment\n\n", 0.08, text, 0.3, text, 0.05, DONE)

    async def main():
        async with stage(script) as s:
            await s.ask(STREAMED)
            return await s.record(), s.upstream_spans()[0]["attributes"]

    record, upstream = run(main())
    assert upstream["lensd.upstream.first_byte_ms"] < upstream["lensd.upstream.first_content_ms"] - 150
    assert upstream["lensd.upstream.last_byte_ms"] > upstream["lensd.upstream.first_content_ms"] + 340
    assert 295 < record["lensd.stream.max_gap_ms"] < 450
