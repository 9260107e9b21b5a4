"""Where a command reads from: the daemon where it answers, else the store's folder itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lensd.api.client import Client
from lensd.config import Config, expanded, read_token
from lensd.errors import NoAnswerError, StoreBusyError, UnauthorizedError

if TYPE_CHECKING:
    from lensd.api.local import LocalReader

PROBE_S = 1.0  # a daemon that holds the store and says nothing for this long does not answer


@contextmanager
def open_reader(config: Config, server: str | None, store: str | None = None) -> "Iterator[Client | LocalReader]":
    """A reader of requests, diagnoses and incidents.

    A daemon that was named (`--server`, LENSD_URL) must answer; else a silent one means reading the folder. Raises
    NoStoreError, StoreBusyError, ServerError, UnauthorizedError.
    """
    if store is None and (server is not None or _answers(config)):
        with open_daemon(config, server) as client:
            yield client
        return
    from lensd.api.local import LocalReader  # brings the database along, which a daemon's caller does not need

    folder = expanded("--store", store) if store is not None else config.store_folder
    try:
        reader = LocalReader.open(folder, config)
    except StoreBusyError as error:
        raise StoreBusyError(f"{error}; it does not answer at {config.api_url}" if store is None else str(error)) from None
    try:
        yield reader
    finally:
        reader.shut()


@contextmanager
def open_daemon(config: Config, server: str | None) -> Iterator[Client]:
    """The running daemon, for what only it can do. Its calls raise NoAnswerError where there is none."""
    try:
        yield Client(server or config.api_url, read_token(config.token_file))
    except UnauthorizedError as error:
        raise UnauthorizedError(f"{error}; this command took {_token_told(config)}") from None


def _answers(config: Config) -> bool:
    try:
        Client(config.api_url, read_token(config.token_file), timeout_s=PROBE_S).changes()
    except NoAnswerError:
        return False
    except UnauthorizedError:
        return True  # it is there; the call that follows says what it wants
    return True


def _token_told(config: Config) -> str:
    known = config.token_file.is_file()
    return f"the token in {config.token_file}" if known else f"none, since there is no {config.token_file}: set serve.token_file"
