"""What the sampler asks of a vendor's library: a driver that lists its cards, and a card that is read."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from lensd_collectors import conventions
from lensd_collectors.host.line import Standing

HW_ID: Final = "hw.id"
HW_NAME: Final = "hw.name"
HW_TYPE: Final = "hw.type"


class CardState(StrEnum):
    """How it is with a card as a whole."""

    OK = "ok"
    LOST = "lost"  # fell off the bus
    RESET_REQUIRED = "reset_required"
    FAILING = "failing"  # is there, and no call succeeds
    DENIED = "denied"  # this user may not ask it
    UNSUPPORTED = "unsupported"  # it tells nothing that is sampled
    ABSENT = "absent"  # was there, and is not listed any more


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Which card it is. `uuid` stays with a card, `index` is what the driver calls it at present."""

    index: int
    uuid: str = ""  # "": not told
    name: str = ""
    pci: str = ""  # domain:bus:device as the kernel writes them: 0000:3b:00
    mig: str = ""  # gi7ci0, where it is one instance of a card that is divided

    @property
    def key(self) -> str:
        """Tells a card from every other of the host, also after another order of them."""
        return self.uuid or self.gpu

    @property
    def gpu(self) -> str:
        """As `gpu_samples` calls it: 0, or 0/gi7ci0."""
        return f"{self.index}/{self.mig}" if self.mig else str(self.index)

    @property
    def attributes(self) -> dict[str, str | int | None]:
        """What every record about the card carries."""
        return {
            HW_ID: self.key,
            HW_NAME: self.name or None,
            HW_TYPE: "gpu",
            conventions.GPU_INDEX: self.index,
            conventions.MIG: self.mig or None,
        }


class CardProcess(msgspec.Struct, frozen=True):
    """A process that holds memory of a card; `pid` is the driver's, which is the host's also where we run in a container."""

    pid: int
    used_bytes: int | None  # None: not told


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a card says at one instant: names are those of `conventions.GPU_METRICS`, and what it does not tell is absent, never 0."""

    values: dict[str, float] = {}
    processes: tuple[CardProcess, ...] | None = None  # None: not told
    unsupported: frozenset[str] = frozenset()  # names that this card or driver does not tell
    denied: frozenset[str] = frozenset()  # names that this user may not ask for
    state: CardState = CardState.OK
    reason: str = ""  # in the driver's words, where the state is not OK


class DriverGoneError(Exception):
    """The library lost its driver in mid-run (unloaded, or another version was installed): it must be opened again."""


class UnavailableDriverError(Exception):
    """A vendor's library can't be used on this host at present; `standing` says why."""

    def __init__(self, standing: Standing) -> None:
        super().__init__(standing.reason)
        self.standing = standing


class Card(Protocol):
    """One card, or one instance of a divided card. A call may block for as long as the driver does."""

    @property
    def identity(self) -> Identity: ...

    def read(self, *, whole: bool) -> Reading:
        """What changes from second to second; with `whole` also limits, error counters and what was refused before.

        Raises DriverGoneError; what the card refuses is in the reading.
        """
        ...


class Driver(Protocol):
    """A vendor's library, opened. One thread calls it. `open_*` of each vendor makes it, or raises UnavailableDriverError."""

    @property
    def name(self) -> str:
        """nvml, amdsmi."""
        ...

    def cards(self) -> Sequence[Card]:
        """Every card listed at present, a lost one too where it is. Raises DriverGoneError."""
        ...

    def close(self) -> None: ...


Open = Callable[[], Driver]
"""Opens a vendor's library. Raises UnavailableDriverError."""
