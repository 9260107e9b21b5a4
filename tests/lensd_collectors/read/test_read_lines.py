"""Years and zones a log does not write."""

import pytest
from lensd_collectors.read.lines import Clock, dated, rfc3339, unwrap


@pytest.mark.parametrize(
    ("near", "dated", "date", "found"),
    [
        ("2026-11-30T00:00:00Z", False, "11-29", "2026-11-29T12:00:00Z"),
        ("2026-01-02T00:00:00Z", False, "12-31", "2025-12-31T12:00:00Z"),
        ("2026-11-29T00:00:00Z", False, "11-29", "2026-11-29T12:00:00Z"),  # written in a zone ahead of ours
        ("2026-12-31T23:00:00Z", True, "01-01", "2027-01-01T12:00:00Z"),
        ("2026-03-01T00:00:00Z", False, "02-29", "2024-02-29T12:00:00Z"),
        ("2026-03-01T00:00:00Z", True, "2025-11-18", "2025-11-18T12:00:00Z"),
        ("2026-03-01T00:00:00Z", True, "13-45", None),
    ],
)
def test_the_year_is_taken_from_what_is_known(near: str, dated: bool, date: str, found: str | None) -> None:
    clock = Clock(rfc3339(near), dated=dated)
    assert clock.at(date, "12:00:00") == (rfc3339(found) if found else None)
    assert clock.at(date, "12:00:00") == (rfc3339(found) if found else None)


def test_without_a_reference_a_date_without_year_is_unknown() -> None:
    assert Clock(None).at("11-29", "12:00:00") is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("130:(APIServer pid=1) INFO x", "(APIServer pid=1) INFO x"),
        ("2026-11-29T14:43:00Z vllm | x", "vllm | x"[7:]),
        ("plain\r\n", "plain"),
        ("a\rb\r\r", "b"),
        ("12:30 is no line number", "12:30 is no line number"),
    ],
)
def test_wrappers(line: str, text: str) -> None:
    assert unwrap(line).text == text


def test_tensorrt_llms_date_begins_with_the_month() -> None:
    assert dated("11/18/2026-10:00:05") == dated("2026-11-18T10:00:05Z")
    assert dated("18/11/2026-10:00:05") is None
