"""What a scripted engine does with a request, and what the gateway told of its attempts."""

import asyncio

from gateway_stage import CHAT, Call, capture
from lensd_collectors.gateway.config import Retry

WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()
SSE = capture("http/ok-chat-stream.json")["body"].encode()
HEAD = SSE[: SSE.index(b"\n\n", 600) + 2]
STREAMED = {**CHAT, "stream": True}
GONE = capture("http/err-model-unknown.json")["body"].encode()
SMALL, ADAPTER = "small-model", "sql-adapter"
LIMIT_S = 0.05
TICK_S = 0.005  # the loop's clock is no finer
QUICK = Retry(most=3, first_s=0.02, busy_s=0.02)


async def whole(call: Call) -> None:
    await call.reply(200, WHOLE)


async def silent(call: Call) -> None:
    await asyncio.sleep(60)


async def cut(call: Call) -> None:
    call.cut()


async def cut_midway(call: Call) -> None:
    await call.start_stream()
    await call.chunk(HEAD)
    await asyncio.sleep(0.02)
    call.cut()


def answering(status: int, *headers: str, body: bytes = b'{"error": {"message": "no", "type": "planted"}}'):
    async def script(call: Call) -> None:
        lines = "".join(f"{each}\r\n" for each in headers)
        await call.send(
            f"HTTP/1.1 {status} X\r\n{lines}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )

    return script


def first(*scripts):
    """One script a request, the last of them for all that follow."""
    made = iter(scripts)

    async def script(call: Call) -> None:
        await next(made, scripts[-1])(call)

    return script


def attempts(s) -> list[tuple]:
    """Number, engine, status and error of each upstream span."""
    names = ("lensd.attempt", "lensd.engine", "http.response.status_code", "error.type")
    return [tuple(span["attributes"].get(name) for name in names) for span in s.upstream_spans()]


async def streamed(call: Call) -> None:
    await call.start_stream()
    await call.chunk(SSE)
    await call.end_stream()


def sending(*steps: bytes | float, then: str = "end"):
    """Bytes are sent, numbers are seconds of silence."""

    async def script(call: Call) -> None:
        await call.start_stream()
        for step in steps:
            await (asyncio.sleep(step) if isinstance(step, float) else call.chunk(step))
        if then == "end":
            await call.end_stream()
        elif then == "cut":
            await asyncio.sleep(0.02)
            call.cut()
        else:
            await asyncio.sleep(60)

    return script
