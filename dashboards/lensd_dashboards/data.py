"""What the pages read: the daemon's API through its client. Pages never see HTTP; every call may raise LensdError.

The process that serves the pages calls `use` once, before the first page runs.
"""

from typing import NamedTuple

from lensd.api.client import Client
from lensd.api.items import EngineState, GpuItem, Memory, Page, RequestItem, RunbookItem
from lensd.records import Diagnosis, Incident

PAGE_SIZE = 200
DEFAULT_URL = "http://127.0.0.1:8600"
_TIMEOUT_S = 5.0

_client = Client(DEFAULT_URL, timeout_s=_TIMEOUT_S)


class Filters(NamedTuple):
    """None: any. `since` in microseconds since the epoch."""

    model: str | None = None
    key: str | None = None
    outcome: str | None = None
    label: str | None = None
    since: int | None = None


def use(server_url: str, token: str | None) -> None:
    """Reads from this daemon from now on, in every session of this process. Raises UsageError for a malformed URL or token."""
    global _client
    _client = Client(server_url, token or None, timeout_s=_TIMEOUT_S)


def url() -> str:
    return _client.url


def requests(wanted: Filters, cursor: str | None) -> Page[RequestItem]:
    return _client.requests(
        limit=PAGE_SIZE, cursor=cursor, model=wanted.model, key=wanted.key, outcome=wanted.outcome, label=wanted.label, since=wanted.since
    )


def matches(ident: str) -> tuple[RequestItem, ...]:
    """Every request of that name, newest first; never none."""
    return _client.request(ident)


def diagnosis(ident: str) -> Diagnosis:
    """The verdict on the newest request of that name, as things stand now."""
    return _client.diagnosis(ident)


def incidents() -> tuple[Incident, ...]:
    return _client.incidents()


def incident(ident: str) -> Incident:
    return _client.incident(ident)


def acknowledge(ident: str) -> Incident:
    return _client.ack(ident)


def close(ident: str) -> Incident:
    return _client.close(ident)


def engines() -> tuple[EngineState, ...]:
    return _client.status().engines


def memory(engine: str | None, since: int) -> Memory:
    """Where the memory of the cards went since that instant (microseconds since the epoch), of one engine's cards or of all."""
    return _client.memory(engine=engine, since=since)


def gpus() -> tuple[GpuItem, ...]:
    return _client.gpus()


def runbooks() -> tuple[RunbookItem, ...]:
    """Runbooks by label; a label that two files share comes once, with the file of the same name."""
    named: dict[str, RunbookItem] = {}
    for book in sorted(_client.runbooks(), key=lambda book: (book.label, book.id != book.label)):
        named.setdefault(book.label, book)
    return tuple(named.values())


def runbook(label: str) -> RunbookItem | None:
    return next((book for book in runbooks() if book.label == label), None)
