"""A steady load: callers that each send the next request as they have the reply to the last, until they are told to pause."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.load import Caller
from gateway.process import BenchError


class Steady:
    """`requests` are those sent so far; a reply that is not whole ends the load."""

    def __init__(self, made: Sequence[Caller], request: bytes) -> None:
        self.requests = 0
        self._made, self._request = made, request
        self._events = 0  # of the replies that have ended
        self._is_on = False
        self._open = 0
        self._paused: asyncio.Future[None] | None = None
        for caller in made:
            caller.ended = self._on_end(caller)

    def start(self) -> None:
        self._is_on = True
        self._paused = asyncio.get_running_loop().create_future()
        for caller in self._made:
            self._send(caller)

    async def pause(self) -> None:
        """Until the last reply is whole. Raises BenchError where one was not."""
        self._is_on = False
        if self._paused is not None:
            await self._paused

    def events(self) -> int:
        """That have come so far, also of replies that are still coming. Raises BenchError as `pause` does."""
        if self._paused is not None and self._paused.done():
            self._paused.result()
        return self._events + sum(caller.frames for caller in self._made)

    def _send(self, caller: Caller) -> None:
        self.requests += 1
        self._open += 1
        caller.send(self._request)

    def _on_end(self, caller: Caller) -> Callable[[], None]:
        def ended() -> None:
            self._events += caller.frames
            caller.frames = 0
            self._open -= 1
            assert self._paused is not None
            if self._paused.done():
                return
            if not caller.is_whole:
                self._paused.set_exception(BenchError(f"a reply was not whole: status {caller.status}"))
            elif self._is_on:
                self._send(caller)
            elif not self._open:
                self._paused.set_result(None)

        return ended
