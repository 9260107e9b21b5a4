"""Of which start, and of what time, a finding in a folder is: a log may tell of several starts, and of a problem in each."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from lensd.diagnosis.scope import instant, microseconds
from lensd.records import Finding, Other, Verdict, Window
from lensd.store.interface import Cursor

MOST_OTHERS: Final = 20
MOST_LOOKS: Final = 3  # starts that are judged by themselves
STARTED: Final = "engine.started"
_DATED: Final = ("events", "engine_samples", "gpu_samples", "http_exchanges", "points")


Look = Callable[[int, int | None], Sequence[Finding]]
"""What the rules find between two instants (microseconds since the epoch; None: to the end), best first."""


class Start(NamedTuple):
    line: int
    at: datetime | None


class Told(NamedTuple):
    """What is said beside the verdict; unset where there is one start and one problem."""

    window: Window | msgspec.UnsetType = msgspec.UNSET
    others: tuple[Other, ...] | msgspec.UnsetType = msgspec.UNSET


def tell(cursor: Cursor, verdict: Verdict, findings: Sequence[Finding], lines: Mapping[str, int], look: Look) -> Told:
    """`findings`: as concluded, best first, cites unresolved. `lines`: how many each file has, where it is known.

    The verdict stands on the first finding of its label. Of other starts of the same log it is looked at the latest, one by one.
    """
    starts = starts_of(cursor)
    own = next((finding for finding in findings if finding.label == verdict.label and finding.kind == "cause"), None)
    if own is None:
        return Told()
    window = window_of(cursor, own, starts, lines)
    others = [_other(cursor, f, starts, lines) for f in findings if f is not own and f.kind == "cause" and f.explained_by is None]
    name = (window.source or "").rpartition(":")[0]
    if window.start is not None:
        seen = {window.start, *(o.window.start for o in others if o.window and o.label == own.label)}
        others += [
            Other(label=found.label, cause=found.cause, window=_of_start(name, starts[name][nth - 1].line, starts[name], lines.get(name)))
            for nth in [nth for nth in range(len(starts[name]), 0, -1) if nth not in seen][:MOST_LOOKS]
            if (found := _in_start(starts[name], nth, look)) is not None
        ]
    if not others and (window.starts or 1) < 2:
        return Told()
    return Told(window, tuple(others[:MOST_OTHERS]))


def _in_start(starts: Sequence[Start], nth: int, look: Look) -> Finding | None:
    """The root of what is found in one start alone; None for one that is not dated, and where nothing is."""
    begun, following = starts[nth - 1].at, starts[nth].at if nth < len(starts) else None
    if begun is None or (nth < len(starts) and following is None):
        return None
    found = look(microseconds(begun), microseconds(following) - 1 if following is not None else None)
    return next((finding for finding in found if finding.kind == "cause" and finding.explained_by is None), None)


def _other(cursor: Cursor, finding: Finding, starts: Mapping[str, Sequence[Start]], lines: Mapping[str, int]) -> Other:
    return Other(label=finding.label, cause=finding.cause, window=window_of(cursor, finding, starts, lines))


def starts_of(cursor: Cursor) -> dict[str, list[Start]]:
    """By file, in the order of its lines."""
    found: dict[str, list[Start]] = {}
    rows = cursor.execute("select src, seen_at from events where name = $name and src is not null", {"name": STARTED}).fetchall()
    for src, at in rows:
        name, _, line = src.rpartition(":")
        if line.isdigit():
            found.setdefault(name, []).append(Start(int(line), at))
    return {name: sorted(starts, key=lambda start: start.line) for name, starts in found.items()}


def window_of(cursor: Cursor, finding: Finding, starts: Mapping[str, Sequence[Start]], lines: Mapping[str, int]) -> Window:
    """The start in which the first of its cited lines lies that is in a log of several; else from its first sign to its last."""
    places = [place for line in finding.evidence if line.source and (place := _place(line.source)) is not None]
    for file, number in places:
        if len(starts.get(file, ())) > 1:
            return _of_start(file, number, starts[file], lines.get(file))
    first, last = _extent(cursor, finding)
    name = places[0][0] if places else ""
    numbers = [number for other, number in places if other == name]
    source = f"{name}:{min(numbers)}-{max(numbers)}" if len({*numbers}) > 1 else f"{name}:{numbers[0]}" if numbers else None
    return Window(from_at=_text(first), to_at=_text(last), source=source)


def _of_start(name: str, number: int, starts: Sequence[Start], most: int | None) -> Window:
    nth = bisect_right([start.line for start in starts], number)
    begun = starts[nth - 1] if nth else Start(1, None)
    following = starts[nth] if nth < len(starts) else None
    end = str(following.line - 1) if following is not None else str(most) if most is not None else ""
    return Window(
        from_at=_text(begun.at),
        to_at=_text(following.at) if following is not None else None,
        source=f"{name}:{begun.line}-{end}",
        start=nth or None,
        starts=len(starts),
    )


def _extent(cursor: Cursor, finding: Finding) -> tuple[datetime | None, datetime | None]:
    cited = list(dict.fromkeys(line.source.rpartition("#")[0] for line in finding.evidence if line.source and "#" in line.source))
    if not cited:
        since = instant(finding.since_at) if finding.since_at is not None else None
        return since, None
    union = " union all ".join(f"select src, seen_at from {table}" for table in _DATED)
    sql = f"select min(seen_at), max(seen_at) from ({union}) where src in (select unnest($cited))"
    [(first, last)] = cursor.execute(sql, {"cited": cited}).fetchall()
    return first, last


def _place(cite: str) -> tuple[str, int] | None:
    name, _, line = cite.rpartition("#")[0].rpartition(":")
    return (name, int(line)) if name and line.isdigit() else None


def _text(at: datetime | None) -> str | None:
    return f"{at.isoformat(timespec='milliseconds')}Z" if at is not None else None
