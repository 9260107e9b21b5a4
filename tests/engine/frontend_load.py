"""Long prompts at one instant for a real engine, each tokenised anew and most of it found in the prefix cache, with the callers' clocks."""

import io
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gateway_real import Caller, ask
from recorded import together

from lensd.supervise import Part, Supervisor

CHAT = "/v1/chat/completions"
CHARACTERS = 100_000
LEFT = "long-left"
SENTENCE = "The server waits for a token under load. A client reads the prompt again. "  # of what the tokeniser has learned


class Seen(NamedTuple):
    """What a request's caller saw, in milliseconds of its monotonic clock from the sending of the whole body."""

    ident: str
    first_ms: float | None  # to the first event of a stream, to the whole answer else; None: it left before
    stream: bool


def prompt(number: int, characters: int = CHARACTERS) -> str:
    """All of them begin alike; the last words are each one's own."""
    own = f"This request measures block {number}."
    return (SENTENCE * (characters // len(SENTENCE) + 1))[: characters - len(own)] + own


def tokens(engine: Any) -> int:
    """How many tokens such a prompt has."""
    count: int = ask(engine, "/tokenize", {"model": engine.model, "prompt": prompt(0)}).json["count"]
    return count


def warm(engine: Any) -> None:
    """Puts what all prompts have in common into the prefix cache, so that their prefill is short."""
    assert send(engine, "warm-up", 0, stream=False).read().status == 200


def send(engine: Any, ident: str, number: int, *, stream: bool) -> Caller:
    body = {
        "model": engine.model, "messages": [{"role": "user", "content": prompt(number)}], "max_tokens": 1, "ignore_eos": True,
        "stream": stream,
    }  # fmt: skip
    return Caller(engine, CHAT, body, headers={"X-Request-Id": ident})


def at_once(engine: Any, count: int, *, leaves_after_s: float = 0.2) -> list[Seen]:
    """So many at one instant, every second streamed; the last one leaves after so long."""
    seen: list[Seen] = []
    barrier = threading.Barrier(count)

    def call(number: int) -> None:
        barrier.wait()
        leaves, stream = number == count - 1, number % 2 == 0
        if leaves:
            time.sleep(0.1)  # it comes last, and so it is tokenised last
        caller = send(engine, LEFT if leaves else f"long-{number}", number, stream=stream)
        if leaves:
            time.sleep(leaves_after_s)
        elif stream:
            next(caller.events())
        else:
            assert caller.read().status == 200
        seen.append(Seen(LEFT if leaves else f"long-{number}", None if leaves else 1000 * (time.monotonic() - caller.sent), stream))
        caller.leave()

    for thread in together(call, count):
        thread.join(600)
    assert len(seen) == count, "a caller was not served"
    return seen


class Scraped:
    """An agent beside the engine, for as long as the block runs."""

    def __init__(self, engine: Any, door_url: str, folder: Path) -> None:
        (folder / "engine.key").write_text(engine.api_key)
        self._config = folder / "agent.toml"
        watched = f'name = "e0", url = "{engine.url}", api_key_file = "{folder}/engine.key"'
        self._config.write_text(f'[agent]\nengines = [{{ {watched} }}]\nkmsg = false\nexport_url = "{door_url}"\n')
        self._supervisor = Supervisor(io.StringIO())

    def __enter__(self) -> None:
        self._supervisor.start(Part("agent", ("agent", "--config", str(self._config))))

    def __exit__(self, *_: object) -> None:
        self._supervisor.stop()


class Compared(NamedTuple):
    """One request: what lensd shows beside what its caller saw, all in milliseconds."""

    caller_ms: float
    total_ms: float
    frontend_ms: float
    queue_ms: float
    engine_ms: float  # of prefill, without the front end
    after_ms: float  # what nobody is charged with: above all the way of an answer in one piece out of a busy server
    stream: bool

    @property
    def before_ms(self) -> float:
        """Until the engine's queue took it in: what the caller waited, less what the engine says it took, and the way out."""
        return self.caller_ms - self.queue_ms - self.engine_ms - self.after_ms

    @property
    def off_ms(self) -> float:
        return abs(self.before_ms - self.frontend_ms)


def compared(seen: Iterable[Seen], rows: Mapping[str, Mapping[str, Any]]) -> list[Compared]:
    """Those that were served."""
    found = [(each, rows[each.ident]) for each in seen if each.first_ms is not None]
    return [
        Compared(
            each.first_ms or 0.0, row["total_ms"], row["frontend_ms"], row["queue_ms"], row["prefill_ms"] - row["frontend_ms"],
            0.0 if each.stream else row["unattributed_ms"], each.stream,
        )
        for each, row in found
    ]  # fmt: skip
