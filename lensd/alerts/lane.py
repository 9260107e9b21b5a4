"""The letters owed to one destination, in order, and when the next may be tried."""

import threading

from lensd.alerts.delivery import Destination, Reason
from lensd.alerts.stages import Letter


class Lane:
    """Oldest first. A lane waits for its own destination only; the outbox' lock guards it."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.letters: dict[str, Letter] = {}
        self.blocked_until = 0  # the destination failed a moment ago
        self.disabled = False
        self.wake = threading.Event()

    def ready(self) -> list[Letter]:
        """Letters that wait for nothing but time: "resolved" comes after its "opened" is out of the way."""
        opening = {one.incident.incident_id for one in self.letters.values() if one.reason is Reason.OPENED}
        return [one for one in self.letters.values() if one.reason is not Reason.RESOLVED or one.incident.incident_id not in opening]

    def due(self, now: int) -> list[Letter]:
        return [one for one in self.ready() if one.due_at <= now] if now >= self.blocked_until else []

    def next_due(self) -> int | None:
        """Instant of the next try; None with nothing owed."""
        earliest = min((one.due_at for one in self.ready()), default=None)
        return None if earliest is None else max(self.blocked_until, earliest)
