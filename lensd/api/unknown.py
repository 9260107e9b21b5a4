"""Why a request is not found: there was none of that id, or nothing here tells of requests by their ids."""

from collections.abc import Callable

from lensd.errors import EvidenceError, IdsNotRecordedError, LensdError, RequestNotFoundError
from lensd.store import sources
from lensd.store.interface import Cursor
from lensd.store.kept import deleted


def unknown(cursor: Cursor, ident: str, line_for: Callable[[str], str], now: int) -> LensdError:
    """The error for an id that the store has no request of.

    `line_for` gives what adds a source of ids to the engine of that name; `now` is in microseconds since the epoch.
    """
    gone = deleted(cursor, ident)
    if gone is not None:
        return RequestNotFoundError(f"no request {ident} any more: it was {gone}")
    engines = sources.engines(cursor)
    line = line_for(engines[0] if len(engines) == 1 else "NAME")
    if sources.named_in_log(cursor, ident):
        return EvidenceError(
            f"request {ident} stands in the engine's log only, which has no times; it may still run. To see its stages, start vLLM with: "
            f"{line}"
        )
    if not sources.ids_recorded(cursor, now):
        return IdsNotRecordedError(
            f"no request {ident}, which may have been there all the same: no source here records request ids; to add one, start vLLM with: "
            f"{line}"
        )
    return RequestNotFoundError(f"no request {ident}")
