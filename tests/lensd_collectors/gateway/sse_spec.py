"""Server-sent events as their specification has them, read slowly and all at once; and streams of engines to read."""

import json
from pathlib import Path
from typing import Any, NamedTuple

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"


class Read(NamedTuple):
    events: list[tuple[str, bytes]]  # name and data of those that ended
    rest: list[tuple[str, bytes]]  # fields after the last blank line, a half line too
    at_boundary: bool


def read(stream: bytes) -> Read:
    """Section 9.2.6 of the HTML standard, on bytes."""
    text = stream.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    events: list[tuple[str, bytes]] = []
    fields: list[tuple[str, bytes]] = []
    last = lines.pop()
    for line in lines:
        if line:
            fields += _field(line)
        else:
            if data := [value for name, value in fields if name == "data"]:
                events.append((_last(fields, "event"), b"\n".join(data)))
            fields = []
    return Read(events, fields + _field(last), not fields and not last and not stream.endswith(b"\r"))


def _field(line: str) -> list[tuple[str, bytes]]:
    if not line or line.startswith(":"):
        return []
    name, _, value = line.partition(":")
    return [(name, value.removeprefix(" ").encode("latin-1"))]


def _last(fields: list[tuple[str, bytes]], wanted: str) -> str:
    return next((value.decode() for name, value in reversed(fields) if name == wanted), "")


def capture(name: str) -> bytes:
    body: str = json.loads((CAPTURES / name).read_text())["body"]
    return body.encode()


def dechunked(name: str) -> bytes:
    """Body of a raw HTTP capture in chunked encoding."""
    rest = (CAPTURES / name).read_bytes().split(b"\r\n\r\n", 1)[1]
    body = b""
    while size := int((line := rest.split(b"\r\n", 1))[0], 16):
        body += line[1][:size]
        rest = line[1][size + 2 :]
    return body


def sse(*events: Any, named: bool = False) -> bytes:
    """Events as engines write them; a dict is sent as JSON, with its type as its name where `named`."""
    written = b""
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        name = f"event: {event['type']}\n" if named and isinstance(event, dict) else ""
        written += f"{name}data: {data}\n\n".encode()
    return written


def responses(*last: Any) -> bytes:
    """A stream of /v1/responses with two words of text, up to the events given."""
    begun = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "tiny-llama",
        "status": "in_progress",
        "usage": None,
        "output": [],
    }
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {"id": "msg_1", "type": "message", "content": []}},
        {"type": "response.output_text.delta", **at, "delta": "two"},
        {"type": "response.output_text.delta", **at, "delta": " wörds"},
        {"type": "response.output_text.done", **at, "text": "two wörds"},
        *last,
    ]
    return sse(*({**event, "sequence_number": number} for number, event in enumerate(events)), named=True)


def final_response(**given: Any) -> dict[str, Any]:
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}
    return {"id": "resp_1", "object": "response", "model": "tiny-llama", "status": "completed", "error": None, "usage": usage, **given}


CHAT = capture("http/ok-chat-stream.json")
COMPLETION = capture("http/ok-completion-stream.json")
COMPLETED = responses({"type": "response.completed", "response": final_response()})
MESSAGES = sse(
    {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 5, "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"input_tokens": 5, "output_tokens": 1}},
    {"type": "message_stop"},
    named=True,
)


def all_data(found: Read) -> list[bytes]:
    """The data of the events, and of one that the end of the stream cut off after its data."""
    whole = [data for _, data in found.events]
    if last := [value for name, value in found.rest if name == "data"]:
        data = b"\n".join(last)
        whole += [data] if data.startswith(b"[DONE]") or isinstance(parsed(data), dict) else []
    return whole


def parsed(data: bytes) -> object:
    """As JSON; None for what is none."""
    try:
        return json.loads(data.decode())
    except ValueError:
        return None
