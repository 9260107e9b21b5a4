"""What the API needs of the daemon."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lensd import rungs
from lensd.diagnosis.runbook import Runbook
from lensd.records import Incident
from lensd.store.interface import Store
from lensd.timeline.limits import Limits


def ids_line(engine: str) -> str:
    """The line with the usual door and token file."""
    return rungs.line("2", engine=engine)


class IncidentDesk(Protocol):
    """Incidents as they stand now, and what people may do to them. Any thread may call."""

    def all(self) -> list[Incident]: ...
    def acknowledge(self, incident_id: str) -> Incident | None: ...
    def close(self, incident_id: str) -> Incident | None: ...


class Health(Protocol):
    """The daemon's own state: plain values, ready for JSON."""

    def __call__(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Backend:
    store: Store
    runbooks: Mapping[str, Runbook]
    params: Mapping[str, Mapping[str, Any]]
    limits: Limits
    incidents: IncidentDesk
    health: Health
    token: str | None
    ids_line: Callable[[str], str] = ids_line  # by an engine's name: what makes it tell of its requests by their ids
