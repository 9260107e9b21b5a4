"""Cells of tables that tools print: quantities with their units, instants, and the ways to say that there is no value."""

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from lensd_collectors.read.lines import instant, rfc3339
from lensd_collectors.rows import Instant

NONE: Final = frozenset({"", "-", "--", "n/a", "na", "none", "null", "nan", "not supported", "not found", "insufficient permissions", "?"})
BINARY: Final = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,  # Kubernetes, free -h
}
DECIMAL: Final = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
LETTERS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}  # top, ps, free
OTHERS: Final = {"%": 0.01, "pct": 0.01, "percent": 0.01, "ratio": 1.0, "w": 1.0, "mw": 0.001, "mhz": 1.0, "ghz": 1000.0, "c": 1.0}
FAULTS: Final = {  # what stands in a cell's stead where the card does not answer -> its state, as the agent names it
    "gpu is lost": "lost",
    "gpu requires reset": "reset_required",
    "reset required": "reset_required",
    "unknown error": "failing",
    "err!": "failing",
}

LARGEST: Final = 1e15  # no size in any unit, no counter and no PID is
LONGEST_MASK: Final = 18  # 64 bits in hexadecimal

_QUANTITY: Final = re.compile(r"(?P<number>[+-]?(?:\d[\d,]*)?\.?\d+(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z%]*)")
_NAME: Final = re.compile(r"(?P<name>.*?)\s*(?:[\[(](?P<unit>[^\])]*)[\])])?")
_SUFFIX: Final = re.compile(r"(?P<name>.*[a-z0-9])_(?P<unit>kib|mib|gib|kb|mb|gb|bytes|pct|percent|ratio|mhz|w|c)")
_DATED: Final = re.compile(r"\d{4}[/-]\d\d[/-]\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?")
_DAY_FIRST: Final = re.compile(
    r"[A-Z][a-z]{2} +(?P<month>[A-Z][a-z]{2}) +(?P<day>\d\d?) +(?P<time>\d\d:\d\d:\d\d)(?: [A-Z]{3,4})? +(?P<year>\d{4})"
)
_CIVIL: Final = re.compile(
    r"(?P<first>\d\d?)(?P<sign>[./-])(?P<second>\d\d?)(?P=sign)(?P<year>\d{4})[ ,T]+(?P<time>\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?)"
)
_KIBANA: Final = re.compile(r"(?P<month>[A-Z][a-z]{2}) (?P<day>\d\d?), (?P<year>\d{4}) @ (?P<time>\d\d:\d\d(?::\d\d(?:\.\d+)?)?)")
_TIME: Final = re.compile(r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?P<part>\.\d+)?)?")
_EPOCH: Final = re.compile(r"\d{10}(?:\.\d+)?|\d{13}")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Quantity(NamedTuple):
    number: float
    unit: str  # in lower case, "" where none is written


class Name(NamedTuple):
    """A column's name in lower case, and the unit its header gives; "" where it gives none."""

    name: str
    unit: str


def bare(text: str) -> str:
    """What a cell says, without the brackets that `nvidia-smi` puts around what is no value, in lower case."""
    return text.strip().strip("[]<>").strip().lower()


def is_none(text: str) -> bool:
    return bare(text) in NONE


def fault(text: str) -> str | None:
    """The state of a card that a cell tells of instead of a value."""
    return FAULTS.get(bare(text))


def quantity(text: str) -> Quantity | None:
    """The number of a cell and its unit; None for a cell that holds none, or one larger than anything measured.

    >>> quantity("79810 MiB"), quantity("0x0000000000000004"), quantity("[N/A]")
    (Quantity(number=79810.0, unit='mib'), Quantity(number=4.0, unit=''), None)
    """
    text = text.strip()
    if text.startswith("0x"):
        try:
            return Quantity(float(int(text, 16)), "") if len(text) <= LONGEST_MASK else None
        except ValueError:
            return None
    match = _QUANTITY.fullmatch(text)
    number = float(match["number"].replace(",", "")) if match else LARGEST
    return Quantity(number, match["unit"].lower()) if match and abs(number) < LARGEST else None


def scale(unit: str, *, decimal: bool = True) -> float | None:
    """What a number in this unit is multiplied with to be bytes, 0..1, W, MHz or °C; None for a unit that is not known.

    Without `decimal` kB, MB and GB are powers of 1024, as a driver or a kernel means them.
    """
    if unit in DECIMAL:
        return DECIMAL[unit] if decimal else LETTERS[unit[0]]
    return BINARY.get(unit) or LETTERS.get(unit) or OTHERS.get(unit)


def header_name(text: str) -> Name:
    """The name in a header's cell: `memory.used [MiB]`, `rss (GiB)` and `rss_gib` alike.

    >>> header_name("memory.used [MiB]"), header_name("RSS_GiB"), header_name("power.draw")
    (Name(name='memory.used', unit='mib'), Name(name='rss', unit='gib'), Name(name='power.draw', unit=''))
    """
    match = _NAME.fullmatch(text.strip().strip("#").strip())
    name, unit = (match["name"].lower(), (match["unit"] or "").strip().lower()) if match else (text.strip().lower(), "")
    suffixed = None if unit else _SUFFIX.fullmatch(name)
    return Name(suffixed["name"], suffixed["unit"]) if suffixed else Name(name.replace(" ", "_"), unit)


def instant_of(text: str, day: Instant | None = None) -> Instant | None:
    """The instant that a cell or a line of its own writes; without a zone it is UTC, as in logs. `day`: of which a bare time is."""
    text = text.strip()
    if _DATED.fullmatch(text):
        return rfc3339(text.replace("/", "-").replace(",", ".").replace(" UTC", "Z").replace(" Z", "Z"))
    if _EPOCH.fullmatch(text):
        value = float(text)
        return Instant(round(value * (1e3 if value > 1e12 else 1e6)))
    match = _DAY_FIRST.fullmatch(text)
    if match and match["month"] in _MONTHS:
        return rfc3339(f"{match['year']}-{_MONTHS.index(match['month']) + 1:02d}-{int(match['day']):02d}T{match['time']}")
    if match := _KIBANA.fullmatch(text):
        return rfc3339(f"{match['year']}-{_month(match['month']):02d}-{int(match['day']):02d}T{match['time']}")
    if match := _CIVIL.fullmatch(text):
        return _civil(match)
    match = _TIME.fullmatch(text) if day is not None else None
    if match is None or day is None:
        return None
    date = datetime.fromtimestamp(day / 1e6, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + float((match["second"] or "0") + (match["part"] or ""))
    return Instant(instant(date) + round(seconds * 1e6))


def _month(name: str) -> int:
    """1..12; 0 for what is none."""
    return _MONTHS.index(name) + 1 if name in _MONTHS else 0


def _civil(match: re.Match[str]) -> Instant | None:
    """`25.11.2026 10:00`, `25/11/2026 10:00`, `11/25/2026 10:00`, `11-25-2026 10:00`; None where day and month can't be told apart."""
    first, second = int(match["first"]), int(match["second"])
    is_month_first = match["sign"] == "-" or (match["sign"] == "/" and second > 12)
    if match["sign"] == "/" and first <= 12 and second <= 12 and first != second:
        return None
    day, month = (second, first) if is_month_first else (first, second)
    time = match["time"].replace(",", ".")
    return rfc3339(f"{match['year']}-{month:02d}-{day:02d}T{time if time[1] != ':' else '0' + time}")
