"""A runbook as text, for tests that break one thing in it."""

from pathlib import Path

FRONT = """\
title: A thing that happens
kind: cause
severity: warning
stage: queue
scope: request
status: stable
needs: [subjects.queue_ms]
params: {least_ms: 10}
confidence: likely
explains: []
evidence:
  - "waited {queue_ms:.0f} ms"
fix: do something
"""
SQL = "select request_id, engine, queue_ms, cite(src, 'queue_ms') as queue_cite from subjects where queue_ms > $least_ms"
CASES = """\
- case: a
  expect: fires
  subjects: [{request_id: r1, queue_ms: 100, src: "s:1"}]
- case: b
  expect: quiet
  subjects: [{request_id: r1, queue_ms: 1, src: "s:1"}]
- case: c
  expect: unknown
  missing: [subjects.queue_ms]
  subjects: [{request_id: r1, src: "s:1"}]
"""
TEXT = "Some text.\n"
HEADINGS = ("Meaning", "Impact", "Query", "Diagnosis", "Mitigation", "Not this")


def write(folder: Path, name: str = "thing", *, front: str = FRONT, sql: str = SQL, cases: str | None = CASES, headings=HEADINGS) -> Path:
    """Writes `<name>.md` and its cases; gives the runbook's path."""
    body = "".join(f"\n## {heading}\n" + (f"```sql\n{sql}\n```\n" if heading == "Query" else TEXT) for heading in headings)
    path = folder / f"{name}.md"
    path.write_text(f"---\n{front}---\n{body}")
    if cases is not None:
        path.with_suffix(".cases.yaml").write_text(cases)
    return path
