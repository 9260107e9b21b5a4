"""Where a command reads from: the daemon where it answers, else the store's folder itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lensd.api.client import Client
from lensd.config import Config, read_token
from lensd.errors import NoAnswerError, StoreBusyError

if TYPE_CHECKING:
    from lensd.api.local import LocalReader

PROBE_S = 1.0  # a daemon that holds the store and says nothing for this long does not answer


@contextmanager
def open_reader(config: Config, server: str | None, store: str | None = None) -> "Iterator[Client | LocalReader]":
    """A reader of requests, diagnoses and incidents.

    A daemon that was named (`--server`, LENSD_URL) must answer; else a silent one means reading the folder. Raises
    NoStoreError, StoreBusyError, ServerError.
    """
    if store is None:
        client = Client(server or config.api_url, read_token(config.token_file))
        if server is not None or _answers(client, config):
            yield client
            return
    from lensd.api.local import LocalReader  # brings the database along, which a daemon's caller does not need

    folder = Path(store).expanduser() if store is not None else config.store_folder
    try:
        reader = LocalReader.open(folder, config)
    except StoreBusyError as error:
        raise StoreBusyError(f"{error}; it does not answer at {config.api_url}") from None
    try:
        yield reader
    finally:
        reader.shut()


def _answers(client: Client, config: Config) -> bool:
    try:
        Client(config.api_url, read_token(config.token_file), timeout_s=PROBE_S).changes()
    except NoAnswerError:
        return False
    return True
