"""What incidents need to know of runbooks and of traffic."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, Protocol

from lensd.records import Finding, Record


class Hold(Protocol):
    @property
    def open_after(self) -> timedelta: ...
    @property
    def close_after(self) -> timedelta: ...


class Gate(Protocol):
    @property
    def min_requests(self) -> int: ...
    @property
    def within(self) -> timedelta: ...
    @property
    def min_share(self) -> float: ...


class Rule(Protocol):
    """The part of a runbook that decides about incidents; `alert` False: it never opens one."""

    @property
    def label(self) -> str: ...
    @property
    def scope(self) -> Literal["request", "window"]: ...
    @property
    def status(self) -> Literal["draft", "stable", "retired"]: ...
    @property
    def hold(self) -> Hold: ...
    @property
    def alert(self) -> "Gate | Literal[False]": ...


class Served(Record, frozen=True, kw_only=True):
    """How many requests were settled since the last tick, of one engine, model and key: what shares are taken of."""

    count: int
    engine: str | None = None
    model: str | None = None
    key_id: str | None = None


Rules = Mapping[str, Rule]
"""Runbooks by id."""


def counts(finding: Finding, runbooks: Rules) -> bool:
    """Only stable rules open incidents; a negative is a ground for health."""
    rule = runbooks.get(finding.runbook)
    return rule is not None and rule.status == "stable" and finding.kind != "negative"


def twin_labels(runbooks: Rules) -> frozenset[str]:
    """Labels that two files give: one sees requests, one samples."""
    labels = [rule.label for rule in runbooks.values() if rule.status == "stable"]
    return frozenset(label for label in labels if labels.count(label) > 1)


def us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
