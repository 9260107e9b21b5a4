"""Rows of structs as an aligned table."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Columns = Mapping[str, str | Callable[[Any], Any]]
"""Heading to the field it shows, or to what makes its text."""


def print_table(items: Sequence[Any], columns: Columns, *, empty: str) -> None:
    """Print to stdout; a value that is not known is a dash."""
    if not items:
        print(empty)
        return
    rows = [[_text(getattr(item, shown) if isinstance(shown, str) else shown(item)) for shown in columns.values()] for item in items]
    rows.insert(0, list(columns))
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def clock(at: str | int | None) -> str:
    """An instant (RFC 3339, or microseconds since the epoch) as people read it, in UTC: 2026-01-31 09:00:00."""
    if at is None:
        return ""
    moment = datetime.fromtimestamp(at / 1e6, UTC) if isinstance(at, int) else datetime.fromisoformat(at).astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _text(value: Any) -> str:
    """In one line and without control characters, whatever a caller put into an id."""
    return "".join(ch if ch.isprintable() else "?" for ch in str(value)) if value not in (None, "") else "-"
