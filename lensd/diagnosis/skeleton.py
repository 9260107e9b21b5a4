"""The two files of a new runbook: all that `lensd runbooks check` asks for, with one line each that says what to write there."""

import re
from pathlib import Path
from typing import Final

from lensd.errors import RunbookError

ID: Final = re.compile(r"[a-z][a-z0-9-]*[a-z0-9](?:@window)?")

_FRONT: Final = {
    "request": """scope: request
status: draft
asks: total_ms > 10000  # a cheap condition on subjects, never narrower than the rule: where it holds of none, the rule is not asked
needs: [subjects.total_ms]
params: {slow: 10000}
confidence: possible
evidence:
  - "took {total_ms:.0f} ms"
""",
    "window": """scope: window
window: 10m
status: draft
needs: [engine_samples.waiting]
params: {most_waiting: 100}
confidence: possible
hold: {open_after: 2m, close_after: 5m}
evidence:
  - "{waiting:.0f} requests waiting"
""",
}
_QUERY: Final = {
    "request": """select request_id, total_ms,
       cite(src, 'total_ms') as total_cite
from subjects
where total_ms > $slow and started_at between $from and $to
""",
    "window": """select engine, model, max(waiting) as waiting, min(seen_at) as since_at,
       cite(arg_max(src, waiting), 'waiting') as waiting_cite
from engine_samples
where seen_at between $from and $to
group by all
having max(waiting) > $most_waiting
""",
}
_CASES: Final = {
    "request": """- case: a request that it must name
  expect: fires
  evidence: ["took 60000 ms"]
  subjects:
    - {request_id: r-1, total_ms: 60000.0}

- case: the nearest look-alike, of which it must say nothing
  expect: quiet
  subjects:
    - {request_id: r-1, total_ms: 800.0}

- case: without what it needs it cannot tell
  expect: unknown
  missing: [subjects.total_ms]
  subjects:
    - {request_id: r-1}
""",
    "window": """- case: a time that it must name
  expect: fires
  evidence: ["200 requests waiting"]
  engine_samples:
    - {seen_at: "2026-01-31T09:00:00", engine: e0, waiting: 200}

- case: the nearest look-alike, of which it must say nothing
  expect: quiet
  engine_samples:
    - {seen_at: "2026-01-31T09:00:00", engine: e0, waiting: 3}

- case: without what it needs it cannot tell
  expect: unknown
  missing: [engine_samples.waiting]
  engine_samples:
    - {seen_at: "2026-01-31T09:00:00", engine: e0, running: 3}
""",
}
_PAGE: Final = """---
title: What is wrong, in one sentence
kind: cause  # or symptom, negative
severity: warning  # or info, critical
stage: queue  # client, auth_routing, queue, prefill, decode, streaming, engine, gpu, none
{front}fix: what to do, in one sentence
{label}---

## Meaning
What happens, and why.

## Impact
Who notices, and what.

## Query
```sql
{query}```

## Diagnosis
1. Where to look first, and what it must show.

## Mitigation
What to do now, and what to do for good.

## Not this
What looks like it, and what tells the two apart.
"""


def write(ident: str, scope: str, folder: Path) -> tuple[Path, Path]:
    """The runbook and its cases. Raises RunbookError for an id that is none, a folder that is none and a file that is there already."""
    if not ID.fullmatch(ident):
        raise RunbookError(f"{ident!r} is no id: write small letters, digits and hyphens, such as kv-cache-leak or kv-cache-leak@window")
    if not folder.is_dir():
        raise RunbookError(f"runbook folder {folder} does not exist; create it, and name it under [runbooks] in lensd.toml")
    page, cases = folder / f"{ident}.md", folder / f"{ident}.cases.yaml"
    for path in (page, cases):
        if path.exists():
            raise RunbookError(f"{path} is there already")
    label = f"label: {ident.partition('@')[0]}\n" if "@" in ident else ""
    page.write_text(_PAGE.format(front=_FRONT[scope], label=label, query=_QUERY[scope]))
    cases.write_text(_CASES[scope])
    return page, cases
