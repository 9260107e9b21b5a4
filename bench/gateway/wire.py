"""What callers and the fake engine say to each other: requests and replies as bytes, of the shape that clients and vLLM send."""

import json
import re
from typing import Final

MODEL: Final = "tiny"
CHUNKS: Final = 64
GAP_MS: Final = 10
HEAD_END: Final = b"\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

CONTENT_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

_SYSTEM = "You are the assistant of a small hardware shop. Answer briefly, in plain words, and say so when you do not know. " * 2
_USER = (
    "My drill stops after about a minute of work and starts again when it has cooled down. What should I look at first, and is it safe? "
    * 2
)
_ID = "chatcmpl-3f6c2a9de0b84c17a5d2e91b7c604f38"
_CREATED = 1_790_000_000


def request(port: int, key: str, *, wish: str = "", streaming: bool = False) -> bytes:
    """One whole HTTP request, body about 0.7 KB. `wish`, see there, is the last message's end: what no proxy leaves out."""
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER + wish}],
        "temperature": 0.7,
        "max_tokens": CHUNKS,
    }
    if streaming:
        body["stream"] = True
    data = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: bench\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def wish(*, gap_ms: int = GAP_MS, chunks: int = CHUNKS, tag: str = "", hold: bool = False) -> str:
    """What a request asks of the fake engine. `hold`: no answer at all; `tag`: that it be told of at /bench/events."""
    return f"bench gap={gap_ms} chunks={chunks} hold={int(hold)} tag={tag}"


WISH: Final = re.compile(rb'bench gap=(\d+) chunks=(\d+) hold=([01]) tag=([^"]*)"')


def reply(body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: {len(body)}\r\ncontent-type: {content_type}\r\n\r\n"
    return head.encode() + body


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _chunk(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return b"data: " + _json(
        {"id": _ID, "object": "chat.completion.chunk", "created": _CREATED, "model": MODEL, "choices": [choice]}
    ) + b"\n\n"  # fmt: skip


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_CHOICE = {
    "index": 0,
    "message": {"role": "assistant", "content": "The motor overheats. Let it cool, then clean its air slots.", "tool_calls": []},
    "logprobs": None, "finish_reason": "stop", "stop_reason": None,
}  # fmt: skip
_USAGE = {"prompt_tokens": 118, "total_tokens": 136, "completion_tokens": 18, "prompt_tokens_details": None}

COMPLETION: Final = reply(
    _json({"id": _ID, "object": "chat.completion", "created": _CREATED, "model": MODEL, "choices": [_CHOICE], "usage": _USAGE})
)
MODELS: Final = reply(
    _json({"object": "list", "data": [{"id": MODEL, "object": "model", "created": _CREATED, "owned_by": "vllm", "max_model_len": 4096}]})
)
TAKEN: Final = reply(b"{}")
NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"

STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
FIRST: Final = _framed(_chunk({"role": "assistant", "content": ""}, None))
NEXT: Final = _framed(_chunk({"content": " word"}, None))
END: Final = _framed(_chunk({}, "stop")) + _framed(b"data: [DONE]\n\n") + LAST_CHUNK
