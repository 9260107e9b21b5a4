"""Which path is served, and which engine serves a model: configured, or learned from each engine's own list."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.config import Upstream
from lensd_collectors.gateway.decisions import Refused

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MODELS: Final = "/v1/models"
HEALTH: Final = "/health"
METHODS: Final = {CHAT: "POST", COMPLETIONS: "POST", MODELS: "GET", HEALTH: "GET"}

REFRESH_S: Final = 5.0
RETRY_S: Final = 1.0
ASK_TIMEOUT_S: Final = 2.0
MAX_LIST_BYTES: Final = 4 << 20

Report = Callable[[str, str, str], None]  # act, upstream's name, what happened


class GatewayError(ValueError):
    """A gateway that cannot start as it is configured; one line."""


def check_route(method: str, path: str) -> None:
    """Raises Refused for a path or method that is not served, naming the path that was probably meant."""
    allowed = METHODS.get(path)
    if allowed is None:
        meant = next((each for each in (CHAT, COMPLETIONS, MODELS) if path.rstrip("/").endswith(each.removeprefix("/v1"))), None)
        hint = f"; did you mean {meant}?" if meant else ""
        raise Refused(Decision.PATH_UNKNOWN, f"there is no path {_shown(path)}{hint}")
    if method != allowed:
        raise Refused(Decision.METHOD_NOT_ALLOWED, f"{path} takes {allowed}, not {_shown(method)}")


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:128])


class ModelCard(msgspec.Struct):
    """What a caller is told of a model; an engine says more, such as the folder it lies in."""

    id: str
    object: str = "model"
    created: Any = 0
    owned_by: Any = "lensd"
    max_model_len: Any = None


class _ModelList(msgspec.Struct):
    data: list[ModelCard]


class Target:
    """One engine and what is known of it."""

    __slots__ = ("api_key_file", "cards", "configured", "credential", "in_flight", "name", "place", "root", "up", "urls")

    def __init__(self, upstream: Upstream) -> None:
        """Raises GatewayError for a URL or credential file that cannot be used."""
        parts = urlsplit(upstream.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GatewayError(f"upstream url '{parts.scheme}://{parts.hostname or ''}' must be http://HOST:PORT or https://HOST:PORT")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise GatewayError(f"upstream url with host '{parts.hostname}' has no valid port") from error
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.place = f"{host}:{port}"
        self.name = upstream.name or self.place
        self.root = f"{parts.scheme}://{self.place}{parts.path.rstrip('/').removesuffix('/v1')}"
        self.urls = {route: URL(self.root + route) for route in (CHAT, COMPLETIONS, MODELS)}
        self.configured = frozenset(upstream.models)
        self.api_key_file = upstream.api_key_file
        self.credential = ""
        self.read_credential()
        self.cards: dict[str, ModelCard] = {}  # as it last said itself
        self.up: bool | None = None  # None: not asked yet
        self.in_flight = 0

    def read_credential(self) -> None:
        if self.api_key_file:
            try:
                self.credential = "Bearer " + Path(self.api_key_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise GatewayError(f"upstream '{self.name}': cannot read api_key_file {self.api_key_file}") from error

    def serves(self, model: str) -> bool:
        return model in (self.configured or self.cards)

    @property
    def models(self) -> list[ModelCard]:
        if self.configured:
            return [self.cards.get(name) or ModelCard(id=name) for name in sorted(self.configured)]
        return list(self.cards.values())


class Fleet:
    """All engines. Their state is a preference only: an engine that looks out is still tried when there is no other."""

    def __init__(self, upstreams: Sequence[Upstream], report: Report) -> None:
        self.targets = tuple(Target(each) for each in upstreams)
        names = [target.name for target in self.targets]
        if len(set(names)) != len(names):
            raise GatewayError(f"upstream name '{max(names, key=names.count)}' is used twice")
        self._report = report
        self._hurry = asyncio.Event()

    def check_model(self, model: str) -> None:
        """Raises Refused where no engine serves the model, or where that cannot be told yet."""
        if any(target.serves(model) for target in self.targets):
            return
        if any(not target.configured and not target.cards for target in self.targets) or not self.targets:
            raise Refused(
                Decision.NO_UPSTREAM, "no engine has said yet that it serves this model, and not all have answered", param="model"
            )
        raise Refused(Decision.MODEL_UNKNOWN, f"the model `{_shown(model)}` is not served here", param="model")

    def pick(self, model: str) -> Target:
        """The engine with the least in flight among those that serve the model, those that are up first."""
        serving = [target for target in self.targets if target.serves(model)]
        return min(serving, key=lambda target: (target.up is False, target.in_flight))

    def cards(self) -> list[ModelCard]:
        """Each model once, as the first engine that has it says."""
        found: dict[str, ModelCard] = {}
        for target in self.targets:
            for card in target.models:
                found.setdefault(card.id, card)
        return list(found.values())

    def mark_out(self, target: Target, why: str) -> None:
        """After a failed connection: prefer others, and ask again soon."""
        self._set_up(target, False, why)
        self._hurry.set()

    async def refresh(self, session: aiohttp.ClientSession) -> None:
        """Asks every engine once what it serves."""
        await asyncio.gather(*(self._ask(target, session) for target in self.targets))

    async def keep_fresh(self, session: aiohttp.ClientSession) -> None:
        """Asks for ever: every few seconds, more often while one is out."""
        while True:
            self._hurry.clear()
            out = any(not target.up for target in self.targets)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), RETRY_S if out else REFRESH_S)
                await asyncio.sleep(RETRY_S / 4)  # many requests fail at once; one question answers for all
            await self.refresh(session)

    async def _ask(self, target: Target, session: aiohttp.ClientSession) -> None:
        try:
            target.read_credential()
            headers = {"Authorization": target.credential} if target.credential else {}
            async with asyncio.timeout(ASK_TIMEOUT_S), session.get(target.urls[MODELS], headers=headers, allow_redirects=False) as response:
                body = await response.content.read(MAX_LIST_BYTES)
                while more := await response.content.read(MAX_LIST_BYTES):
                    body += more
                    if len(body) > MAX_LIST_BYTES:
                        raise ValueError("model list too long")
            if response.status != 200:
                self._set_up(target, False, f"its model list answers {response.status}")
                return
            target.cards = {card.id: card for card in msgspec.json.decode(body, type=_ModelList).data}
            self._set_up(target, True, f"serves {len(target.cards)} models")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
            self._set_up(target, False, f"its model list cannot be had: {type(error).__name__}")

    def _set_up(self, target: Target, up: bool, why: str) -> None:
        if target.up is not up:
            target.up = up
            self._report("upstream_in" if up else "upstream_out", target.name, why)
