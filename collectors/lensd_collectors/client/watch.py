"""Decides which requests are followed, and gives those their ids before they are sent."""

import logging
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

from lensd_collectors.client.asked import Limits, read_asked
from lensd_collectors.client.attempt import Attempt, Send
from lensd_collectors.client.calls import Call, current_call, new_call
from lensd_collectors.client.paths import PATHS, matcher
from lensd_collectors.gateway.ids import read_traceparent, sane_id, write_traceparent

log = logging.getLogger("lensd.client")

REQUEST_ID: Final = "X-Request-Id"
TRACEPARENT: Final = "traceparent"
TIMEOUT: Final = "X-Lensd-Client-Timeout-Ms"
SESSION: Final = "X-Session-Id"


class Watch:
    """`send` is given the maker of each finished span; `paths` are those that are followed."""

    def __init__(self, send: Send, paths: Sequence[str] = PATHS) -> None:
        self._send, self._is_llm = send, matcher(paths)

    def begin(
        self,
        method: str,
        path: str,
        headers: Callable[[], MutableMapping[str, Any]],
        body: Callable[[], object],
        limits: Callable[[], Limits],
    ) -> Attempt | None:
        """An attempt, with its ids put into `headers`; None for a request that is none of ours. Never raises.

        A trace that the request carries already is kept, and ours becomes a span of it; so is an X-Request-Id.
        """
        try:
            if method.upper() != "POST" or not self._is_llm(path):
                return None
            return self._attempt(path, headers(), body(), limits())
        except Exception as error:
            log.debug("lensd could not follow a request (%s: %s)", type(error).__name__, error)
            return None

    def _attempt(self, path: str, headers: MutableMapping[str, Any], body: object, limits: Limits) -> Attempt:
        call = current_call() or new_call()
        attempt = Attempt(
            call,
            self._send,
            method="POST",
            route=path,
            asked=read_asked(body),
            limits=limits,
            request_id=sane_id(_bytes(headers.get(REQUEST_ID))),
            session_id=sane_id(_bytes(headers.get(SESSION))) or None,
        )
        try:
            self._address(attempt, call, headers)
        except BaseException:
            attempt.forget()
            raise
        return attempt

    @staticmethod
    def _address(attempt: Attempt, call: Call, headers: MutableMapping[str, Any]) -> None:
        """Writes the ids into the headers, and takes over those that are there."""
        if attempt.request_id:
            call.request_id = attempt.request_id
        else:
            attempt.request_id = headers[REQUEST_ID] = call.request_id
        if (above := read_traceparent(_bytes(headers.get(TRACEPARENT)))) is not None:
            attempt.trace_id, attempt.parent_span_id = above
        headers[TRACEPARENT] = write_traceparent(attempt.trace_id, attempt.span_id)
        if (limit_s := attempt.limits.shortest_s) is not None and TIMEOUT not in headers:
            headers[TIMEOUT] = f"{limit_s * 1000:.0f}"


def _bytes(value: object) -> bytes | None:
    return value.encode("latin-1", "replace") if isinstance(value, str) else value if isinstance(value, bytes) else None
