"""What callers send in the soak and how they behave: data."""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.wire import MODEL

RARE: Final = "rare"
"""Served by one engine only; its fallback is the other model."""
ALIAS: Final = "gpt"
CONTEXT: Final = 4096
MAX_BODY: Final = 256 * 1024

CHAT: Final = "/v1/chat/completions"
_USER: Final = "My drill stops after about a minute of work and starts again when it has cooled down. What should I look at first? "
_WEATHER: Final = frozenset({502, 503, 504})
"""What any request may be answered that goes to an engine: they die in the midst of anything."""


class Way(StrEnum):
    """How a caller behaves."""

    READ = "read"  # waits for the reply's end
    READ_RESET = "read_reset"  # and then resets the connection, which is idle
    LEAVE = "leave"  # after a while, whatever has come
    LEAVE_BEGUN = "leave_begun"  # a while after the reply's first bytes
    HALF_BODY = "half_body"  # sends half of it, then leaves
    HALF_HEAD = "half_head"  # never becomes a request
    NOISE = "noise"  # sends what is not HTTP
    SLOW = "slow"  # reads nothing for a while, then leaves
    LATE = "late"  # reads nothing for a while, then all
    STUCK = "stuck"  # reads nothing and stays


class As(StrEnum):
    """Whose key is sent."""

    MAIN = "main"
    TIGHT = "tight"  # few requests at the same time
    SCOPED = "scoped"  # may not use the model
    COMING = "coming"  # is in the keys file at times only
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    NOBODY = "nobody"  # no key at all


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request; `weight` is its share, `answers` the statuses that may come of it."""

    name: str
    weight: float
    act: str = "reply"  # asked of the engine, see engine.py
    way: Way = Way.READ
    who: As = As.MAIN
    answers: frozenset[int] = frozenset({200}) | _WEATHER
    wait_ms: tuple[int, int] = (0, 0)  # for the ways that wait
    path: str = CHAT
    method: str = "POST"
    model: str = MODEL
    streaming: bool = False
    max_tokens: int = 64
    prompt: int = 1  # times its text
    body: bytes | None = None  # instead of one that is made
    length: int | None = None  # said of the body instead of the truth
    may_break: bool = False  # its engine may die when the reply is half with the caller

    @property
    def is_request(self) -> bool:
        """The gateway gets to know of it."""
        return self.way is not Way.HALF_HEAD


def _stream(name: str, weight: float, act: str = "stream", **more: object) -> Kind:
    return Kind(name, weight, act, streaming=True, **more)  # type: ignore[arg-type]


def _refused(name: str, weight: float, status: int, **more: object) -> Kind:
    return Kind(name, weight, answers=frozenset({status}), **more)  # type: ignore[arg-type]


_FAILS: Final = _WEATHER
_ANY_ERROR: Final = _WEATHER | {500, 429}

MIX: Final = (
    # what goes well
    Kind("whole", 260),
    Kind("whole, late", 15, "late"),
    Kind("whole, in pieces", 10, "pieces"),
    Kind("whole, very large", 0.3, "huge", may_break=True),
    Kind("completion", 15, path="/v1/completions"),
    Kind("embedding", 10, path="/v1/embeddings"),
    Kind("response", 10, path="/v1/responses"),
    Kind("by an alias", 20, model=ALIAS),
    Kind("of the rare model", 20, model=RARE),
    Kind("long prompt, counted", 10, "count=2000", prompt=70),
    Kind("connection closed after it", 15, "bye"),
    Kind("whole, then resets", 15, way=Way.READ_RESET),
    Kind("models", 15, path="/v1/models", method="GET", answers=frozenset({200})),
    _stream("stream", 200),
    _stream("stream, slow", 20, "slow"),
    _stream("stream of odd events", 10, "odd"),
    # callers that leave
    Kind("leaves at once", 20, "late", Way.LEAVE, wait_ms=(0, 0)),
    _stream("leaves before the first byte", 40, "hold", way=Way.LEAVE, wait_ms=(0, 40)),
    Kind("leaves a whole reply", 20, "hold", Way.LEAVE, wait_ms=(0, 40)),
    _stream("leaves mid-stream", 50, "slow", way=Way.LEAVE_BEGUN, wait_ms=(0, 30)),
    _stream("leaves a stream at any time", 20, "slow", way=Way.LEAVE, wait_ms=(0, 60)),
    Kind("leaves during a retry", 10, "busy", Way.LEAVE, wait_ms=(5, 60)),
    Kind("leaves while it is counted", 3, "count=-1", Way.LEAVE, wait_ms=(0, 30), prompt=70),
    Kind("leaves in its body", 20, way=Way.HALF_BODY, wait_ms=(0, 20)),
    Kind("leaves in its head", 10, way=Way.HALF_HEAD, wait_ms=(0, 20)),
    Kind("no HTTP", 3, way=Way.NOISE, answers=frozenset({400})),
    # callers that do not read
    _stream("reads nothing, leaves", 6, "flood", way=Way.SLOW, wait_ms=(50, 800)),
    _stream("reads nothing for long, leaves", 1.5, "flood", way=Way.SLOW, wait_ms=(1500, 2500)),
    _stream("reads late", 1.5, "flood", way=Way.LATE, wait_ms=(50, 400)),
    _stream("never reads a stream", 0.2, "flood", way=Way.STUCK),
    Kind("never reads a reply", 0.2, "large", Way.STUCK),
    # engines that fail
    Kind("reset before a byte", 12, "reset", answers=_FAILS),
    Kind("closed before a byte", 8, "close", answers=_FAILS),
    Kind("reset in the head", 10, "head", answers=_FAILS),
    Kind("cut in the body", 10, "short", answers=_FAILS),
    _stream("reset mid-stream", 20, "mid"),
    _stream("cut in an event", 10, "half"),
    _stream("stream without its end", 5, "open"),
    _stream("error in the stream", 5, "sick"),
    _stream("stands still", 1.5, "stall"),
    Kind("never answered", 1.5, "hold", answers=frozenset({503, 504, 502})),
    Kind("fails, then does not", 25, "flaky", answers=_WEATHER | {200}),
    _stream("stream that fails, then does not", 20, "flaky"),
    Kind("busy", 10, "busy", answers=_FAILS),
    Kind("engine's own limit", 5, "limited", answers=frozenset({429}) | _WEATHER),
    Kind("engine's error", 10, "fail", answers=_ANY_ERROR),
    Kind("engine says that it is dead", 1, "dead", answers=_ANY_ERROR),
    Kind("no HTTP from the engine", 8, "garbage", answers=_FAILS),
    Kind("says more than it was asked", 5, "more"),
    Kind("a status of its own", 2, "status", answers=frozenset({502, 503, 504, 599, 777})),
    # what is refused
    _refused("no key", 10, 401, who=As.NOBODY),
    _refused("unknown key", 20, 401, who=As.UNKNOWN),
    _refused("expired key", 5, 401, who=As.EXPIRED),
    _refused("model not allowed", 10, 403, who=As.SCOPED),
    Kind("key that comes and goes", 15, who=As.COMING, answers=frozenset({200, 401}) | _WEATHER),
    Kind("tight key", 15, "late", who=As.TIGHT, answers=frozenset({200, 429}) | _WEATHER),
    _stream("tight key, leaves", 10, "hold", way=Way.LEAVE, wait_ms=(0, 30), who=As.TIGHT),
    _refused("unknown model", 10, 404, model="nobody-has-it"),
    _refused("unknown path", 5, 404, path="/v1/v1/chat/completions"),
    _refused("wrong method", 5, 405, method="GET"),
    _refused("no JSON", 10, 400, body=b'{"model": "tiny", "messages": [}'),
    _refused("two models", 3, 400, body=b'{"model": "tiny", "model": "rare", "messages": []}'),
    _refused("too large", 3, 413, body=b"", length=MAX_BODY + 1),
    Kind("over the context", 5, max_tokens=CONTEXT + 1, answers=frozenset({200, 400}) | _WEATHER),  # capped under load
    Kind("counted too long", 5, "count=5000", prompt=70, answers=frozenset({200, 400}) | _WEATHER),
)


def deal(source: random.Random, number: int) -> list[Kind]:
    """So many requests, in no order, as the weights say; but first one of each kind, so that nothing is new later on.

    Among them are some more that never become a request.
    """
    dealt = source.sample(MIX, len(MIX))
    weights = [kind.weight for kind in MIX]
    while (missing := number - sum(kind.is_request for kind in dealt)) > 0:
        dealt += source.choices(MIX, weights, k=missing)
    return dealt


def request(kind: Kind, port: int, key: str) -> bytes:
    """The whole HTTP request."""
    body = _body(kind) if kind.body is None else kind.body
    said = len(body) if kind.length is None else kind.length
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"{kind.method} {kind.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{authorization}"
        f"Content-Type: application/json\r\nUser-Agent: soak\r\nContent-Length: {said}\r\n\r\n"
    )
    return head.encode() + body


def _body(kind: Kind) -> bytes:
    if kind.method == "GET":
        return b""
    text = _USER * kind.prompt + f"soak act={kind.act} stream={int(kind.streaming)}."
    asked: dict[str, object] = {"model": kind.model, "max_tokens": kind.max_tokens}
    if kind.path == CHAT:
        asked["messages"] = [{"role": "user", "content": text}]
    elif kind.path == "/v1/completions":
        asked["prompt"] = text
    elif kind.path == "/v1/embeddings":
        asked = {"model": kind.model, "input": text}
    else:
        asked = {"model": kind.model, "max_output_tokens": kind.max_tokens, "input": text}
    if kind.streaming:
        asked["stream"] = True
    return json.dumps(asked, separators=(",", ":")).encode()
