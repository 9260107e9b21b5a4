"""Names say which of a day's files count."""

import pytest
from store_rows import DAY_US, NOV_29

from lensd.store.day_files import DayFile, Days, read_name, standing

DAY = NOV_29 // DAY_US


@pytest.mark.parametrize(
    ("file", "name", "attached"),
    [
        (DayFile(DAY), "day-20261129.duckdb", "day_20261129"),
        (DayFile(DAY, 1), "day-20261129-late.duckdb", "day_20261129_late"),
        (DayFile(DAY, 2), "day-20261129-late-2.duckdb", "day_20261129_late_2"),
        (DayFile(DAY, 1, True), "day-20261129-packed.duckdb", "day_20261129_packed"),
        (DayFile(DAY, 12, True), "day-20261129-packed-12.duckdb", "day_20261129_packed_12"),
        (DayFile(0), "day-19700101.duckdb", "day_19700101"),
    ],
)
def test_names(file: DayFile, name: str, attached: str) -> None:
    assert (file.file, file.name, read_name(name)) == (name, attached, file)


@pytest.mark.parametrize(
    "name",
    ["day-20261301.duckdb", "day-20261129.duckdb.new", "day-20261129-packed-1.duckdb", "day-20261129-other.duckdb", "day-19691231.duckdb"],
)
def test_names_of_nobody(name: str) -> None:
    assert read_name(name) is None


def test_a_packed_file_stands_for_the_parts_below_it() -> None:
    parts = [DayFile(DAY, number) for number in range(3)]
    first, second = (DayFile(DAY, number, packed=True) for number in (1, 2))
    other = DayFile(DAY + 1)
    assert standing([other, *parts]) == [*parts, other]
    assert standing([*parts, first]) == [first, *parts[1:]]
    assert standing([*parts, first, second, other]) == [second, parts[2], other]


def test_rows_go_to_the_last_part_that_is_not_sealed() -> None:
    days = Days()
    assert (days.open_part(DAY), days.next_part(DAY)) == (None, DayFile(DAY))
    days.add(DayFile(DAY))
    assert days.open_part(DAY) == DayFile(DAY)
    sealed = days.seal(DAY)
    assert (sealed, days.open_part(DAY), days.next_part(DAY)) == ((DayFile(DAY),), None, DayFile(DAY, 1))
    days.unseal(sealed)
    assert days.open_part(DAY) == DayFile(DAY)
    days.add(DayFile(DAY, 1, packed=True))
    assert (days.of(DAY), days.open_part(DAY), days.next_part(DAY)) == ((DayFile(DAY, 1, packed=True),), None, DayFile(DAY, 1))


def test_no_name_is_used_again_while_its_file_may_still_be_read() -> None:
    days = Days()
    days.add(DayFile(DAY))
    days.retire(days.seal(DAY))
    assert (list(days), days.next_part(DAY)) == ([], DayFile(DAY, 1))
    days.retired.clear()
    assert days.next_part(DAY) == DayFile(DAY)
