"""Has the HTTP libraries of the calling app tell lensd of each request to an LLM."""

import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Sequence
from typing import Final

from lensd_collectors.client import aiohttp_hooks, httpx_hooks, naming, openai_hooks, requests_hooks
from lensd_collectors.client.outlet import Outlet
from lensd_collectors.client.patches import Patches
from lensd_collectors.client.paths import PATHS
from lensd_collectors.client.watch import Watch

log = logging.getLogger("lensd.client")

LIBRARIES: Final = ("openai", "httpx", "httpx2", "aiohttp", "requests")
SERVICE: Final = "lensd-client"
_HOOKS: Final = {"httpx": httpx_hooks.hook, "httpx2": httpx_hooks.hook, "aiohttp": aiohttp_hooks.hook, "requests": requests_hooks.hook}


class Instrumented:
    """What `instrument` did. Called, it undoes it. `libraries` are followed, `missing` are not here or could not be."""

    def __init__(self, outlet: Outlet, paths: Sequence[str]) -> None:
        self.libraries: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        self._outlet, self._patches = outlet, Patches()
        self._watch = Watch(outlet.send, paths)

    def add(self, library: str) -> None:
        """Follows one more library; one that is missing or unlike what we know is named, and left as it is."""
        if library in self.libraries:
            return
        try:
            if importlib.util.find_spec(library) is None:
                raise ImportError("it is not installed")
            self._hook(library)
        except Exception as error:
            self.missing = tuple(dict.fromkeys((*self.missing, library)))
            log.info("requests of %s are not followed: %s", library, error)
            return
        self.libraries += (library,)
        self.missing = tuple(each for each in self.missing if each != library)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Sends what has ended by now; True when all of it was dealt with in time."""
        return self._outlet.flush(timeout_s)

    def __call__(self) -> None:
        """Puts every library back as it was and sends what is left; once is enough."""
        global _current
        with _lock:
            if _current is self:
                _current = None
            self._patches.undo()
            naming.forget()
        self._outlet.close()

    def _hook(self, library: str) -> None:
        module = importlib.import_module(library)
        if library == "openai":
            openai_hooks.hook(module, self._patches)
            for below in ("httpx2", "httpx"):  # one of them is loaded by openai, and is what sends
                if below in sys.modules:
                    self.add(below)
        else:
            _HOOKS[library](module, self._watch, self._patches)


_lock = threading.RLock()
_current: Instrumented | None = None


def instrument(
    *,
    endpoint: str = "",
    token: str = "",
    service: str = SERVICE,
    libraries: Sequence[str] = LIBRARIES,
    paths: Sequence[str] = PATHS,
) -> Instrumented:
    """Follows these libraries from here on, until what it returns is called. Raises ValueError for a library it does not know.

    `endpoint` is lensd's OTLP door and `token` its token, by default LENSD_OTLP and LENSD_TOKEN or LENSD_TOKEN_FILE. `paths`
    are those of the requests to follow, `*` for anything. A second call changes nothing but for libraries it adds.
    """
    global _current
    if unknown := [each for each in libraries if each not in LIBRARIES]:
        raise ValueError(f"instrument {', '.join(unknown)}: known are {', '.join(LIBRARIES)}")
    with _lock:
        if _current is None:
            _current = Instrumented(Outlet(endpoint, token, service), paths)
        for library in libraries:
            _current.add(library)
        return _current
