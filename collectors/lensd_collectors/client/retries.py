"""Asks again when asking again can help, and seldom enough that it does not finish off a server that is slow already."""

import asyncio
import contextlib
import inspect
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

from lensd_collectors.client.calls import Call, one_call
from lensd_collectors.client.failures import NEVER_SENT, kind_of
from lensd_collectors.post import parse_retry_after

T = TypeVar("T")

TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
BUSY: Final = frozenset({429, 503})
BROKEN: Final = frozenset({"read_timeout", "write_timeout", "timeout", "connection_reset", "unexpected_eof"})
"""The request may have reached the server: asked again only where it is known that nothing came of it."""


class Retries:
    """How often, how soon, and out of what: a bucket that all calls of a process share.

    `most` attempts are added to a call's first one. The wait after attempt n is `first_s` × 2 to the n - 1 with jitter of as much
    again; after 429 and 503 it begins at `busy_s`, and at Retry-After always; one longer than `longest_s` is not waited for.
    A call pays `extra_share` of an attempt in, up to `saved`. The first `saved` are lent, and paid back before any is saved: so
    that of N calls never more than N × `extra_share` are added, or `saved` if that is more.
    """

    def __init__(
        self,
        most: int = 3,
        first_s: float = 1.0,
        busy_s: float = 2.0,
        extra_share: float = 0.1,
        *,
        saved: int = 3,
        longest_s: float = 60.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._most, self._first_s, self._busy_s, self._longest_s = most, first_s, busy_s, longest_s
        self._share, self._saved, self._chance = extra_share, saved, chance
        self._lock = threading.Lock()
        self._tokens, self._owed = float(saved), float(saved)

    def call(self) -> None:
        """A call begins, and pays in."""
        with self._lock:
            paid_back = min(self._owed, self._share)
            self._owed -= paid_back
            self._tokens = min(float(self._saved), self._tokens + self._share - paid_back)

    def wait(self, attempt: int, status: int | None, retry_after_s: float | None) -> float | None:
        """Seconds to wait after failed attempt number `attempt`, from 1, for the next; None: there is none.

        `status` is the answer's, None where there was none. An attempt that is allowed is paid for.
        """
        if attempt > self._most:
            return None
        base = self._first_s * 2.0 ** (attempt - 1)
        least = max(base, self._busy_s if status in BUSY else 0.0, retry_after_s or 0.0)
        return None if least > self._longest_s or not self._pay() else least + self._chance() * base

    def _pay(self) -> bool:
        with self._lock:
            if self._tokens < 1 - 1e-9:
                return False
            self._tokens -= 1
            return True


PROCESS: Final = Retries()


class Failure(NamedTuple):
    """What came instead of an answer. `advice` is x-should-retry's; `kind` that of an error without an answer."""

    status: int | None
    retry_after_s: float | None
    advice: bool | None
    kind: str | None

    def is_worth_it(self, call: Call) -> bool:
        """Whether the same again may succeed, and can do no harm."""
        if self.advice is False or call.has_content:
            return False
        if self.status is not None:
            return self.advice is True or self.status in TRANSIENT
        return self.kind in NEVER_SENT or (self.kind in BROKEN and call.attempts > 0)


def retry(send: Callable[[], T], *, retries: Retries = PROCESS, sleep: Callable[[float], None] = time.sleep) -> T:
    """What `send()` returns; calls it again where it raises, or returns a response with an error status, that may pass.

    The last error is raised, the last response returned, as they came. All attempts are one call: one request id, one trace.
    An error that may have come after work was done is asked again only where `instrument()` saw that no byte came.
    """
    with one_call() as call:
        course = _Course(retries, call)
        while True:
            try:
                reply = send()
                wait_s = course.after(failure_of(reply))
                if wait_s is None:
                    return reply
                with contextlib.suppress(Exception):
                    reply.close()  # type: ignore[attr-defined]
            except Exception as error:
                wait_s = course.after(failure_of_error(error))
                if wait_s is None:
                    raise
            sleep(wait_s)


async def retry_async(
    send: Callable[[], Awaitable[T]], *, retries: Retries = PROCESS, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> T:
    """The same for a coroutine function."""
    with one_call() as call:
        course = _Course(retries, call)
        while True:
            try:
                reply = await send()
                wait_s = course.after(failure_of(reply))
                if wait_s is None:
                    return reply
                with contextlib.suppress(Exception):
                    closing = _closing(reply)
                    if inspect.isawaitable(closing):
                        await closing
            except Exception as error:
                wait_s = course.after(failure_of_error(error))
                if wait_s is None:
                    raise
            await sleep(wait_s)


class _Course:
    """Attempts of one call, counted."""

    def __init__(self, retries: Retries, call: Call) -> None:
        self._retries, self._call, self._attempt = retries, call, 0
        retries.call()

    def after(self, failure: Failure | None) -> float | None:
        """Seconds to wait for the next attempt after one that ended so; None: that was the last."""
        self._attempt += 1
        if failure is None or not failure.is_worth_it(self._call):
            return None
        return self._retries.wait(self._attempt, failure.status, failure.retry_after_s)


def failure_of(reply: object) -> Failure | None:
    """What a response of any of the libraries says, where its status is that of an error."""
    status = getattr(reply, "status_code", getattr(reply, "status", None))
    if not isinstance(status, int) or status < 400:
        return None
    headers = getattr(reply, "headers", None)
    given = headers if isinstance(headers, Mapping) else {}
    advice = {"true": True, "false": False}.get(str(given.get("x-should-retry")).lower())
    return Failure(status, _retry_after_s(given), advice, None)


def failure_of_error(error: Exception) -> Failure:
    """The same of an error, which bears its response, or its status, or none."""
    told = failure_of(getattr(error, "response", None)) or failure_of(error)
    return told or Failure(None, None, None, kind_of(error))


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    in_ms = parse_retry_after(headers.get("retry-after-ms"), datetime.now(UTC))
    return in_ms / 1000 if in_ms is not None else parse_retry_after(headers.get("retry-after"), datetime.now(UTC))


def _closing(reply: Any) -> Any:
    """Lets go of the connection of a response that nobody will read; may have to be awaited."""
    return reply.aclose() if hasattr(reply, "aclose") else reply.close()
