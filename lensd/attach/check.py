"""One line of `lensd doctor`, and all of them."""

from enum import StrEnum

from lensd.records import SCHEMA_VERSION, Record


class Health(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(Record, frozen=True, kw_only=True):
    """One line. `about` is what was looked at, `do` what mends it."""

    about: str
    health: Health
    said: str
    do: str | None = None
    engine: str | None = None
    names: tuple[str, ...] = ()  # of metrics, where the line is about some


def ok(about: str, said: str, names: tuple[str, ...] = ()) -> Check:
    return Check(about=about, health=Health.OK, said=said, names=names)


def warn(about: str, said: str, do: str | None = None, names: tuple[str, ...] = ()) -> Check:
    return Check(about=about, health=Health.WARN, said=said, do=do, names=names)


def fail(about: str, said: str, do: str | None = None) -> Check:
    return Check(about=about, health=Health.FAIL, said=said, do=do)


class Report(Record, frozen=True, kw_only=True):
    """All lines, as `lensd doctor --json` prints them."""

    schema_version: int = SCHEMA_VERSION
    worst: Health
    checks: tuple[Check, ...]


def report(checks: list[Check]) -> Report:
    found = {check.health for check in checks}
    return Report(worst=next((h for h in (Health.FAIL, Health.WARN) if h in found), Health.OK), checks=tuple(checks))


def as_text(checks: Report) -> str:
    """A line each, what to do below it."""
    lines = []
    for check in checks.checks:
        about = f"{check.engine} {check.about}" if check.engine else check.about
        lines.append(f"{check.health:<5} {about}: {check.said}")
        if check.do:
            lines.append(f"      {check.do}")
    return "".join(f"{''.join(ch if ch.isprintable() else '?' for ch in line)}\n" for line in lines)
