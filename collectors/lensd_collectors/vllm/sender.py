"""The one exporter of a vLLM API-server process, set up by its environment; without LENSD_OTLP there is none.

LENSD_OTLP is the receiver's URL, LENSD_TOKEN or LENSD_TOKEN_FILE its bearer token, LENSD_ENGINE the name that the engine has
in the agent's and the gateway's settings; without it the name is the server's own HOST:PORT, as theirs is by default. An app
that is no vLLM may say all but the name in arguments instead.
"""

import atexit
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.vllm.engine_name import engine_name

log = logging.getLogger("lensd.vllm")

SERVICE: Final = "lensd-vllm"
CLOSE_WITHIN_S: Final = 1.0
SENT_EVERY_S: Final = 1.0


class Sender(msgspec.Struct, frozen=True):
    """The exporter and what every record about this engine carries."""

    exporter: Exporter
    attributes: dict[str, str]


def make_sender(
    environment: Mapping[str, str], *, endpoint: str = "", token: str = "", service: str = SERVICE, argv: Sequence[str] = ()
) -> Sender | None:
    """A sender as the arguments say, else the environment; None, with one line of why, where it can't be had.

    `argv` is the command line of a vLLM.
    """
    endpoint = endpoint or environment.get("LENSD_OTLP", "").strip()
    if not endpoint:
        return None
    try:
        token_given = token or environment.get("LENSD_TOKEN") or _read(environment.get("LENSD_TOKEN_FILE", ""))
        exporter = Exporter(endpoint, token=token_given, service=service, scope=conventions.SCOPE_VLLM, flush_every_s=SENT_EVERY_S)
    except (ValueError, OSError) as error:
        log.warning("lensd sends nothing: %s", error)
        return None
    attributes: dict[str, str] = {conventions.ENGINE_KIND: "vllm"} if service == SERVICE else {}
    name = environment.get("LENSD_ENGINE", "").strip()
    if not name and argv and service == SERVICE:
        name = engine_name(argv, endpoint, socket.gethostname())
    if name:
        attributes[conventions.ENGINE] = name
    return Sender(exporter, attributes)


def _read(path: str) -> str | None:
    return Path(path).read_text(encoding="utf-8").strip() if path else None


_made: dict[tuple[str, str, str], Sender | None] = {}


def sender(endpoint: str = "", token: str = "", service: str = SERVICE) -> Sender | None:
    """The process's sender to this receiver, made at the first call; plugin and middleware share the one of the environment."""
    key = (endpoint, token, service)
    if key not in _made:
        argv = sys.argv if "vllm" in sys.modules else ()
        made = _made[key] = make_sender(os.environ, endpoint=endpoint, token=token, service=service, argv=argv)
        if made is not None:
            atexit.register(made.exporter.close, CLOSE_WITHIN_S)
    return _made[key]
