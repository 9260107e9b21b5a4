"""What happens to one real engine while two agents, its spans, plugin and middleware tell of it: a load of each kind, then its end."""

import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway_real import Caller, running, seconds_until, waiting
from recorded import Body, Recorder, together

from lensd.supervise import Part, Supervisor

CHAT = "/v1/chat/completions"
NAME = "e0"
SLOTS, BLOCKS = 4, 9  # of 128 tokens, of which one is never given out
KEY = "sk-of-the-rungs"
OPTIONS = ("--no-enable-log-requests", "--num-gpu-blocks-override", str(BLOCKS), "--max-num-seqs", str(SLOTS))
QUEUE, THRASH, STALL, CRASH = "queue-saturation", "kv-preemption-thrash", "engine-silent-stall", "engine-crash"


class Story:
    """`run` lives through it; afterwards `scraped` holds what an agent sent that reads no log, `told` what all others did."""

    def __init__(self, engine: Any, scraped: Recorder, told: Recorder, folder: Path) -> None:
        self.engine, self._folder = engine, folder
        self._doors = {"scrape": scraped, "all": told}
        self.served: list[str] = []  # ids, in the order of their ends
        self.refused: dict[str, str] = {}  # id -> decision
        self.left: list[str] = []
        self.killed: list[str] = []
        self.when: dict[str, tuple[int, int]] = {}  # phase -> from, until, in microseconds since the epoch
        self.first_ms: dict[str, float] = {}  # id -> from sending to the first event with a token, by the caller's own clock

    @property
    def scraped(self) -> list[Body]:
        return self._doors["scrape"].bodies

    @property
    def told(self) -> list[Body]:
        return self._doors["all"].bodies

    def run(self) -> "Story":
        with self._agents():
            self._each_kind()
            for name, phase in ((QUEUE, self._queue), (THRASH, self._thrash), (STALL, self._stall), (CRASH, self._crash)):
                with self._phase(name):
                    phase()
                time.sleep(3)
        return self

    @contextmanager
    def _agents(self) -> Iterator[None]:
        supervisor = Supervisor(io.StringIO())
        (self._folder / "engine.key").write_text(KEY)
        for name, door in self._doors.items():
            watched = f'name = "{NAME}", url = "{self.engine.url}", api_key_file = "{self._folder}/engine.key"'
            watched += f', log = "{self.engine.log}"' if name == "all" else ""
            config = self._folder / f"{name}.toml"
            config.write_text(f'[agent]\nengines = [{{ {watched} }}]\nkmsg = false\nexport_url = "{door.url}"\n')
            supervisor.start(Part(f"agent {name}", ("agent", "--config", str(config))))
        seconds_until(lambda: all(door.bodies for door in self._doors.values()))
        try:
            yield
        finally:
            supervisor.stop()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begun = time.time_ns() // 1000
        yield
        self.when[name] = (begun, time.time_ns() // 1000)

    def _send(self, ident: str, max_tokens: int, *, stream: bool = False, key: str = KEY, **more: Any) -> Caller:
        body = {
            "model": self.engine.model, "messages": [{"role": "user", "content": f"the queue waits for {ident}"}],
            "max_tokens": max_tokens, "ignore_eos": True, "stream": stream, **more,
        }  # fmt: skip
        return Caller(self.engine, CHAT, body, key=key, headers={"X-Request-Id": ident})

    def _serve(self, ident: str, max_tokens: int, *, stream: bool = False) -> None:
        caller = self._send(ident, max_tokens, stream=stream)
        if stream:
            events = caller.events()
            next(events)  # the role goes out with the first token
            self.first_ms[ident] = 1000 * (time.monotonic() - caller.sent)
            assert b"[DONE]" in list(events)[-1]
            caller.leave()
        else:
            assert caller.read().status == 200
        self.served.append(ident)

    def _each_kind(self) -> None:
        """Served streamed and whole, refused for three reasons, left while it is served."""
        for number in range(3):
            self._serve(f"streamed-{number}", 32, stream=True)
            self._serve(f"whole-{number}", 32)
        for ident, decision, status, how in (
            ("refused-key", "key_unknown", 401, {"key": "sk-wrong"}),
            ("refused-model", "model_unknown", 404, {"model": "other"}),
            ("refused-length", "context_too_long", 400, {"prompt_of": 600}),
        ):
            if words := how.pop("prompt_of", 0):
                how["messages"] = [{"role": "user", "content": "the " * words}]
            assert self._send(ident, 8, **how).read().status == status
            self.refused[ident] = decision
        caller = self._send("left-in-decode", 400, stream=True)
        events = caller.events()
        for _ in range(20):
            next(events)
        caller.leave()
        self.left.append("left-in-decode")
        seconds_until(lambda: running(self.engine) == 0)

    def _queue(self, lasts_s: float = 34.0) -> None:
        """Eighty for four slots, each request of two blocks: nobody is thrown out, and a fast engine takes seconds for the line too."""
        self._keep_up("queued", 80, 180, lasts_s, between=self._leave_the_line)  # with the longest id still two blocks

    def _leave_the_line(self) -> None:
        seconds_until(lambda: waiting(self.engine) >= 8)
        caller = self._send("left-in-queue", 16)
        time.sleep(0.4)  # it stands in the line by now: there are many before it
        caller.leave()
        self.left.append("left-in-queue")

    def _thrash(self, lasts_s: float = 15.0) -> None:
        """Four that run outgrow eight blocks again and again."""
        self._keep_up("thrown", 6, 400, lasts_s)

    def _keep_up(self, name: str, callers: int, max_tokens: int, lasts_s: float, between: Callable[[], None] = lambda: None) -> None:
        """So many callers, who ask again until the time is over."""
        end = time.monotonic() + lasts_s
        failed: list[BaseException] = []

        def call(number: int) -> None:
            turn = 0
            try:
                while time.monotonic() < end:
                    self._serve(f"{name}-{number}-{turn}", max_tokens)
                    turn += 1
            except BaseException as error:
                failed.append(error)

        threads = together(call, callers)
        between()
        for thread in threads:
            thread.join(120)
        assert not failed, failed
        seconds_until(lambda: (running(self.engine), waiting(self.engine)) == (0, 0))

    def _two_running(self, name: str) -> list[threading.Thread]:
        """Two streams of four blocks each, which just fit."""
        threads = together(lambda number: self._serve(f"{name}-{number}", 400, stream=True), 2)
        seconds_until(lambda: running(self.engine) == 2)
        return threads

    def _stall(self, lasts_s: float = 32.0) -> None:
        """The core stands still with two requests in it, and the API server answers all the same."""
        threads = self._two_running("stalled")
        core = self.engine.core_pid()
        self.engine.signal(signal.SIGSTOP, core)
        try:
            time.sleep(lasts_s)
            assert self.engine.healthy()
        finally:
            self.engine.signal(signal.SIGCONT, core)
        for thread in threads:
            thread.join(60)

    def _crash(self, look_on_s: float = 14.0) -> None:
        """kill -9 to all of it with two requests running, which a scrape has seen; however fast it is, they do not end before."""
        self.killed = ["killed-0", "killed-1"]
        callers = [self._send(ident, 400, stream=True) for ident in self.killed]
        seconds_until(lambda: running(self.engine) == 2)
        self.engine.signal(signal.SIGSTOP, self.engine.core_pid())
        time.sleep(1.2)  # the agents scrape once a second
        assert running(self.engine) == 2, "they ended before they could be killed"
        self.engine.kill()
        time.sleep(look_on_s)
        for caller in callers:
            caller.leave()
