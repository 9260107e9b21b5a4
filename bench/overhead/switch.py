"""lensd's plugin and middleware behind a switch, for the engine of bench_overhead.py: off, each hands on at once.

Two servers that are alike differ by more than what is looked for: memory and cores fall to one of them better than to the
other, for as long as it lives. So one server serves both halves of a pair. What is not counted is one call that returns at
once, each step and each request.
"""

from typing import Any, Final

from lensd_collectors.vllm.middleware import App, LensdMiddleware, Receive, Scope, Send
from lensd_collectors.vllm.plugin import LensdStatLogger

MIDDLEWARE: Final = ("--middleware", "overhead.switch.SwitchedMiddleware")
STAT_LOGGER: Final = "overhead.switch:SwitchedStatLogger"
PATHS: Final = {"/bench/on": True, "/bench/off": False}


class SwitchedStatLogger(LensdStatLogger):
    """Switched on, vLLM calls the plugin's own method, with nothing of the bench's between them."""

    made: Final[list["SwitchedStatLogger"]] = []

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.made.append(self)
        self.turn(on=False)

    def turn(self, *, on: bool) -> None:
        self.record = super().record if on else _nothing  # type: ignore[method-assign]


class SwitchedMiddleware:
    def __init__(self, app: App) -> None:
        self._app, self._with = app, LensdMiddleware(app)
        self._now: App = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (wanted := PATHS.get(scope.get("path", ""))) is None:
            await self._now(scope, receive, send)
            return
        self._now = self._with if wanted else self._app
        for each in SwitchedStatLogger.made:
            each.turn(on=wanted)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def _nothing(*_: Any, **__: Any) -> None: ...
