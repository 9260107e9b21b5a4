"""A verdict as text for a terminal, as Markdown for a ticket, as JSON for a program."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from lensd_collectors.conventions import Stage, StageState

from lensd.memory.post_mortem import post_mortem_lines
from lensd.records import (
    SEVERITY_RANK,
    Course,
    Diagnosis,
    Evidence,
    Finding,
    NotEvaluated,
    PostMortem,
    RuledOut,
    Severity,
    StageTime,
    Verdict,
    Window,
)
from lensd.words import NAMES, clock, duration, in_words, missing

BAR: Final = 28  # columns of the waterfall
MOST_QUOTED: Final = 200  # characters of a quote in text; Markdown and JSON have all of it
MOST_RULED_OUT: Final = 8  # lines in text
MOST_FILES: Final = 20  # lines in text
MOST_OTHERS: Final = 6  # lines in text
MOST_LABELS: Final = 14  # of one line
MOST_BESIDE: Final = 5  # lines in text
FRONT_END_FROM_MS: Final = 1.0
COLOURS: Final = {"critical": "31;1", "warning": "33;1", "info": "32;1", "dim": "2", "bold": "1"}
OF_STATE: Final = {StageState.FAILED: "critical", StageState.SLOW: "warning"}


def as_json(diagnosis: Diagnosis) -> str:
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode()


def as_text(diagnosis: Diagnosis, *, colour: bool = False) -> str:
    """The verdict first, then the request, the six stages, the evidence, and what could not be told."""
    paint = _painter(colour)
    verdict = diagnosis.verdict
    lines = [f"{paint(verdict.severity, verdict.label)}  {_standing(verdict)}", _cause(verdict)]
    if verdict.fix:
        lines.append(f"fix: {verdict.fix}")
    if isinstance(diagnosis.window, Window):
        lines.append(f"this is of {_window(diagnosis.window)}")
    lines += ["", *_subject(diagnosis)]
    sections = {
        "": _waterfall(diagnosis, paint),
        "how it went": [f"  {name:<22}{said}" for name, said in _course(diagnosis)],
        "evidence": _findings(_shown(diagnosis), paint),
        "beside it": _cut([_short(f"  {line.text} ({_place(line)})") for line in _beside(diagnosis)], MOST_BESIDE, "--json"),
        "besides": _cut([f"  {line}" for line in _others(diagnosis)], MOST_OTHERS, "--json"),
        "out of memory": [f"  {line}" for line in _post_mortem(diagnosis)],
        "files": _files(diagnosis),
        "ruled out": _cut([f"  {line}" for line in _ruled_out(diagnosis.ruled_out)], MOST_RULED_OUT, "--json"),
        "could not tell": [f"  {line}" for line in _unknown(diagnosis.not_evaluated)],
    }
    for heading, body in sections.items():
        if body:
            lines += ["", *([paint("bold", heading)] if heading else []), *body]
    return "\n".join(map(_printable, lines)) + "\n"


def as_markdown(diagnosis: Diagnosis) -> str:
    """The same content for a ticket."""
    verdict = diagnosis.verdict
    lines = [f"## {verdict.label}", "", f"**{_cause(verdict)}**", "", f"{_standing(verdict).capitalize()}."]
    if verdict.fix:
        lines += ["", f"Fix: {verdict.fix}"]
    if isinstance(diagnosis.window, Window):
        lines += ["", f"This is of {_window(diagnosis.window)}."]
    lines += ["", *(f"- {line}" for line in _subject(diagnosis)), *(f"- {name}: {said}" for name, said in _course(diagnosis))]
    if diagnosis.timeline:
        lines += ["", "| stage | state | start | time | share | source |", "|---|---|---|---|---|---|"]
        lines += [_markdown_row(s, diagnosis) for s in diagnosis.timeline]
        if diagnosis.unattributed_ms:
            lines.append(
                f"| unattributed |  |  | {duration(diagnosis.unattributed_ms)} | {_share(diagnosis.unattributed_ms, diagnosis)} |  |"
            )
    for _, finding in _tree(_shown(diagnosis)):
        lines += ["", f"### {finding.label} ({_certainty(finding)})", "", *(f"- {_evidence(e)}" for e in finding.evidence if not e.beside)]
    if beside := _beside(diagnosis):
        lines += ["", "### Beside it", "", *(f"- {_evidence(line)}" for line in beside)]
    if others := _others(diagnosis):
        lines += ["", "### Besides", "", *(f"- {line}" for line in others)]
    if after := _post_mortem(diagnosis):
        lines += ["", "### Out of memory", "", *(f"- {line}" for line in after)]
    if diagnosis.ruled_out:
        lines += ["", "### Ruled out", "", *(f"- {line}" for line in _ruled_out(diagnosis.ruled_out))]
    if diagnosis.not_evaluated:
        lines += ["", "### Could not tell", "", *(f"- {line}" for line in _unknown(diagnosis.not_evaluated))]
    return "\n".join(map(_printable, lines)) + "\n"


def exit_status(diagnosis: Diagnosis, fail_on: Severity) -> int:
    """0 nothing wrong, 3 a finding at or above `fail_on`, 5 too little evidence."""
    if diagnosis.verdict.label == "inconclusive":
        return 5
    worst = [SEVERITY_RANK[f.severity] for f in diagnosis.findings if f.kind != "negative"]
    return 3 if worst and max(worst) >= SEVERITY_RANK[fail_on] else 0


def _painter(colour: bool) -> Callable[[str, str], str]:
    if not colour:
        return lambda _, text: text
    return lambda name, text: f"\x1b[{COLOURS[name]}m{_printable(text)}\x1b[0m"


def _printable(line: str) -> str:
    """Without control characters: ids and quotes come from outside, and a terminal obeys what it is sent."""
    if line.isprintable():
        return line
    return re.sub(r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;]{1,4}m)", "?", line).replace("\t", " ")


def _standing(verdict: Verdict) -> str:
    """How bad, how sure, where: "critical, certain, stage queue"."""
    severity = verdict.severity if verdict.severity is not Severity.INFO else ""
    stage = f"stage {NAMES.get(verdict.stage, verdict.stage)}" if verdict.stage != "none" else ""
    return ", ".join(filter(None, [severity, verdict.confidence, stage]))


def _cause(verdict: Verdict) -> str:
    """The sentence; where it names what is missing, in words."""
    if verdict.label != "inconclusive":
        return verdict.cause
    return re.sub(r"\b[a-z_]+\.[a-z_]+\b", lambda found: missing(found[0]), verdict.cause)


def _post_mortem(diagnosis: Diagnosis) -> list[str]:
    return post_mortem_lines(diagnosis.post_mortem) if isinstance(diagnosis.post_mortem, PostMortem) else []


def _shown(diagnosis: Diagnosis) -> Sequence[Finding]:
    return [f for f in diagnosis.findings if f.evidence]


def _beside(diagnosis: Diagnosis) -> list[Evidence]:
    """Of lines that no rule was decided by, those that are not quoted already."""
    every = [line for finding in diagnosis.findings for line in finding.evidence]
    quoted = {line.source for line in every if not line.beside}
    return [line for line in every if line.beside and line.source not in quoted]


def _subject(diagnosis: Diagnosis) -> list[str]:
    subject = diagnosis.subject
    if subject.kind == "files":
        read, count = sum(1 for f in diagnosis.files if f.records), len(diagnosis.files)
        return [f"{count} file{'' if count == 1 else 's'}, {read} of them understood"]
    parts = [f"request {subject.request_id or subject.trace_id}"]
    parts += [f"{name} {value}" for name, value in (("model", subject.model), ("key", subject.key_id), ("engine", subject.engine)) if value]
    began = f"started {clock(subject.started_at)}" if subject.started_at else "nobody knows when it started"
    if subject.outcome == "open":
        return ["  ".join(parts), f"open for {duration(diagnosis.total_ms)}, {began}"]
    if subject.outcome == "lost":
        return ["  ".join(parts), f"lost, last heard of {duration(diagnosis.total_ms)} after it began, {began}"]
    ended = (subject.outcome or "ended").replace("_", " ") + (f" (HTTP {subject.status})" if subject.status else "")
    took = f" after {duration(diagnosis.total_ms)}" if diagnosis.total_ms is not None else ""
    late = "" if subject.settled else " (not settled: the engine's record is still out)"
    return ["  ".join(parts), f"{ended}{took}, {began}{late}"]


def _window(window: Window) -> str:
    """ "start 3 of 3, from 2026-01-31 09:00:00 UTC (engine.log:120-340)"."""
    start = f"start {window.start} of {window.starts}" if window.start else ""
    if window.starts and not window.start:
        start = f"the time before the first of {window.starts} starts"
    times = list(dict.fromkeys(clock(at) for at in (window.from_at, window.to_at) if at))
    when = f"from {' to '.join(times)}" if times else ""
    source = f"({window.source})" if window.source else ""
    return " ".join(filter(None, [", ".join(filter(None, [start, when])), source]))


def _others(diagnosis: Diagnosis) -> list[str]:
    others = diagnosis.others if not isinstance(diagnosis.others, msgspec.UnsetType) else ()
    return [f"{other.label}{f', {_window(other.window)}' if other.window else ''}: {other.cause}" for other in others]


def _course(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """In the order in which people look; what is not told is left out."""
    course = diagnosis.course
    if not isinstance(course, Course):
        return []

    def said(text: str, ms: float | None) -> str:
        return text.format(duration(ms)) if ms is not None else ""

    ended = (course.outcome or "").replace("_", " ") + (f" (HTTP {course.status})" if course.status else "")
    no_token = not course.completion_tokens and course.outcome not in (None, "ok", "refused")
    no_token &= course.ttft_ms is None or course.completion_tokens == 0
    parts = {
        "request": [course.request_id or "", ended],
        "into the engine": [
            said("after {}", course.entered_ms),
            said("waited {} for a slot", course.queue_ms),
            _in_line(course),
        ],
        "first token": ["none was seen" if no_token else said("after {}", course.ttft_ms)],
        "speed": [
            said("{} a token", course.tpot_ms),
            f"{course.completion_tokens} tokens" if course.completion_tokens is not None else "",
            said("at most {} between two pieces", course.max_gap_ms),
            f"the engine made {course.tokens_per_s:,.0f} tokens/s" if course.tokens_per_s is not None else "",
        ],
        "limit": [said("the caller's was {}", course.client_timeout_ms), said("it took {}", course.total_ms)],
    }
    return [(name, ", ".join(filter(None, lines))) for name, lines in parts.items() if any(lines)]


def _in_line(course: Course) -> str:
    if course.most_waiting is None:
        return ""
    behind = f" behind {course.most_running:.0f} running" if course.most_running is not None else ""
    return f"up to {course.most_waiting:.0f} waited{behind}" if course.most_waiting else f"nobody waited{behind}"


def _waterfall(diagnosis: Diagnosis, paint: Callable[[str, str], str]) -> list[str]:
    total = diagnosis.total_ms or 0.0
    if not diagnosis.timeline:
        return []
    lines = [paint("bold", f"{'stage':<15}{'':<{BAR}}  {'time':>8}  share")]
    for stage in diagnosis.timeline:
        name = NAMES.get(stage.stage, stage.stage)
        if stage.duration_ms is None:
            lines.append(paint("dim", f"  {name:<13}{'':<{BAR}}  {stage.state.replace('_', ' ')}"))
            continue
        notes = [stage.state if stage.state != StageState.OK else "", "estimated" if stage.estimated else "", _front_end(stage, diagnosis)]
        note = ", ".join(filter(None, notes))
        line = f"  {name:<13}{_bar(stage, total)}  {_figures(stage.duration_ms, stage.exclusive_ms, diagnosis)}  {note}".rstrip()
        lines.append(paint(OF_STATE[stage.state], line) if stage.state in OF_STATE else line)
    if diagnosis.unattributed_ms:
        figures = _figures(diagnosis.unattributed_ms, diagnosis.unattributed_ms, diagnosis)
        lines.append(f"  {'unattributed':<13}{'':<{BAR}}  {figures}{_between(diagnosis)}")
    if diagnosis.clock_skew_ms:
        lines.append(f"  clocks of client and server differ by {duration(abs(diagnosis.clock_skew_ms))}; stages are shown corrected")
    if any((s.duration_ms or 0.0) - (s.exclusive_ms or 0.0) > 0.1 * total for s in diagnosis.timeline):
        lines.append(paint("dim", "  stages overlap: share counts each moment once, for the stage that explains it best"))
    return lines


def _front_end(stage: StageTime, diagnosis: Diagnosis) -> str:
    """How much of prefill passed before the engine took the request in, where it is known to be more than a moment."""
    if stage.stage != Stage.PREFILL or diagnosis.frontend_ms is None or diagnosis.frontend_ms < FRONT_END_FROM_MS:
        return ""
    return f"{duration(diagnosis.frontend_ms)} of it front end"


def _figures(ms: float | None, exclusive_ms: float | None, diagnosis: Diagnosis) -> str:
    return f"{duration(ms):>8}  {_share(exclusive_ms, diagnosis):>5}"


def _between(diagnosis: Diagnosis) -> str:
    """Where most of the unattributed time lies, when there is enough of it to ask."""
    largest = max(diagnosis.gaps, key=lambda gap: gap.duration_ms, default=None)
    if largest is None or largest.duration_ms < 0.05 * (diagnosis.total_ms or 0.0):
        return ""
    before, after = (NAMES.get(name, name) for name in largest.between)
    return f"  most between {before} and {after}"


def _bar(stage: StageTime, total: float) -> str:
    """The stage's place on the whole; nothing is drawn narrower than one column."""
    cells = [" "] * BAR
    for start, length in stage.segments:
        first = max(0, min(BAR - 1, int(start / total * BAR))) if total else 0
        last = max(first, min(BAR - 1, int((start + length) / total * BAR - 1e-9))) if total else first
        cells[first : last + 1] = ["▒" if stage.estimated else "█"] * (last + 1 - first)
    return "".join(cells)


def _share(ms: float | None, diagnosis: Diagnosis) -> str:
    """A part that rounds to nothing is not nothing."""
    total = diagnosis.total_ms
    if ms is None or not total:
        return ""
    return "<1%" if 0 < ms / total < 0.005 else f"{ms / total:.0%}"


def _findings(findings: Sequence[Finding], paint: Callable[[str, str], str]) -> list[str]:
    """As a tree: what follows from a finding stands under it, deeper."""
    lines = []
    for depth, finding in _tree(findings):
        pad = "    " * depth
        lines.append(f"  {pad}{'└ ' if depth else ''}{finding.label} ({_certainty(finding)})")
        for evidence in (line for line in finding.evidence if not line.beside):
            lines.append(f"    {pad}- {evidence.text}")
            if place := _place(evidence):
                lines.append(paint("dim", f"      {pad}{_short(place)}"))
    return lines


def _tree(findings: Sequence[Finding]) -> list[tuple[int, Finding]]:
    """Each with how deep it stands; one whose cause is not shown stands for itself."""
    labels = {finding.label for finding in findings}
    placed: list[tuple[int, Finding]] = []

    def place(finding: Finding, depth: int) -> None:
        if any(other is finding for _, other in placed):
            return
        placed.append((depth, finding))
        first = all(other is finding or other.label != finding.label for _, other in placed)
        for effect in findings if first else ():
            if effect.explained_by == finding.label and effect.label != finding.label:
                place(effect, depth + 1)

    for finding in findings:
        if finding.explained_by is None or finding.explained_by not in labels:
            place(finding, 0)
    for finding in findings:  # a circle hides nothing
        place(finding, 0)
    return placed


def _certainty(finding: Finding) -> str:
    return f"{finding.confidence}, explained by {finding.explained_by}" if finding.explained_by else str(finding.confidence)


def _files(diagnosis: Diagnosis) -> list[str]:
    """Those that gave something first."""
    files = sorted(diagnosis.files, key=lambda f: f.records == 0)
    return _cut([f"  {f.path}  {_read_as(f.kind, f.records, f.unread_lines)}" for f in files], MOST_FILES, "--json")


def _read_as(kind: str, records: int, unread: int) -> str:
    if not records:
        said = {"unknown": "not understood"}.get(kind, f"{kind}, nothing in it that is used")
        return kind if kind.startswith("unreadable") else said
    lines = f", {unread} line{'' if unread == 1 else 's'} not understood" if unread else ""
    return f"{kind}, {records} record{'' if records == 1 else 's'}{lines}"


def _cut(lines: list[str], most: int, all_of_them: str) -> list[str]:
    return lines if len(lines) <= most + 1 else [*lines[:most], f"  and {len(lines) - most} more ({all_of_them} shows all)"]


def _ruled_out(ruled_out: Iterable[RuledOut]) -> list[str]:
    """By the ground, since many share one."""
    by_ground: dict[str, list[str]] = {}
    for item in ruled_out:
        by_ground.setdefault(item.because, []).append(item.label)
    return [f"{_list(labels)}: {in_words(because)}" for because, labels in by_ground.items()]


def _list(labels: Sequence[str]) -> str:
    more = len(labels) - MOST_LABELS
    return ", ".join(labels) if more <= 1 else f"{', '.join(labels[:MOST_LABELS])} and {more} more"


def _unknown(not_evaluated: Iterable[NotEvaluated]) -> list[str]:
    """By what is missing, since that is what can be got: "without the time in queue: queue-saturation"."""
    by_missing: dict[tuple[str, ...], list[str]] = {}
    for item in not_evaluated:
        by_missing.setdefault(item.missing, []).append(item.label)
    return [f"without {' and '.join(map(missing, names)) or 'more evidence'}: {', '.join(labels)}" for names, labels in by_missing.items()]


def _short(line: str) -> str:
    return line if len(line) <= MOST_QUOTED else f"{line[:MOST_QUOTED]}…"


def _place(evidence: Evidence) -> str:
    return ": ".join(filter(None, [evidence.source, evidence.quote]))


def _evidence(evidence: Evidence) -> str:
    place = _place(evidence).replace("`", "'")
    return f"{evidence.text} (`{place}`)" if place else evidence.text


def _markdown_row(stage: StageTime, diagnosis: Diagnosis) -> str:
    state = ", ".join(filter(None, [stage.state, "estimated" if stage.estimated else "", _front_end(stage, diagnosis)])).replace("_", " ")
    share = _share(stage.exclusive_ms, diagnosis)
    name = NAMES.get(stage.stage, stage.stage)
    return f"| {name} | {state} | {duration(stage.start_ms)} | {duration(stage.duration_ms)} | {share} | {stage.source or ''} |"
