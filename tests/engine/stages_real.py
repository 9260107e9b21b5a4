"""Mixed load on a real engine, with the callers' own clocks of it."""

import json
import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from house import House, until
from lensd_collectors.client.call import CallError

from lensd.api.items import RequestItem

STAGES = ("client", "auth_routing", "queue", "prefill", "decode", "streaming")
WHO = ("the server", "a client", "the queue", "one worker", "this request", "the cache")
DID = ("waits for", "answers", "reads", "drops", "retries", "measures", "streams")
WHAT = ("a token", "the prompt", "two blocks", "every span", "the trace", "its budget")


class Place(NamedTuple):
    """An address with a key, as `gateway_real.Caller` takes it."""

    url: str
    api_key: str


class Asked(NamedTuple):
    """One request of a load. `leaves_after`: of how many token events; `waits_s`: how long its caller does, at most."""

    request_id: str
    content: str
    max_tokens: int
    stream: bool
    leaves_after: int | None = None
    waits_s: float = 120.0

    @property
    def leaves(self) -> bool:
        return self.leaves_after is not None or self.waits_s < 120.0

    @property
    def body(self) -> dict[str, Any]:
        return {
            "model": "tiny-llama", "messages": [{"role": "user", "content": self.content}], "max_tokens": self.max_tokens,
            "stream": self.stream, "ignore_eos": True,
        }  # fmt: skip


class Seen(NamedTuple):
    """What a request's caller saw, in seconds of its monotonic clock. `tokens`: each event of a stream that a token came with."""

    asked: Asked
    sent: float
    ended: float
    status: int | None  # None: it left
    tokens: tuple[float, ...]

    @property
    def first_ms(self) -> float:
        return 1000 * (self.tokens[0] - self.sent)

    @property
    def between_ms(self) -> float:
        return 1000 * (self.tokens[-1] - self.tokens[0])

    @property
    def total_ms(self) -> float:
        return 1000 * (self.ended - self.sent)


class _Left(ConnectionAbortedError):
    """The caller has had enough."""


class _Stamps:
    """Reads a stream as it comes. vLLM sends an event for each token, whether it makes text or not, and before the first its role."""

    def __init__(self, leaves_after: int | None) -> None:
        self.tokens: list[float] = []
        self._leaves_after = leaves_after
        self._carry = b""

    def __call__(self, chunk: bytes) -> None:
        now = time.monotonic()
        *lines, self._carry = (self._carry + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {") and any("role" not in each["delta"] for each in json.loads(line[6:]).get("choices", ())):
                self.tokens.append(now)
        if self._leaves_after is not None and len(self.tokens) >= self._leaves_after:
            raise _Left


def text(chance: random.Random, sentences: int) -> str:
    """Of the tiny model's own words, some seven tokens a sentence."""
    return " ".join(f"{chance.choice(WHO)} {chance.choice(DID)} {chance.choice(WHAT)}." for _ in range(sentences))


def mixed(count: int, name: str, seed: int = 4) -> list[Asked]:
    """Streams and whole answers, short ones and such as fill the cache; about one in six is left by its caller."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        is_long, stream = chance.random() < 0.25, chance.random() < 0.7
        asked = Asked(
            f"{name}-{number}", text(chance, 20 if is_long else 2), chance.randint(200, 300) if is_long else chance.randint(2, 40), stream
        )
        match chance.randrange(12):
            case 0:
                asked = asked._replace(stream=True, max_tokens=250, leaves_after=chance.randint(1, 40))
            case 1:
                asked = asked._replace(max_tokens=250, waits_s=chance.uniform(0.02, 0.4))
        made.append(asked)
    return made


def drive(house: House, load: Iterable[Asked], at_once: int) -> list[Seen]:
    """Send a load through the gateway from instrumented callers, so many at a time; what they saw."""
    with house.caller() as caller, ThreadPoolExecutor(at_once) as pool:

        def send(asked: Asked) -> Seen:
            stamps = _Stamps(asked.leaves_after)
            sent, status = time.monotonic(), None
            try:
                status = caller.chat(
                    asked.body, request_id=asked.request_id, timeout_s=asked.waits_s, on_chunk=stamps if asked.stream else None
                ).status
            except CallError:
                assert asked.leaves, asked
            return Seen(asked, sent, time.monotonic(), status, tuple(stamps.tokens))

        return list(pool.map(send, load))


def settled(house: House, wanted: Sequence[str], limit_s: float = 40.0) -> dict[str, RequestItem]:
    """The rows of these requests by id, each there once and settled."""
    found: dict[str, RequestItem] = {}

    def are_in() -> bool:
        page = house.client.requests(limit=500).items
        assert len({row.request_key for row in page}) == len(page)
        found.clear()
        found.update({row.request_id: row for row in page if row.request_id is not None})
        return all(each in found and found[each].settled for each in wanted)

    until(are_in, limit_s)
    return {each: found[each] for each in wanted}


def is_exact(row: RequestItem) -> bool:
    """Whether the shares of the stages and what nobody has add up to the whole, in microseconds."""
    shares = [getattr(row, f"{stage}_exclusive_ms") or 0.0 for stage in STAGES]
    whole = [*shares, row.unattributed_ms or 0.0]
    return all(each >= 0 for each in whole) and sum(round(each * 1000) for each in whole) == round((row.total_ms or 0.0) * 1000)


def sources(row: RequestItem) -> dict[str, str | None]:
    return {stage: getattr(row, f"{stage}_source") for stage in STAGES}


def within(value: float, clock: float, least_ms: float = 30.0, share: float = 0.05) -> bool:
    """The tolerance of a stage's time against a clock: 30 ms or 5 %."""
    return abs(value - clock) <= max(least_ms, share * clock)


def share_within(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(within(value, clock) for value, clock in pairs) / len(pairs)
