"""Where finished spans go: an exporter set up by arguments or the environment; without either, nowhere."""

import atexit
import contextlib
import logging
import os
import queue
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from lensd_collectors import conventions
from lensd_collectors.export import Exporter

log = logging.getLogger("lensd.client")

CLOSE_WITHIN_S: Final = 1.0
MOST_WAITING: Final = 1000


class Outlet:
    """LENSD_OTLP is the receiver's URL, LENSD_TOKEN or LENSD_TOKEN_FILE its bearer token; arguments come before them."""

    def __init__(self, endpoint: str, token: str, service: str, environment: Mapping[str, str] = os.environ) -> None:
        self._make: Callable[[], Exporter | None] = lambda: _exporter(endpoint, token, service, environment)
        self._exporter, self._pid = self._make(), os.getpid()
        self._waiting: queue.SimpleQueue[Callable[[], list[str]]] = queue.SimpleQueue()  # may be put to while it is put to
        atexit.register(self.close)

    def send(self, make: Callable[[], list[str]], *, later: bool = False) -> None:
        """Takes the maker of one span. A child of a fork gets an exporter of its own: its parent's has no thread there."""
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(make)
        if not later:
            self._hand_on()

    def flush(self, timeout_s: float) -> bool:
        self._hand_on()
        return self._exporter is None or self._exporter.flush(timeout_s)

    def close(self) -> None:
        atexit.unregister(self.close)
        self._hand_on()
        if self._exporter is not None:
            self._exporter.close(CLOSE_WITHIN_S)
        self._exporter = None

    def _hand_on(self) -> None:
        if self._pid != os.getpid():
            self._exporter, self._pid = self._make(), os.getpid()
        with contextlib.suppress(queue.Empty):
            while True:
                make = self._waiting.get_nowait()
                if self._exporter is not None:
                    self._exporter.spans(make, 1)


def _exporter(endpoint: str, token: str, service: str, environment: Mapping[str, str]) -> Exporter | None:
    """None, with one line of why, where it can't be had."""
    endpoint = endpoint or environment.get("LENSD_OTLP", "").strip()
    if not endpoint:
        log.info("lensd sends nothing: no endpoint given and no LENSD_OTLP set; requests get their ids all the same")
        return None
    try:
        given = token or environment.get("LENSD_TOKEN") or _read(environment.get("LENSD_TOKEN_FILE", ""))
        return Exporter(endpoint, token=given, service=service, scope=conventions.SCOPE_CLIENT)
    except (ValueError, OSError) as error:
        log.warning("lensd sends nothing: %s", error)
        return None


def _read(path: str) -> str | None:
    return Path(path).read_text(encoding="utf-8").strip() if path else None
