"""Spans of made-up requests as OTLP protobuf: seven a request, as caller, gateway, middleware and engine send them, no two alike.

Written field by field, since a message object a span takes longer to fill than the door needs to take it in.
"""

import random
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from lensd_collectors import conventions as c

A_REQUEST: Final = 7
FAILED_SHARE: Final = 0.03
SPACING_US: Final = 100
LASTS_US: Final = 4_000_000
"""Longer than any request lasts."""

Value = str | bool | int | float | list[str]
Attributes = dict[str, Value]
_MODEL, _ENGINES, _SERVER = "meta-llama/Llama-3.1-8B-Instruct", 4, 2
_CLIENT, _INTERNAL = 3, 1  # kinds, beside _SERVER
_double = struct.Struct("<d").pack
_instants = struct.Struct("<BQBQ").pack


def varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def field(number: int, content: bytes) -> bytes:
    """A field that is text, bytes or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def any_value(value: Value) -> bytes:
    if isinstance(value, str):
        return field(1, value.encode())
    if isinstance(value, bool):
        return bytes((16, value))
    if isinstance(value, int):
        return b"\x18" + varint(value)
    if isinstance(value, float):
        return b"\x21" + _double(value)
    return field(5, b"".join(field(1, any_value(item)) for item in value))


@cache
def _name(key: str) -> bytes:
    return field(1, key.encode())


def attributes(number: int, given: Attributes) -> bytes:
    """Attributes under the field of that number."""
    return b"".join([field(number, _name(key) + field(2, any_value(value))) for key, value in given.items()])


_REQUEST: Final[Attributes] = {c.REQUEST_MODEL: _MODEL, c.IS_STREAMING: True}
_HTTP: Final[Attributes] = {
    c.HTTP_METHOD: "POST", c.HTTP_ROUTE: "/v1/chat/completions", "server.address": "gateway.internal", "server.port": 8080,
    "url.scheme": "https", "network.protocol.version": "1.1", "user_agent.original": "OpenAI/Python 2.7.1",
}  # fmt: skip
_ASKED: Final[Attributes] = {
    "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.temperature": 0.7, "gen_ai.request.top_p": 0.95,
    c.MAX_TOKENS: 512,
}  # fmt: skip
_GATEWAY: Final = attributes(9, _REQUEST | _HTTP | _ASKED | {c.UPSTREAM: "10.2.0.17:8000", c.ATTEMPTS: 1, c.RESPONSE_MODEL: _MODEL})
_CALLER: Final = attributes(9, _REQUEST | _ASKED | {"server.address": "gateway.internal", "server.port": 8080, c.CLIENT_ATTEMPT: 1})
_POOL: Final[Attributes] = {"lensd.route.policy": "least-busy", "lensd.route.candidates": 4, "lensd.route.healthy": 4}
_ROUTING: Final = attributes(9, {c.REQUEST_MODEL: _MODEL} | _POOL)
_ATTEMPT: Final = attributes(9, {c.UPSTREAM: "10.2.0.17:8000", c.ATTEMPT: 1, c.HTTP_METHOD: "POST", "server.port": 8000})
_STREAM: Final = attributes(9, {c.IS_STREAMING: True, "network.transport": "tcp", "lensd.stream.format": "sse"})
_MIDDLE: Final = attributes(9, _REQUEST | _HTTP)
_ENGINE: Final = attributes(9, _ASKED | {"gen_ai.request.n": 1, "gen_ai.request.frequency_penalty": 0.0})
_ENDED: Final[dict[bool, Attributes]] = {
    False: {c.OUTCOME: "ok", c.DECISION: "allowed", c.HTTP_STATUS: 200, c.DONE_SEEN: True, c.FINISH_REASONS: ["stop"]},
    True: {
        c.OUTCOME: "failed", c.DECISION: "engine_error", c.HTTP_STATUS: 500, c.DONE_SEEN: False, c.SAID_BY: "engine",
        c.ERROR_TYPE: "engine_error",
    },
}  # fmt: skip


_FAILED: Final = field(15, field(2, b"EngineDeadError: the engine's process ended") + b"\x18\x02")


def _ms(value: float) -> float:
    """As a clock of nanoseconds gives it."""
    return round(value, 6)


class Request:
    """One request's seven spans, in the order of `SENDERS`."""

    def __init__(self, number: int, start_us: int, chance: random.Random) -> None:
        self._start = start_us * 1000
        self._trace = chance.randbytes(16)
        self._ids = [chance.randbytes(8) for _ in range(A_REQUEST)]
        self._failed = chance.random() < FAILED_SHARE
        self._chance = chance
        self._id, self._engine = self._trace.hex(), f"e{number % _ENGINES}"
        self._tokens = chance.randrange(1, 512)

    def spans(self) -> list[bytes]:
        chance = self._chance
        queue, prefill, decode = chance.uniform(0, 40), chance.uniform(10, 200), self._tokens * chance.uniform(4, 6)
        first = 6 + queue + prefill
        end = first + decode
        waited: Attributes = {c.FIRST_BYTE_MS: _ms(first - 4), c.FIRST_CONTENT_MS: _ms(first - 3.9), c.LAST_BYTE_MS: _ms(end - 4)}
        reply: Attributes = {c.RESPONSE_ID: f"chatcmpl-{self._id}", c.OUTPUT_TOKENS: self._tokens}
        streamed: Attributes = {c.CHUNKS: self._tokens, c.BYTES_SENT: self._tokens * 190, c.MAX_GAP_MS: _ms(chance.uniform(5, 30))}
        used: Attributes = {c.INPUT_TOKENS: chance.randrange(20, 4000), c.CACHED_TOKENS: chance.randrange(0, 20)}
        caller: Attributes = {c.KEY_ID: f"k{chance.randrange(40)}", c.SESSION_ID: f"s-{chance.randrange(1 << 40):x}"}
        latency: Attributes = {
            "gen_ai.latency.time_in_queue": queue / 1e3, "gen_ai.latency.time_in_model_prefill": prefill / 1e3,
            "gen_ai.latency.time_in_model_decode": decode / 1e3, "gen_ai.latency.time_to_first_token": (queue + prefill) / 1e3,
            "gen_ai.latency.e2e": (queue + prefill + decode) / 1e3,
        }  # fmt: skip
        counted: Attributes = {"gen_ai.usage.prompt_tokens": used[c.INPUT_TOKENS], "gen_ai.usage.completion_tokens": self._tokens}
        own: Attributes = {c.REQUEST_ID: self._id, c.ENGINE: self._engine}
        return [
            self._span(0, None, c.CLIENT_REQUEST, _CLIENT, 0, end + 4, _CALLER, own | caller | {c.CLIENT_FIRST_CONTENT_MS: _ms(first + 2)}),
            self._span(1, 0, "POST /v1/chat/completions", _SERVER, 1, end + 2, _GATEWAY,
                       own | caller | reply | used | streamed | _ENDED[self._failed]),
            self._span(2, 1, c.SPAN_AUTH_ROUTING, _INTERNAL, 1, 3, _ROUTING, own | {c.KEY_ID: caller[c.KEY_ID]}),
            self._span(3, 1, c.SPAN_UPSTREAM, _CLIENT, 3, end + 1, _ATTEMPT, own | waited | {c.RESPONSE_ID: reply[c.RESPONSE_ID]}),
            self._span(4, 1, c.SPAN_STREAMING, _INTERNAL, first, end + 1, _STREAM, own | streamed),
            self._span(5, 3, "POST /v1/chat/completions", _SERVER, 4, end, _MIDDLE, own | waited),
            self._span(6, 5, c.SPAN_VLLM_REQUEST, _SERVER, 5, end - 0.5, _ENGINE,
                       {c.ENGINE_REQUEST_ID: f"chatcmpl-{self._id}", c.ENGINE: self._engine} | counted | latency),
        ]  # fmt: skip

    def _span(
        self, place: int, parent: int | None, name: str, kind: int, begins: float, ends: float, same: bytes, own: Attributes
    ) -> bytes:
        begin, end = self._start + int(begins * 1e6), self._start + int(ends * 1e6)
        about = b"".join((
            b"\x0a\x10", self._trace, b"\x12\x08", self._ids[place], b"" if parent is None else b"\x22\x08" + self._ids[parent],
            field(5, name.encode()), bytes((48, kind)), _instants(57, begin, 65, end), same, attributes(9, own),
            _FAILED if self._failed and place in (1, 3, 5) else b"",
        ))  # fmt: skip
        return field(2, about)


SENDERS: Final[tuple[tuple[Sequence[int], bytes], ...]] = tuple(
    (places, field(1, attributes(1, {c.SERVICE_NAME: service, c.SERVICE_INSTANCE_ID: f"{service}-1", c.HOST_NAME: host})), scope.encode())
    for places, service, host, scope in (
        ((0,), "chat-app", "app-1", c.SCOPE_CLIENT),
        ((1, 2, 3, 4), "lensd-gateway", "gw-1", c.SCOPE_GATEWAY),
        ((5,), "lensd-vllm", "gpu-1", c.SCOPE_VLLM),
        ((6,), "vllm", "gpu-1", "vllm.llm_engine"),
    )
)  # type: ignore[misc]
"""Which of a request's spans each process sends, with its resource and its scope's name."""


def bodies(spans: int, a_body: int, first_us: int, seed: int) -> Iterator[bytes]:
    """ExportTraceServiceRequests of `a_body` spans each, that many spans in all; requests begin one after another from `first_us` on."""
    chance = random.Random(seed)
    number, waiting = 0, list[tuple[int, bytes]]()
    while spans > 0:
        while len(waiting) < min(a_body, spans):
            waiting += enumerate(Request(number, first_us + number * SPACING_US, chance).spans())
            number += 1
        taken, waiting = waiting[: min(a_body, spans)], waiting[a_body:]
        spans -= len(taken)
        yield _body(taken)


def _body(taken: Sequence[tuple[int, bytes]]) -> bytes:
    parts = []
    for places, resource, scope in SENDERS:
        own = [span for place, span in taken if place in places]
        if own:
            parts.append(field(1, resource + field(2, field(1, field(1, scope)) + b"".join(own))))
    return b"".join(parts)
