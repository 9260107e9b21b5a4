"""Settings of every kind in one file: command lines, environment, manifests, values, configuration of proxies, diffs of them → facts."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from lensd_collectors.read import flags
from lensd_collectors.read.lines import Clock
from lensd_collectors.read.outline import Outline
from lensd_collectors.read.strays import CALLERS, Strays, any_anchor, anywhere
from lensd_collectors.rows import ConfigFact, Event, Row

_DIFF: Final = re.compile(r"^(?:@@ -\d|diff [-\w$<(]|--- \S|\d+(?:,\d+)?[acd]\d+)")
_REPLACED: Final = re.compile(  # what is left of one without its head
    r"^-(\s*(?:- +)?[\w.\"'-]+(?:\s*[:=]|(?<=\w)\s)).*\n(?:-.*\n){0,40}(?:\+.*\n){0,40}?\+\1", re.MULTILINE
)
_FLAG: Final = re.compile(r"--[a-z]")
_NEAR: Final = 40  # lines between the old and the new of one change
CHANGED: Final = "deploy.changed"


class SettingRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def is_settings(lines: Sequence[str]) -> bool:
    """Whether one of the lines sets something of what stands around an engine."""
    outline = Outline()
    for line in lines:
        for text in (line, *outline.of(line)):
            for dialect in (one for one in anywhere() if one.name != CALLERS):
                if any_anchor(dialect.name).search(text) and any(
                    pattern.into == "config_facts" and pattern.search(text) for pattern in dialect.events
                ):
                    return True
    return False


def read_settings(text: str, *, name: str, engine: str | None = None, clock: Clock | None = None) -> SettingRows:
    """Facts of all lines. Of a diff the new value is the fact and says what it was; that it changed is an event on both lines."""
    given = flags.read_flags(text, name=name, engine=engine)
    strays = Strays(name, engine, of_callers=True, clock=clock)
    lines = text.split("\n")
    known = {(row.src or "").rpartition(":")[2] for row in given.rows if isinstance(row, ConfigFact)}
    others: list[Row] = []
    unread = 0
    for number, line in enumerate(lines, 1):
        found = strays.read(line, number, None) if line.strip() else []
        others += found or ()
        unread += not found and str(number) not in known and bool(line.strip()) and not line.lstrip().startswith(("#", "$", "//"))
    rows = [*given.rows, *others]
    if is_diff(text):
        rows = changed(rows, lines, name)
    rows += _buffering(rows)
    return SettingRows(rows=rows, unread_lines=unread)


def is_diff(text: str) -> bool:
    """Whether lines of it were replaced by others."""
    return any(_DIFF.match(line) for line in text.split("\n")) or (_REPLACED.search(text) or flags.SPLIT.search(text)) is not None


def _buffering(rows: Sequence[Row]) -> list[Row]:
    """nginx holds back what it passes on unless it is told not to."""
    facts = {row.name: row for row in reversed(rows) if isinstance(row, ConfigFact) and row.subject == "gateway"}
    passed = facts.get("proxy_buffers") or facts.get("proxy_buffer_size") or facts.get("proxy_pass")
    if passed is None or "proxy_pass" not in facts or "proxy_buffering" in facts:
        return []
    return [ConfigFact(subject="gateway", name="proxy_buffering", value="on", src=passed.src, origin=passed.origin)]


def changed(rows: list[Row], lines: Sequence[str], name: str) -> list[Row]:
    """Rows of a diff's text: an old value goes to the fact that replaces it, or says that the setting is gone."""
    kept: list[Row] = []
    old: dict[tuple[str | None, str | None], ConfigFact] = {}
    new: dict[tuple[str | None, str | None], ConfigFact] = {}
    for row in rows:
        side = _side(row, lines) if isinstance(row, ConfigFact) else " "
        if isinstance(row, ConfigFact) and side == "-":
            old[row.subject, row.name] = row
        elif isinstance(row, ConfigFact) and side == "+":
            new[row.subject, row.name] = row
            kept.append(row)
        else:
            kept.append(row)
    for key, before in old.items():
        after = new.get(key)
        if after is None:
            kept.append(ConfigFact(subject=before.subject, name=before.name, was=before.value, src=before.src, origin=before.origin))
        elif after.value != before.value:
            after.was = before.value
    for fact in new.values():
        replaced = old.get((fact.subject, fact.name))
        was = replaced.value if replaced is not None else fact.was
        if was is not None and was != fact.value:
            kept += [_event(fact, was, fact.src, lines)]
            line = replaced.src if replaced is not None else _line_of(fact, was, lines, name)
            kept += [_event(fact, was, line, lines)] if line is not None else []
    return kept


def _event(fact: ConfigFact, was: str, src: str | None, lines: Sequence[str]) -> Event:
    number = int((src or ":0").rpartition(":")[2])
    fields = {"subject": fact.subject, "what": fact.name, "was": was, "value": fact.value}
    return Event(
        seen_at=fact.seen_at,
        seq=number,
        name=CHANGED,
        severity="info",
        fields=msgspec.json.encode({key: value for key, value in fields.items() if value is not None}).decode(),
        line=lines[number - 1].strip()[:500] if 0 < number <= len(lines) else None,
        src=src,
    )


def _side(row: ConfigFact, lines: Sequence[str]) -> str:
    """A flag that begins a line was not taken away."""
    number = int((row.src or ":0").rpartition(":")[2])
    line = lines[number - 1] if 0 < number <= len(lines) else " "
    first = " " if _FLAG.match(line) else line[:1]
    return {"<": "-", ">": "+"}.get(first, first)


def _line_of(fact: ConfigFact, was: str, lines: Sequence[str], name: str) -> str | None:
    """The line of the old value of a fact that was read together with it."""
    number = int((fact.src or ":0").rpartition(":")[2])
    for at in range(max(1, number - _NEAR), min(len(lines), number + _NEAR) + 1):
        line = lines[at - 1]
        if line[:1] in ("-", "<") and was in line and (fact.name or "").split("_")[-1] in line.replace("-", "_"):
            return f"{name}:{at}"
    return None
