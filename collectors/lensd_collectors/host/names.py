"""Which of the metrics that a dialect knows a server does not show, and why not."""

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

import msgspec

from lensd_collectors.dialects import Dialect, Metric

_PARTS: Final = re.compile(r"_(?:bucket|sum|count)$")
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*")

Version = tuple[int, ...]


class Why(StrEnum):
    TOO_OLD = "too-old"  # the server is older than the first version known to have it
    GONE = "gone"  # the server is newer than the name, or has let go of it
    FLAG = "flag"  # it comes with something that this server was not started with
    STATS_OFF = "stats-off"  # the server shows none of its own metrics: --disable-log-stats


class Lack(msgspec.Struct, frozen=True):
    """One name a server does not show; `since` and `flag` as the dialect has them."""

    name: str
    why: Why
    since: str | None
    flag: str | None


def lacking(scrape_names: Iterable[str], dialect: Dialect, version: str | None) -> tuple[Lack, ...]:
    """The dialect's names that a scrape lacks, in the dialect's order.

    `scrape_names` are the names of series as they stand in the scrape: a histogram's with `_bucket`, `_sum` or `_count`. `version` is
    the server's own word; where it gave none, the server is taken to be as old as the newest of the names that it shows.
    """
    shown = _shown(scrape_names, dialect)
    server = _version(version) or _oldest(dialect, shown)
    off = all(dialect.names[name].flag for name in shown)
    return tuple(
        Lack(metric.name, _why(metric, server, off), metric.since, metric.flag)
        for name, metric in dialect.names.items()
        if name not in shown
    )


def _shown(scrape_names: Iterable[str], dialect: Dialect) -> frozenset[str]:
    names = frozenset(scrape_names)
    return frozenset(name for name in names | {_PARTS.sub("", name) for name in names} if name in dialect.names)


def _why(metric: Metric, server: Version | None, off: bool) -> Why:
    since, until = _version(metric.since), _version(metric.until)
    if server and since and server < since:
        return Why.TOO_OLD
    if until and (server is None or server[: len(until)] > until):
        return Why.GONE
    if metric.flag:
        return Why.FLAG
    return Why.STATS_OFF if off else Why.GONE


def _oldest(dialect: Dialect, shown: Collection[str]) -> Version | None:
    """The oldest server that can show all of these names."""
    return max((since for name in shown if (since := _version(dialect.names[name].since))), default=None)


def _version(text: str | None) -> Version | None:
    """`0.10.2rc1` and `v0.10.2` → (0, 10, 2)."""
    found = _NUMBERS.search(text or "")
    return tuple(int(part) for part in found[0].split(".")) if found else None
