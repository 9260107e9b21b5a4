"""Which paths are served, and which one was probably meant by a path that is not."""

import difflib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.scrub import scrub

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
EMBEDDINGS: Final = "/v1/embeddings"
MODELS: Final = "/v1/models"
MODEL_PREFIX: Final = "/v1/models/"
MODEL: Final = "/v1/models/{model}"

MAX_SHOWN: Final = 128


class GatewayError(ValueError):
    """A gateway that cannot start as it is configured; one line."""


class Kind(StrEnum):
    """What a path is for."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MODELS = "models"
    MODEL = "model"
    EXTRA = "extra"  # passed on because the configuration says so
    HEALTH = "health"
    READY = "ready"
    METRICS = "metrics"

    @property
    def is_own(self) -> bool:
        """Answered by the gateway about itself, without a key."""
        return self in _OWN


_OWN: Final = frozenset((Kind.HEALTH, Kind.READY, Kind.METRICS))


class Route(msgspec.Struct, frozen=True):
    """`template` is what records and metrics call the path; there are as many as there are routes."""

    template: str
    kind: Kind
    methods: tuple[str, ...]


_SERVED: Final = (
    Route(CHAT, Kind.CHAT, ("POST",)),
    Route(COMPLETIONS, Kind.COMPLETIONS, ("POST",)),
    Route(RESPONSES, Kind.RESPONSES, ("POST",)),
    Route(EMBEDDINGS, Kind.EMBEDDINGS, ("POST",)),
    Route(MODELS, Kind.MODELS, ("GET",)),
    Route("/healthz", Kind.HEALTH, ("GET", "HEAD")),
    Route("/health", Kind.HEALTH, ("GET", "HEAD")),
    Route("/readyz", Kind.READY, ("GET", "HEAD")),
    Route("/metrics", Kind.METRICS, ("GET",)),
)
_MODEL: Final = Route(MODEL, Kind.MODEL, ("GET",))

_PREFIXES: Final = frozenset(("v1", "v1beta", "v2", "api", "openai"))  # what base URLs have too much of, or wrong
_ELSEWHERE: Final = {  # what other servers call the same thing
    "/api/chat": CHAT,
    "/v1/messages": CHAT,
    "/api/generate": COMPLETIONS,
    "/generate": COMPLETIONS,
    "/api/embed": EMBEDDINGS,
    "/api/tags": MODELS,
    "/v1/engines": MODELS,
}
_FORMS: Final = frozenset(("/v1/audio/transcriptions", "/v1/audio/translations"))
_NEAR: Final = 0.8


class Routes:
    """The paths that are served: ours, and those that the configuration adds."""

    def __init__(self, extra: Sequence[str] = ()) -> None:
        """Raises GatewayError for an added path that cannot be served."""
        for path in extra:
            _check(path, extra)
        every = (*_SERVED, *(Route(path, Kind.EXTRA, ("POST",)) for path in extra))
        self._exact = {route.template: route for route in every}
        self._tails = sorted(((_tail(each), each) for each in self._exact), key=lambda pair: -len(pair[0]))
        self.templates = (*self._exact, MODEL)

    def find(self, method: str, path: str) -> Route | Refused:
        """The route, or why there is none. `path` comes percent-decoded and without its query."""
        route = self._exact.get(path) or self._model(path)
        if route is None:
            meant = self._meant(path)
            return Refused(Decision.PATH_UNKNOWN, f"there is no path {shown(path)}{f'; did you mean {meant}?' if meant else ''}")
        if method not in route.methods:
            return Refused(Decision.METHOD_NOT_ALLOWED, f"{route.template} takes {route.methods[0]}, not {shown(method)}")
        return route

    def allowed(self, path: str) -> str:
        """Value of the Allow header that a 405 carries; empty for a path that is not served."""
        route = self._exact.get(path) or self._model(path)
        return ", ".join(route.methods) if route is not None else ""

    @staticmethod
    def _model(path: str) -> Route | None:
        """Names of models have slashes in them, so all that follows is the name."""
        return _MODEL if path.startswith(MODEL_PREFIX) and path[len(MODEL_PREFIX) :].strip("/") else None

    def _meant(self, path: str) -> str:
        """The served path that a wrong one most likely stands for; empty where none is near."""
        parts = [part for each in path[:MAX_SHOWN].lower().split("/") if (part := each.strip())]
        plain = "/" + "/".join(parts)
        if plain in self._exact or plain in _ELSEWHERE:
            return _ELSEWHERE.get(plain, plain)
        # `/chat/completions`, `/v1/v1/chat/completions`, `/openai/deployments/X/chat/completions`, `/v1/engines/X/completions`
        for tail, template in self._tails:
            if plain.endswith(tail.lower()):
                return template
        while parts and parts[0] in _PREFIXES:
            parts.pop(0)
        if len(parts) > 1 and parts[0] == "models":
            return MODEL
        if len(begun := [each for each in self._exact if each.startswith(plain + "/")]) == 1:
            return begun[0]
        for tried in ("/".join(("", "v1", *parts)), plain):
            if near := difflib.get_close_matches(tried, self._exact, n=1, cutoff=_NEAR):
                return near[0]
        return ""


def shown(text: str) -> str:
    """A caller's text as a message and a record may repeat it: some put their key into the path."""
    return scrub("".join(each if each.isprintable() else "?" for each in text[:MAX_SHOWN]))


def _tail(template: str) -> str:
    return template.removeprefix("/v1")


def _check(path: str, every: Iterable[str]) -> None:
    said = f"routes: {shown(path)!r}"
    if not path.startswith("/") or path.endswith("/"):
        raise GatewayError(f"{said} must be a path such as /v1/rerank: with a slash before it and none after it")
    if not path.isascii() or not path.isprintable() or any(each in path for each in " ?#%\\{}*"):
        raise GatewayError(f"{said} must be a plain path, taken letter by letter: no spaces, query, patterns or percent signs")
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        raise GatewayError(f"{said} must have no empty and no dotted parts")
    if any(path == each.template for each in _SERVED) or path.startswith(MODEL_PREFIX):
        raise GatewayError(f"{said} is one of the gateway's own paths and needs no entry")
    if path in _FORMS:
        raise GatewayError(f"{said} takes forms: the gateway passes on JSON bodies only, where it can see the model")
    if sum(path == each for each in every) > 1:
        raise GatewayError(f"{said} is listed twice")
