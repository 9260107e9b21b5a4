"""The way of one letter, in order: dedupe, render, send, record."""

import email.utils
from collections.abc import Callable
from datetime import UTC
from http import HTTPStatus
from typing import Final

import msgspec
from lensd_collectors.rows import DeliveryRow, Instant

from lensd.alerts.delivery import Destination, Failure, HttpAnswer, HttpRequest, Post, Reason, SendError, Status, shown_url
from lensd.records import Incident


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """When to try again: the wait doubles from `first_s` to `longest_s`, until `deadline_s` after the letter was offered."""

    first_s: float = 5.0
    longest_s: float = 300.0
    deadline_s: float = 3600.0

    def delay_s(self, attempt: int, chance: float) -> float:
        """Wait after the given attempt (from 1): between half and the whole of the doubled wait, as `chance` (0..1) falls."""
        whole = min(self.longest_s, self.first_s * 2.0 ** min(attempt - 1, 32))
        return whole * (0.5 + 0.5 * chance)


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to tell one destination, and how far it has come in this attempt."""

    delivery_id: str
    incident: Incident
    reason: Reason
    destination: Destination
    offered_at: int
    attempt: int = 0  # attempts made
    due_at: int = 0
    request: HttpRequest | None = None
    answer: HttpAnswer | None = None
    failure: Failure | None = None
    error: str | None = None
    status: Status = Status.QUEUED
    dropped: bool = False  # told already


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages work with in one attempt."""

    now: int
    post: Post
    retry: Retry
    chance: Callable[[], float]
    is_done: Callable[[str], bool]
    write: Callable[[DeliveryRow], None]


FAILURES: Final[dict[int, Failure]] = {
    401: Failure.AUTH,
    403: Failure.AUTH,
    407: Failure.AUTH,
    408: Failure.TIMEOUT,
    429: Failure.RATE_LIMITED,
}
"""What a status means where its class does not say it: 5xx is server_error, all else that is not 2xx client_error."""

RETRIED: Final = frozenset({Failure.RATE_LIMITED, Failure.SERVER_ERROR, Failure.UNREACHABLE, Failure.TIMEOUT})


def classify(status: int) -> Failure | None:
    """The failure that an HTTP status means; None for 2xx."""
    if 200 <= status < 300:
        return None
    return FAILURES.get(status, Failure.SERVER_ERROR if status >= 500 else Failure.CLIENT_ERROR)


def retry_after_s(value: str | None, now: int) -> float:
    """Seconds that a Retry-After header asks for, given as a number or a date; 0 where it says nothing readable."""
    if value is None:
        return 0.0
    if value.strip().isdecimal():
        return float(min(int(value.strip()[:9]), 10**9))
    try:
        then = email.utils.parsedate_to_datetime(value)
        then = then if then.tzinfo else then.replace(tzinfo=UTC)
        return max(0.0, then.timestamp() - now / 1e6)
    except (ValueError, OverflowError):
        return 0.0


def dedupe(letter: Letter, desk: Desk) -> Letter:
    """Drops what its destination has been told already."""
    return msgspec.structs.replace(letter, dropped=True) if desk.is_done(letter.delivery_id) else letter


def render(letter: Letter, desk: Desk) -> Letter:
    try:
        request = letter.destination.render(letter.incident, letter.reason, letter.delivery_id)
    except SendError as error:
        return msgspec.structs.replace(letter, failure=error.failure, error=str(error))
    except Exception as error:  # a fault of ours costs this alert, not those behind it; its text may quote a secret
        return msgspec.structs.replace(letter, failure=Failure.CLIENT_ERROR, error=f"could not be written: {type(error).__name__}")
    return msgspec.structs.replace(letter, request=request)


def send(letter: Letter, desk: Desk) -> Letter:
    if letter.request is None:
        return letter
    try:
        answer = desk.post(letter.request)
    except SendError as error:
        return msgspec.structs.replace(letter, failure=error.failure, error=f"{shown_url(letter.request.url)} {error}")
    except Exception as error:
        text = f"{shown_url(letter.request.url)} could not be asked: {type(error).__name__}"
        return msgspec.structs.replace(letter, failure=Failure.UNREACHABLE, error=text)
    failure = classify(answer.status)
    error_text = f"{shown_url(letter.request.url)} answered {_named(answer.status)}" if failure else None
    return msgspec.structs.replace(letter, answer=answer, failure=failure, error=error_text)


def record(letter: Letter, desk: Desk) -> Letter:
    """Writes down how the attempt ended and when the next one is due."""
    letter = msgspec.structs.replace(letter, attempt=letter.attempt + 1)
    letter = _decided(letter, desk)
    desk.write(row_of(letter, desk.now))
    return letter


Stage = Callable[[Letter, Desk], Letter]
ORDER: Final[tuple[Stage, ...]] = (dedupe, render, send, record)


def deliver(letter: Letter, desk: Desk) -> Letter:
    """One attempt: the letter after all stages, or dropped by the first."""
    letter = msgspec.structs.replace(letter, request=None, answer=None, failure=None, error=None)
    for stage in ORDER:
        letter = stage(letter, desk)
        if letter.dropped:
            break
    return letter


def row_of(letter: Letter, now: int) -> DeliveryRow:
    return DeliveryRow(
        delivery_id=letter.delivery_id,
        incident_id=letter.incident.incident_id,
        destination=letter.destination.name,
        reason=letter.reason.value,
        attempt=letter.attempt,
        attempted_at=Instant(now),
        status=letter.status.value,
        http_status=letter.answer.status if letter.answer else None,
        error=f"{letter.failure}: {letter.error}" if letter.failure else letter.error,
        src="outbox",
    )


def _decided(letter: Letter, desk: Desk) -> Letter:
    if letter.failure is None:
        return msgspec.structs.replace(letter, status=Status.SENT)
    if letter.failure not in RETRIED or letter.reason is Reason.TEST:
        return msgspec.structs.replace(letter, status=Status.GAVE_UP)
    asked = retry_after_s(letter.answer.retry_after if letter.answer else None, desk.now)
    due = desk.now + max(1, int(max(asked, desk.retry.delay_s(letter.attempt, desk.chance())) * 1e6))
    if due > letter.offered_at + int(desk.retry.deadline_s * 1e6):
        text = f"{letter.error}; gave up after {letter.attempt} attempts"
        return msgspec.structs.replace(letter, status=Status.GAVE_UP, error=text)
    return msgspec.structs.replace(letter, status=Status.FAILED, due_at=due)


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
