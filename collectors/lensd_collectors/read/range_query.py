"""Answers of Prometheus' `/api/v1/query_range` and `/api/v1/query`, one document or one a line → rows of a scrape an instant."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from lensd_collectors.read.prometheus import rows_of_scrape
from lensd_collectors.read.samples import Series
from lensd_collectors.rows import Instant, Row

MARK: Final = re.compile(r'"resultType"\s*:\s*"(?:matrix|vector)"')


class RangeRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def read_range(text: str, *, name: str, engine: str | None = None) -> RangeRows:
    """Rows of all series with a name; `src` is the line on which the answer begins. An instant is seconds since 1970."""
    scrapes: dict[Instant, list[Series]] = {}
    at, unread = 0, 0
    decoder = json.JSONDecoder()
    while (at := text.find("{", at)) >= 0:
        number = text.count("\n", 0, at) + 1
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            unread += 1
            break
        for one in _results(document):
            labels = {key: str(label) for key, label in one["metric"].items() if key != "__name__"}
            for when, value in _readings(one):
                scrapes.setdefault(when, []).append(Series(one["metric"]["__name__"], labels, value, number, when))
    rows: list[Row] = []
    for seq, (when, series) in enumerate(sorted(scrapes.items())):
        rows += rows_of_scrape(series, at=when, seq=seq, name=name, engine=engine)
    return RangeRows(rows=rows, unread_lines=unread)


def _results(document: Any) -> list[dict[str, Any]]:
    data = document.get("data") if isinstance(document, dict) else None
    results = data.get("result") if isinstance(data, dict) else None
    found = [one for one in results if isinstance(one, dict)] if isinstance(results, list) else []
    return [one for one in found if isinstance(one.get("metric"), dict) and isinstance(one["metric"].get("__name__"), str)]


def _readings(one: dict[str, Any]) -> Iterator[tuple[Instant, float]]:
    pairs = one.get("values", [one.get("value")])
    for pair in pairs if isinstance(pairs, list) else []:
        try:
            at, value = pair
            yield Instant(round(float(at) * 1e6)), float(value)
        except (TypeError, ValueError, OverflowError):
            continue
