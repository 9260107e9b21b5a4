"""What an error of an HTTP library comes to, in the words that `dialects/client.toml` uses for the same things in logs."""

from collections.abc import Iterator
from typing import Final

# The first that stands anywhere in an error or in what caused it. By name, since no library is imported for it.
_KINDS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("connect_timeout", frozenset({"ConnectTimeout", "ConnectTimeoutError", "ConnectionTimeoutError"})),
    ("pool_timeout", frozenset({"PoolTimeout"})),
    ("write_timeout", frozenset({"WriteTimeout"})),
    ("read_timeout", frozenset({"ReadTimeout", "ReadTimeoutError", "SocketTimeoutError", "ServerTimeoutError"})),
    ("timeout", frozenset({"TimeoutError", "APITimeoutError", "Timeout", "TimeoutException"})),
    ("connection_refused", frozenset({"ConnectionRefusedError"})),
    ("connection_error", frozenset({"NewConnectionError", "ClientConnectorError", "ConnectError", "gaierror"})),
    ("unexpected_eof", frozenset({"IncompleteRead", "ClientPayloadError", "ChunkedEncodingError"})),
    ("connection_reset", frozenset({"RemoteDisconnected", "ServerDisconnectedError", "ConnectionResetError", "BrokenPipeError"})),
    ("unexpected_eof", frozenset({"RemoteProtocolError"})),
    ("cancelled", frozenset({"CancelledError", "GeneratorExit", "KeyboardInterrupt"})),
)
_KNOWN: Final = frozenset().union(*(names for _, names in _KINDS))
NEVER_SENT: Final = frozenset({"connect_timeout", "pool_timeout", "connection_refused", "connection_error"})
"""The request never left: asking again can repeat no work."""


def kind_of(error: BaseException) -> str:
    """A code such as `read_timeout`; the class's own name where it is none of the known ones."""
    names = {_known_name(type(each)) for each in _chain(error)}
    return next((kind for kind, wanted in _KINDS if wanted & names), type(error).__name__)


def _known_name(cls: type) -> str:
    """Its own or the nearest of its bases' that is in the table: urllib3's refused connection is also a kind of its time-out."""
    return next((base.__name__ for base in cls.__mro__ if base.__name__ in _KNOWN), "")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was made of: causes, and errors that a library put into another's arguments."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < 16:
        each = waiting.pop(0)
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, getattr(each, "reason", None), getattr(each, "os_error", None), *each.args]
