"""Which engines have spoken at this door of late, and what they serve: for records whose sender names neither."""

from typing import Final

from lensd_collectors.rows import Instant

RECENT_US: Final = 10 * 60 * 1_000_000
_MOST: Final = 1_000


class Engines:
    """The engines heard of; instants are microseconds since the epoch. Not for several threads at once."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str | None, int]] = {}  # name -> dialect where known, last received at
        self._adapted: set[str] = set()
        self._models: dict[str, tuple[Instant, frozenset[str]]] = {}  # name -> its last scrape, the models in it

    def heard(self, name: str, dialect: str | None, received_at: int) -> None:
        """Something came that names its engine; `dialect` None: it does not show which product the engine is."""
        if name not in self._heard and len(self._heard) >= _MOST:
            self._heard.pop(next(iter(self._heard)))
        known, before = self._heard.get(name, (None, received_at))
        self._heard[name] = (dialect or known, max(before, received_at))

    def serves(self, name: str, model: str, seen_at: Instant) -> None:
        """A scrape of an engine shows a model."""
        before, models = self._models.get(name, (seen_at, frozenset[str]()))
        if name not in self._models and len(self._models) >= _MOST:
            self._models.pop(next(iter(self._models)))
        if seen_at >= before:
            self._models[name] = (seen_at, models | {model} if seen_at == before else frozenset((model,)))

    def adapts(self, name: str) -> None:
        """An engine serves adapters beside its model: a request can be of either."""
        if len(self._adapted) < _MOST:
            self._adapted.add(name)

    def only(self, dialect: str, received_at: int) -> str | None:
        """The one engine that something of this dialect can be of; None where there are several, or none was heard of lately."""
        found = [name for name, (known, at) in self._heard.items() if known in (None, dialect) and at >= received_at - RECENT_US]
        return found[0] if len(found) == 1 else None

    def model(self, name: str | None) -> str | None:
        """The one model an engine serves, by its first name; None where its scrapes show several, adapters, or none."""
        _, models = self._models.get(name or "", (0, frozenset[str]()))
        return next(iter(models)) if len(models) == 1 and name not in self._adapted else None
