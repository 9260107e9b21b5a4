"""A verdict as text for a terminal, as Markdown for a ticket, as JSON for a program."""

from collections.abc import Callable, Sequence

import msgspec
from lensd_collectors.conventions import StageState

from lensd.records import SEVERITY_RANK, Diagnosis, Evidence, Finding, Severity, StageTime

BAR = 28  # columns of the waterfall
NAMES = {"auth_routing": "auth/routing"}
COLOURS = {"critical": "31;1", "warning": "33;1", "info": "32;1", "dim": "2", "bold": "1"}


def as_json(diagnosis: Diagnosis) -> str:
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode()


def as_text(diagnosis: Diagnosis, *, colour: bool = False) -> str:
    """The verdict first, then the request, the six stages, the evidence, and what could not be told."""
    paint = _painter(colour)
    verdict, found = diagnosis.verdict, _shown(diagnosis)
    lines = [
        paint(verdict.severity, f"{verdict.label}") + f"  stage {NAMES.get(verdict.stage, verdict.stage)}, {verdict.confidence}",
        verdict.cause,
    ]
    if verdict.fix:
        lines.append(f"fix: {verdict.fix}")
    lines += ["", *_subject(diagnosis)]
    if diagnosis.timeline:
        lines += ["", *_waterfall(diagnosis, paint)]
    if found:
        lines += ["", paint("bold", "evidence"), *_findings(found, paint)]
    if diagnosis.files:
        lines += [
            "",
            paint("bold", "files"),
            *(f"  {f.path}  {f.kind}, {f.records} records{_unread(f.unread_lines)}" for f in diagnosis.files),
        ]
    if diagnosis.ruled_out:
        lines += ["", paint("bold", "ruled out"), *(f"  {r.label}: {r.because}" for r in diagnosis.ruled_out)]
    if diagnosis.not_evaluated:
        lines += ["", paint("bold", "could not tell"), *(f"  {n.label}: no {', '.join(n.missing)}" for n in diagnosis.not_evaluated)]
    return "\n".join(lines) + "\n"


def as_markdown(diagnosis: Diagnosis) -> str:
    """The same content for a ticket."""
    verdict = diagnosis.verdict
    lines = [f"## {verdict.label}", "", f"**{verdict.cause}**", "", f"Stage {verdict.stage}, {verdict.severity}, {verdict.confidence}."]
    if verdict.fix:
        lines += ["", f"Fix: {verdict.fix}"]
    lines += ["", *(f"- {line}" for line in _subject(diagnosis))]
    if diagnosis.timeline:
        lines += ["", "| stage | state | start | time | share | source |", "|---|---|---|---|---|---|"]
        lines += [_markdown_row(s, diagnosis.total_ms or 0.0) for s in diagnosis.timeline]
        if diagnosis.unattributed_ms:
            lines.append(
                f"| unattributed |  |  | {duration(diagnosis.unattributed_ms)} | {_share(diagnosis.unattributed_ms, diagnosis)} |  |"
            )
    for finding in _shown(diagnosis):
        under = f" (explained by {finding.explained_by})" if finding.explained_by else ""
        lines += ["", f"### {finding.label}{under}", "", *(f"- {_evidence(e)}" for e in finding.evidence)]
    if diagnosis.ruled_out:
        lines += ["", "### Ruled out", "", *(f"- {r.label}: {r.because}" for r in diagnosis.ruled_out)]
    if diagnosis.not_evaluated:
        lines += ["", "### Could not tell", "", *(f"- {n.label}: no {', '.join(n.missing)}" for n in diagnosis.not_evaluated)]
    return "\n".join(lines) + "\n"


def exit_status(diagnosis: Diagnosis, fail_on: Severity) -> int:
    """0 nothing wrong, 3 a finding at or above `fail_on`, 5 too little evidence."""
    if diagnosis.verdict.label == "inconclusive":
        return 5
    worst = [SEVERITY_RANK[f.severity] for f in diagnosis.findings if f.kind != "negative"]
    return 3 if worst and max(worst) >= SEVERITY_RANK[fail_on] else 0


def duration(ms: float | None) -> str:
    """Milliseconds as people say them.

    >>> duration(412.4), duration(12345.0), duration(0.21)
    ('412 ms', '12.3 s', '0.2 ms')
    """
    if ms is None:
        return ""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"


def _painter(colour: bool) -> Callable[[str, str], str]:
    if not colour:
        return lambda _, text: text
    return lambda name, text: f"\x1b[{COLOURS[name]}m{text}\x1b[0m"


def _shown(diagnosis: Diagnosis) -> Sequence[Finding]:
    return [f for f in diagnosis.findings if f.evidence]


def _subject(diagnosis: Diagnosis) -> list[str]:
    subject = diagnosis.subject
    if subject.kind == "files":
        return [f"{len(diagnosis.files)} file(s)"]
    parts = [f"request {subject.request_id or subject.trace_id}"]
    parts += [f"{name} {value}" for name, value in (("model", subject.model), ("key", subject.key_id), ("engine", subject.engine)) if value]
    ended = f"{subject.outcome}" + (f" {subject.status}" if subject.status else "")
    lines = ["  ".join(parts), f"{ended} after {duration(diagnosis.total_ms)}, started {subject.started_at}"]
    if subject.outcome == "open":
        lines[1] = f"open for {duration(diagnosis.total_ms)}, started {subject.started_at}"
    elif not subject.settled:
        lines[1] += " (not settled: the engine's record is still out)"
    return lines


def _waterfall(diagnosis: Diagnosis, paint: Callable[[str, str], str]) -> list[str]:
    total = diagnosis.total_ms or 0.0
    lines = []
    for stage in diagnosis.timeline:
        name = NAMES.get(stage.stage, stage.stage)
        if stage.duration_ms is None:
            lines.append(paint("dim", f"  {name:<13}{'':<{BAR}}  {stage.state.replace('_', ' ')}"))
            continue
        note = " ".join(filter(None, [stage.state if stage.state != StageState.OK else "", "estimated" if stage.estimated else ""]))
        line = f"  {name:<13}{_bar(stage, total)}  {duration(stage.duration_ms):>8} {_share(stage.exclusive_ms, diagnosis):>5}  {note}"
        lines.append(paint("critical", line.rstrip()) if stage.state == StageState.FAILED else line.rstrip())
    if diagnosis.unattributed_ms:
        lines.append(
            f"  {'unattributed':<13}{'':<{BAR}}  {duration(diagnosis.unattributed_ms):>8} {_share(diagnosis.unattributed_ms, diagnosis):>5}"
        )
    if diagnosis.clock_skew_ms:
        lines.append(f"  clocks of client and server differ by {duration(abs(diagnosis.clock_skew_ms))}; stages are shown corrected")
    return lines


def _bar(stage: StageTime, total: float) -> str:
    """The stage's place on the whole; nothing is drawn narrower than one column."""
    cells = [" "] * BAR
    for start, length in stage.segments:
        first = min(BAR - 1, int(start / total * BAR)) if total else 0
        last = min(BAR - 1, int((start + length) / total * BAR - 1e-9)) if total else 0
        cells[first : max(first, last) + 1] = ["▒" if stage.estimated else "█"] * (max(first, last) + 1 - first)
    return "".join(cells)


def _share(ms: float | None, diagnosis: Diagnosis) -> str:
    total = diagnosis.total_ms
    return f"{ms / total:.0%}" if ms is not None and total else ""


def _findings(findings: Sequence[Finding], paint: Callable[[str, str], str]) -> list[str]:
    lines = []
    for finding in findings:
        under = f", explained by {finding.explained_by}" if finding.explained_by else ""
        lines.append(f"  {finding.label} ({finding.confidence}{under})")
        for evidence in finding.evidence:
            lines.append(f"    - {evidence.text}")
            if evidence.quote or evidence.source:
                lines.append(paint("dim", f"      {_place(evidence)}"))
    return lines


def _place(evidence: Evidence) -> str:
    return ": ".join(filter(None, [evidence.source, evidence.quote]))


def _evidence(evidence: Evidence) -> str:
    place = _place(evidence)
    return f"{evidence.text} (`{place}`)" if place else evidence.text


def _markdown_row(stage: StageTime, total: float) -> str:
    state = f"{stage.state}{', estimated' if stage.estimated else ''}".replace("_", " ")
    share = f"{stage.exclusive_ms / total:.0%}" if stage.exclusive_ms is not None and total else ""
    return f"| {stage.stage} | {state} | {duration(stage.start_ms)} | {duration(stage.duration_ms)} | {share} | {stage.source or ''} |"


def _unread(lines: int) -> str:
    return f", {lines} lines not understood" if lines else ""
