"""What models may be called: aliases and fallbacks as they are configured, and the name that was probably meant by a wrong one."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.routes import GatewayError

MAX_COMPARED: Final = 64  # names; each costs some 30 µs on the loop that serves everybody
MAX_NAME: Final = 128
_NEAR: Final = 0.75


class Names:
    """Both tables with aliases resolved, so that each look-up is a single step."""

    __slots__ = ("aliases", "fallbacks")

    def __init__(self, config: GatewayConfig) -> None:
        """Raises GatewayError for names that lead back to themselves or hide a model."""
        _check_printable("aliases", config.aliases)
        _check_printable("fallback_models", config.fallback_models)
        _check_hidden(config)
        self.aliases: dict[str, str] = {alias: _follow(alias, config.aliases) for alias in config.aliases}
        self.fallbacks: dict[str, str] = {}
        for name, other in config.fallback_models.items():
            model, fallback = self.aliases.get(name, name), self.aliases.get(other, other)
            if model == fallback:
                raise GatewayError(f"fallback_models: '{name}' falls back to itself")
            if self.fallbacks.setdefault(model, fallback) != fallback:
                raise GatewayError(f"fallback_models: '{name}' is model '{model}', which has another fallback already")

    def fallback(self, name: str) -> str | None:
        """The model that answers while no engine has this one; the name may be an alias. One step: a fallback has none of its own."""
        return self.fallbacks.get(self.aliases.get(name, name))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that a wrong one most likely stands for: the same in other case or without its folder, else one that looks like it."""
    wanted, base = name[:MAX_NAME].casefold(), _base(name[:MAX_NAME])
    short: list[str] = []
    same_base: str | None = None
    for each in names:
        if each.casefold() == wanted:
            return each
        if same_base is None and _base(each) == base:
            same_base = each
        if len(short) < MAX_COMPARED and abs(len(each) - len(wanted)) <= len(wanted) // 2:
            short.append(each)
    return same_base or next(iter(difflib.get_close_matches(name[:MAX_NAME], short, n=1, cutoff=_NEAR)), None)


def _base(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()


def _follow(alias: str, aliases: Mapping[str, str]) -> str:
    passed = [alias]
    name = aliases[alias]
    while name in aliases:
        if name in passed:
            raise GatewayError(f"aliases: {' -> '.join((*passed, name))} leads back to itself")
        passed.append(name)
        name = aliases[name]
    return name


def _check_printable(key: str, names: Mapping[str, str]) -> None:
    for name in (*names, *names.values()):
        if not name or not name.isprintable():
            raise GatewayError(f"{key}: model name {name!r} must be printable and not empty")


def _check_hidden(config: GatewayConfig) -> None:
    for upstream in config.upstreams:
        for model in upstream.models:
            if model in config.aliases:
                raise GatewayError(f"aliases: '{model}' is also a model of an upstream; rename the alias")
