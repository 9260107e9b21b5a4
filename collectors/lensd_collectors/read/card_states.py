"""How cards fare over the lines of a file: one event each time a card's state is another, or a card is not listed any more."""

from typing import Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.rows import Event, Instant
from lensd_collectors.scrub import scrub

OK: Final = "ok"
ABSENT: Final = "absent"
CRITICAL: Final = frozenset({"lost", "reset_required", ABSENT})
FEWEST_FAULTS: Final = 2  # one value that fails says little of a card: a fan's often does
ROUNDS: Final = 2  # of all cards without one that was there before: a single one may be a line cut short
TOGETHER_US: Final = 500_000  # the lines of one listing come within, those of the next do not
LONGEST_LINE: Final = 500
MOST_CARDS: Final = 1024


class CardStates:
    """State of each card of one file. A round is what stands between two lines of the same card, and of one instant where lines share any.

    A table in which time goes back lists one card after the other: of the absence of any it says nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._state: dict[str, str] = {}
        self._round: dict[str, None] = {}
        self._order: dict[str, None] = {}
        self._whole: frozenset[str] = frozenset()
        self._short: tuple[frozenset[str], int] = (frozenset(), 0)  # who is missing, for how many rounds
        self._last: tuple[Instant | None, int, str] = (None, 0, "")
        self._together = self._by_card = False

    def saw(self, gpu: str, faults: list[str], *, at: Instant | None, number: int, line: str) -> list[Event]:
        """The events of one line about a card."""
        if gpu not in self._order and len(self._order) >= MOST_CARDS:
            return []
        events = self._next_round(at, number, line) if self._begins(gpu, at) else []
        self._round[gpu] = self._order[gpu] = None
        self._last = at, number, line
        state = next((state for state in faults if state in CRITICAL), OK)
        if state == OK and len(faults) >= FEWEST_FAULTS:
            state = faults[0]
        return events + self._told(gpu, state, at, number, line)

    def rest(self) -> list[Event]:
        """What the last round says: one card is missing where another is listed that comes after it, or where it was missing before."""
        place = {gpu: number for number, gpu in enumerate(self._order)}
        if self._by_card:
            return []
        last = max((place[gpu] for gpu in self._round), default=-1) if len(self._round) > 1 or not self._together else -1
        missing = [gpu for gpu in place if gpu in self._whole and gpu not in self._round]
        gone = [gpu for gpu in missing if self._round and (place[gpu] < last or gpu in self._short[0])]
        return [event for gpu in gone for event in self._told(gpu, ABSENT, *self._last)]

    def restart(self) -> None:
        """Another table begins, which may list other cards."""
        self._round, self._whole, self._short = {}, frozenset(), (frozenset(), 0)

    def _begins(self, gpu: str, at: Instant | None) -> bool:
        """Whether another round begins with this line."""
        before = self._last[0]
        if at is None or before is None:
            return gpu in self._round
        self._by_card = self._by_card or at < before - TOGETHER_US
        self._together = self._together or (abs(at - before) < TOGETHER_US and gpu not in self._round)
        return gpu in self._round or (self._together and abs(at - before) >= TOGETHER_US)

    def _next_round(self, at: Instant | None, number: int, line: str) -> list[Event]:
        seen, self._round = frozenset(self._round), {}
        missing = self._whole - seen
        if not missing or not seen:
            self._whole, self._short = self._whole | seen, (frozenset(), 0)
            return []
        rounds = self._short[1] + 1 if self._short[0] == missing else 1
        self._short = missing, rounds
        if rounds < ROUNDS or self._by_card:
            return []
        self._whole = seen
        return [event for gpu in sorted(missing) for event in self._told(gpu, ABSENT, at, number, line)]

    def _told(self, gpu: str, state: str, at: Instant | None, number: int, line: str) -> list[Event]:
        if self._state.get(gpu, OK) == state:
            return []
        self._state[gpu] = state
        return [event(self._name, gpu, state, at=at, number=number, line=line)]


def event(name: str, gpu: str | None, state: str, *, at: Instant | None, number: int, line: str, pci: str | None = None) -> Event:
    """What the agent says of a card it reads itself, as a line of a file says it."""
    index, _, mig = (gpu or "").partition("/")
    fields = {
        conventions.ABOUT_GPU: gpu,
        conventions.GPU_INDEX: int(index) if index.isdigit() else None,
        conventions.MIG: mig or None,
        conventions.GPU_PCI: pci,
        conventions.GPU_STATE: state,
    }
    return Event(
        seen_at=at,
        seq=number,
        name=conventions.EVENT_GPU_STATE,
        severity="info" if state == OK else "critical" if state in CRITICAL else "error",
        fields=msgspec.json.encode({key: value for key, value in fields.items() if value is not None}).decode(),
        line=scrub(line.strip())[:LONGEST_LINE],
        src=f"{name}:{number}",
    )
