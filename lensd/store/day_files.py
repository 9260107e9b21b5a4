"""Which files a UTC day lies in, said by their names alone, so that a kill at any moment leaves a folder that can be read.

`day-20261129.duckdb` takes the day's rows. Once it is sealed they go to `day-20261129-late.duckdb`, then `-late-2` and so on: the
parts. `day-20261129-packed.duckdb` stands for all parts with a number below its own, and for every packed file before it: as soon
as it has its name, those count no more.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import date, timedelta
from typing import Final, NamedTuple

DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
_LAST_DAY: Final = (date(9999, 12, 31) - _EPOCH).days
_NAME: Final = re.compile(r"day-(\d{8})(?:-(late|packed)(?:-([2-9]|[1-9]\d+))?)?\.duckdb")


class DayFile(NamedTuple):
    """One file: a part, the first of which is number 0, or the packed form of all parts below `number`."""

    day: int  # since the epoch
    number: int = 0
    packed: bool = False

    @property
    def name(self) -> str:
        """What it is called where it is attached."""
        return "_".join((day_name(self.day), *self._rest()))

    @property
    def file(self) -> str:
        return f"{self.name.replace('_', '-')}.duckdb"

    def _rest(self) -> Iterator[str]:
        if self.number:
            yield "packed" if self.packed else "late"
        if self.number > 1:
            yield str(self.number)


def day_name(day: int) -> str:
    """The name that a day's files begin with, where they are attached."""
    return f"day_{date_of(day):%Y%m%d}"


def day_of(name: str) -> int:
    """The day of such a name."""
    return (date.fromisoformat(name.removeprefix("day_")[:8]) - _EPOCH).days


def date_of(day: int) -> date:
    return _EPOCH + timedelta(days=max(0, min(day, _LAST_DAY)))


def read_name(file: str) -> DayFile | None:
    """The file of this name, None where it is none of a day's."""
    named = _NAME.fullmatch(file)
    if named is None:
        return None
    digits, kind, number = named.groups()
    try:
        day = day_of(digits)
    except ValueError:  # eight digits that are no date: not ours
        return None
    return DayFile(day, 0 if kind is None else int(number or 1), kind == "packed") if day >= 0 else None


def standing(files: Iterable[DayFile]) -> list[DayFile]:
    """Those of a folder's files that count, by day and in the order in which their rows came."""
    found = sorted(files, key=lambda file: (file.day, not file.packed, file.number))
    newest = {file.day: file.number for file in found if file.packed}
    return [file for file in found if file.number >= newest.get(file.day, 0)]


class Days:
    """The files of each day as they are attached, and which of them still take rows. Whoever uses it holds the store's lock."""

    def __init__(self) -> None:
        self._held: dict[int, list[DayFile]] = {}
        self._sealed: set[DayFile] = set()
        self.retired: list[DayFile] = []
        """No longer shown; a statement that began before may still read them."""

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, day: object) -> bool:
        return day in self._held

    def of(self, day: int) -> tuple[DayFile, ...]:
        """In the order in which their rows came."""
        return tuple(self._held.get(day, ()))

    def add(self, file: DayFile) -> None:
        self._held[file.day] = standing([*self.of(file.day), file])

    def open_part(self, day: int) -> DayFile | None:
        """The file that takes the day's rows; None: one has to be made."""
        last = self._held[day][-1] if day in self._held else None
        return None if last is None or last.packed or last in self._sealed else last

    def next_part(self, day: int) -> DayFile:
        """The part that comes after all there are; no name is used twice while a file of it is still attached."""
        known = [*self.of(day), *(file for file in self.retired if file.day == day)]
        return DayFile(day, max((file.number + (not file.packed) for file in known), default=0))

    def seal(self, day: int) -> tuple[DayFile, ...]:
        """The day's files, none of which takes rows from now on."""
        self._sealed.update(self.of(day))
        return self.of(day)

    def unseal(self, files: Collection[DayFile]) -> None:
        self._sealed.difference_update(files)

    def retire(self, files: Collection[DayFile]) -> None:
        """These are no longer shown."""
        for file in files:
            left = [other for other in self._held.get(file.day, ()) if other != file]
            self._held[file.day] = left
            if not left:
                del self._held[file.day]
        self.unseal(files)
        self.retired += files
