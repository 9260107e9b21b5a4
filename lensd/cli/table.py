"""Rows of structs as an aligned table or as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec


def print_table(items: Sequence[Any], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print to stdout; numbers of milliseconds are rounded, a value that is not known is a dash."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode({"items": items}), indent=2).decode())
        return
    if not items:
        print(empty)
        return
    cells = [[_text(getattr(item, column)) for column in columns] for item in items]
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    for row in [list(columns), *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
