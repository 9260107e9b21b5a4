"""What is visible of an engine, as text for a terminal."""

import textwrap
from typing import Final

from lensd import rungs
from lensd.attach.see import Seen

STAGES: Final = {"auth_routing": "auth/routing"}
HIGHEST: Final = 5
WIDTH: Final = 100


def as_text(seen: Seen) -> str:
    """The engine, its rung, what is seen of each stage, the labels and ids, and the one line that adds more."""
    lines = [_engine(seen)]
    if seen.log:
        lines.append(f"log {seen.log}")
    lines += ["", _rung(seen), ""]
    lines += [f"  {STAGES.get(stage, stage):<14}{source or 'not observed'}" for stage, source in seen.stages.items()]
    if seen.frontend:
        lines.append(f"  {'front end':<14}{seen.frontend} (the first part of prefill)")
    lines += ["", *_wrapped("labels", ", ".join(seen.labels) or "none")]
    lines.append(f"ids     {'; '.join(seen.ids) or 'none: lensd diagnose ID exits with 5'}")
    if seen.because:
        lines += ["", *(f"- {reason}" for reason in seen.because)]
    if seen.next is not None:
        lines += ["", f"next, rung {seen.next.rung}, {seen.next.name}: adds {seen.next.adds}", f"  {seen.next.line}", _where(seen)]
    elif seen.rung == HIGHEST:
        lines += ["", "nothing more to add"]
    return "\n".join(_printable(line) for line in lines) + "\n"


def _engine(seen: Seen) -> str:
    version = f"{seen.kind} {seen.version}" if seen.version else f"{seen.kind}, version not known"
    length = f", {seen.max_model_len} tokens" if seen.max_model_len else ""
    return f"{seen.engine}: {version} at {seen.url}, model {', '.join(seen.models) or 'not known'}{length}"


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{name:<8}", subsequent_indent=" " * 8, break_on_hyphens=False)


def _rung(seen: Seen) -> str:
    names = [each.name for each in (*rungs.RUNGS, rungs.HOST) if each.key in seen.rungs]
    part = " in part" if seen.rung == 3 and not {"3a", "3b"} <= set(seen.rungs) else ""
    return f"rung {seen.rung} of {HIGHEST}{part}: {', '.join(names)}" if seen.rung >= 0 else "no rung: nothing of it can be seen"


def _where(seen: Seen) -> str:
    assert seen.next is not None
    shell = seen.next.where.startswith("shell")
    into = seen.next.where.removeprefix("shell").strip() if shell else f"into {seen.next.where}"
    dots = "... is what it is started with now" if "..." in seen.next.line else ""
    return f"  ({'; '.join(filter(None, [into, dots]))})"


def _printable(line: str) -> str:
    """Names come from outside, and a terminal obeys what it is sent."""
    return "".join(ch if ch.isprintable() else "?" for ch in line)
