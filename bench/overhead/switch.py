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


class _Switch:
    is_on = False


class SwitchedStatLogger(LensdStatLogger):
    def record(self, *told: Any, **more: Any) -> None:
        if _Switch.is_on:
            super().record(*told, **more)


class SwitchedMiddleware:
    def __init__(self, app: App) -> None:
        self._app, self._with = app, LensdMiddleware(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (wanted := PATHS.get(scope.get("path", ""))) is None:
            await (self._with if _Switch.is_on else self._app)(scope, receive, send)
            return
        _Switch.is_on = wanted
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
