"""What an agent would call this vLLM: HOST:PORT of its URL, from the server's own command line."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

_DEFAULT_PORT: Final = "8000"
_EVERYWHERE: Final = frozenset(("", "0.0.0.0", "::", "[::]"))
_LOOPBACK: Final = frozenset(("127.0.0.1", "localhost", "::1"))


def engine_name(argv: Sequence[str], endpoint: str, host_name: str) -> str:
    """HOST:PORT; "" where the command line does not say.

    A server that listens on every address is called by the one that an agent on this machine uses, 127.0.0.1, where the receiver
    at `endpoint` is on this machine too; else by `host_name`, since another machine may have a server on the same port.
    """
    if _option(argv, "--uds") is not None:
        return ""
    host, port = _option(argv, "--host"), _option(argv, "--port")
    if _option(argv, "--config") is not None and (host is None or port is None):
        return ""  # what is not said here may be in that file
    host, port = host or "", port or _DEFAULT_PORT
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return ""
    if host in _EVERYWHERE:
        host = "127.0.0.1" if _host_of(endpoint) in _LOOPBACK else host_name
    host = host.strip("[]").lower()
    return f"{f'[{host}]' if ':' in host else host}:{int(port)}" if host else ""


def _option(argv: Sequence[str], name: str) -> str | None:
    """The value of an option, its last one as argparse takes it; None where it is not given."""
    found = None
    for number, each in enumerate(argv):
        if each == name:
            found = argv[number + 1] if number + 1 < len(argv) else ""
        elif each.startswith(f"{name}="):
            found = each[len(name) + 1 :]
    return found


def _host_of(endpoint: str) -> str:
    try:
        return urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}").hostname or ""
    except ValueError:
        return ""
