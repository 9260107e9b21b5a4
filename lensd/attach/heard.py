"""What the settings and the running daemon say of an engine already."""

from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import AgentError, Engine, resolve

from lensd.api.client import Client
from lensd.api.items import Coverage
from lensd.config import Config, read_token
from lensd.diagnosis.runbook import load
from lensd.errors import ServerError, UnauthorizedError
from lensd.rungs import Claim, Needs

PROBE_S = 2.0


def as_configured(config: Config, engine: Engine, given: WatchedEngine) -> WatchedEngine:
    """The engine of that URL as the settings have it, where they do and nothing else was asked for, else as it was given."""
    for watched in config.agent.engines:
        try:
            known = resolve(watched)
        except AgentError:
            continue
        if known.url == engine.url and not given.name and not given.api_key_file:
            return watched
    return given


def coverage(config: Config) -> Coverage | None:
    """What the daemon has heard; None where none answers, or not to this user."""
    try:
        return Client(config.api_url, read_token(config.token_file), timeout_s=PROBE_S).coverage()
    except (ServerError, UnauthorizedError):
        return None


def needs(config: Config) -> Needs:
    """What each stable cause needs."""
    books = load(config.runbooks.folders)
    return {
        book.id: Claim(book.needs, book.needs_any, book.live, book.rung)
        for book in books.values()
        if book.status == "stable" and book.kind != "negative"
    }
