"""How figures and foreign text are written."""

import pytest
from lensd_dashboards import wording


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.42, "0.4 ms"),
        (9.96, "10.0 ms"),
        (412.3, "412 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (1_644.3, "1.64 s"),
        (9_995, "10.0 s"),
        (12_345, "12.3 s"),
        (59_949, "59.9 s"),
        (59_960, "1 min 0 s"),
        (250_000, "4 min 10 s"),
        (3_599_600, "1 h 0 min"),
        (7_500_000, "2 h 5 min"),
        (277_200_000, "3 d 5 h"),
    ],
)
def test_durations(milliseconds: float | None, written: str) -> None:
    assert wording.duration(milliseconds) == written


@pytest.mark.parametrize(
    ("part", "whole", "written"),
    [(None, 10, "–"), (1, None, "–"), (1, 0, "–"), (0, 10, "0 %"), (10, 10, "100 %"), (0.001, 10, "< 0.1 %"), (1, 3, "33.3 %")],
)
def test_shares(part: float | None, whole: float | None, written: str) -> None:
    assert wording.share(part, whole) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (None, "–"),
        ("2026-11-30T12:00:03.118Z", "2026-11-30 12:00:03 UTC"),
        ("2026-11-30T13:00:03+01:00", "2026-11-30 12:00:03 UTC"),
        ("2026-11-30T12:00:03", "2026-11-30 12:00:03 UTC"),
        ("some day", "some day"),
    ],
)
def test_instants_name_their_zone(text: str | None, written: str) -> None:
    assert wording.instant_of(text) == written


def test_instant_of_microseconds() -> None:
    assert wording.instant(1_796_040_000_000_000) == "2026-11-30 12:00:00 UTC"
    assert wording.instant(None) == "–"


@pytest.mark.parametrize("foreign", ["[x](http://evil)", "**b**", "<img src=x>", ":red[no]", "`code`", "a\nb", "$x$", "~~s~~", "# h"])
def test_foreign_text_is_no_markdown(foreign: str) -> None:
    safe = wording.plain(foreign)
    assert "\n" not in safe
    marks = [index for index, character in enumerate(safe) if character in "*[]<>`:$~#"]
    assert all(safe[index - 1] == "\\" for index in marks)
