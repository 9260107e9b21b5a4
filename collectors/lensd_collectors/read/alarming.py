"""Lines of a start, and after an order to stop, that look like trouble and have no meaning of their own → events `engine.alarming`."""

import re
from itertools import islice
from pathlib import Path
from typing import Final

from lensd_collectors.read.lines import Pieces, unwrap
from lensd_collectors.rows import Event, Row
from lensd_collectors.scrub import scrub

NAME: Final = "engine.alarming"
MOST: Final = 20  # of one log
_TURNS: Final = ("engine.started", "engine.loading", "engine.ready", "engine.stopping")
_FARTHEST: Final = 20_000  # lines before the end of a start
_LONGEST: Final = 500
_WORDS: Final = re.compile(
    r"\b(?:[A-Z][a-z]+Warning|warn(?:ing)?|leak(?:ed|s)?|died|fail(?:ed|ure|s)?|errors?|exception"
    r"|deprecated|cannot|could not|unable to|not (?:found|available|supported)"
    r"|sub-?optimal|fall(?:ing|s)? ?back|hang|invalid|terminated|cancell?ed|traceback|killed|missing|no module named)\b",
    re.IGNORECASE,
)


def alarming(path: Path, rows: list[Row], name: str, engine: str | None) -> list[Row]:
    """Of a log: such lines before the end of its start, and after its last order to stop, in their order and at that event's instant."""
    ready = min((row for row in rows if isinstance(row, Event) and row.name == "engine.ready"), key=_number, default=None)
    told = max((row for row in rows if isinstance(row, Event) and row.name in _TURNS), key=_number, default=None)
    stop = told if told is not None and told.name == "engine.stopping" and _number(told) <= _FARTHEST else None
    start = ready if ready is not None and 1 < _number(ready) <= _FARTHEST else None
    if start is None and stop is None:
        return []
    known = {getattr(row, "src", None) for row in rows}
    found: list[Row] = []
    pieces = Pieces()
    with path.open("r", encoding="utf-8", errors="replace") as file:
        last = _FARTHEST if stop is not None else _number(start) - 1 if start is not None else 0
        for number, line in enumerate(islice(file, last), 1):
            whole = pieces.take(unwrap(line), number)
            near = start if start is not None and number < _number(start) else stop if stop is not None and number > _number(stop) else None
            if whole is None or near is None:
                continue
            src, text = f"{name}:{whole.number}", whole.text.strip()
            if src not in known and not whole.text[:1].isspace() and _WORDS.search(text) is not None and len(found) < MOST:
                event = Event(seen_at=near.seen_at, seq=whole.number, engine=near.engine or engine, name=NAME, severity="warning", src=src)
                event.line = scrub(text)[:_LONGEST]
                found.append(event)
    return found


def _number(row: Event) -> int:
    number = (row.src or "").rpartition(":")[2]
    return int(number) if number.isdigit() else 1 << 40
