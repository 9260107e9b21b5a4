"""A verdict as people read it: the answer first, bars that are right, words instead of column names, nothing a terminal obeys."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lensd.records import (
    Confidence,
    Diagnosis,
    Evidence,
    FileRead,
    Finding,
    Gap,
    NotEvaluated,
    RuledOut,
    Severity,
    Stage,
    StageState,
    StageTime,
    Subject,
    Verdict,
)
from lensd.report import BAR, MOST_QUOTED, as_json, as_markdown, as_text, exit_status
from lensd.words import duration, missing


def finding(label="queue-saturation", severity=Severity.WARNING, kind="cause", **more):
    given = {"evidence": (Evidence(text="waited 900 of 1000 ms", quote="queue_ms=900", source="span:1"),)} | more
    return Finding(
        label=label, runbook=label, title="t", kind=kind, stage="queue", severity=severity, confidence=Confidence.LIKELY, cause="c",
        fix="f", **given,
    )  # fmt: skip


def stage(name, start=None, length=None, exclusive=None, state=StageState.OK, estimated=False):
    segments = ((start, length),) if length is not None else ()
    return StageTime(
        stage=Stage(name), state=state, start_ms=start, duration_ms=length, exclusive_ms=length if exclusive is None else exclusive,
        segments=segments, source="gateway" if length is not None else None, estimated=estimated,
    )  # fmt: skip


TIMELINE = (
    stage("client", 0.0, 100.0),
    stage("auth_routing", 100.0, 0.4),
    stage("queue", 100.4, 700.0, state=StageState.SLOW, estimated=True),
    stage("prefill", 800.4, 99.6, state=StageState.FAILED),
    stage("decode", state=StageState.NOT_REACHED),
    stage("streaming", 300.0, 500.0, exclusive=0.0),
)
SATURATED = Diagnosis(
    subject=Subject(
        kind="request", request_id="r-1", trace_id="t", model="tiny", key_id="team-a", engine="e0", started_at="2026-11-29T12:00:00.250Z",
        status=504, outcome="timed_out",
    ),
    verdict=Verdict(
        label="queue-saturation", stage="queue", severity=Severity.WARNING, confidence=Confidence.LIKELY, cause="The line was long.",
        fix="add replicas",
    ),
    timeline=TIMELINE,
    unattributed_ms=100.0,
    gaps=(Gap(start_ms=900.0, duration_ms=100.0, between=("prefill", "end")),),
    total_ms=1000.0,
    findings=(finding(), finding("kv-thrash", explained_by="queue-saturation")),
    ruled_out=(
        RuledOut(label="auth-wrong-key", because="decision is engine_busy, status is 504"),
        RuledOut(label="auth-key-scope-denied", because="decision is engine_busy, status is 504"),
        RuledOut(label="engine-crash", because="nothing in the window fits"),
        RuledOut(label="slow", because="queue_ms is 17, total_ms is 61000, ttft_ms is 4.5"),
    ),
    not_evaluated=(
        NotEvaluated(label="kv-cache-leak", missing=("engine_samples.kv_usage", "engine_samples.running")),
        NotEvaluated(label="client-gone", missing=("subjects.client_timeout_ms",)),
        NotEvaluated(label="kv-thrash", missing=("engine_samples.kv_usage", "engine_samples.running")),
    ),
)  # fmt: skip

TEXT = """\
queue-saturation  warning, likely, stage queue
The line was long.
fix: add replicas

request r-1  model tiny  key team-a  engine e0
timed out (HTTP 504) after 1.0 s, started 2026-11-29 12:00:00.250 UTC

stage                                            time  share
  client       ███                             100 ms    10%
  auth/routing   █                             0.4 ms    <1%
  queue          ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒         700 ms    70%  slow, estimated
  prefill                            ████      100 ms    10%  failed
  decode                                     not reached
  streaming            ███████████████         500 ms     0%
  unattributed                                 100 ms    10%  most between prefill and end
  stages overlap: share counts each moment once, for the stage that explains it best

evidence
  queue-saturation (likely)
    - waited 900 of 1000 ms
      span:1: queue_ms=900
      └ kv-thrash (likely, explained by queue-saturation)
        - waited 900 of 1000 ms
          span:1: queue_ms=900

ruled out
  auth-wrong-key, auth-key-scope-denied: decision is engine busy, HTTP status is 504
  engine-crash: nothing in the window fits
  slow: time in queue is 17 ms, total time is 61.0 s, time to the first token is 4.5 ms

could not tell
  without KV-cache usage in the engine's metrics and running in the engine's metrics: kv-cache-leak, kv-thrash
  without the caller's own time limit: client-gone
"""


def test_the_text_as_a_whole():
    assert as_text(SATURATED) == TEXT


def test_the_json_keeps_the_raw_names_and_is_the_document():
    text = as_json(SATURATED)
    assert msgspec.json.decode(text, type=Diagnosis) == SATURATED
    assert msgspec.json.decode(text)["not_evaluated"][0]["missing"] == ["engine_samples.kv_usage", "engine_samples.running"]


def test_the_markdown_says_the_same():
    told = as_markdown(SATURATED)
    assert told.startswith("## queue-saturation\n\n**The line was long.**\n\nWarning, likely, stage queue.\n\nFix: add replicas\n")
    assert "| queue | slow, estimated | 100 ms | 700 ms | 70% | gateway |" in told
    assert "| decode | not reached |  |  |  |  |" in told
    assert "### kv-thrash (likely, explained by queue-saturation)" in told
    assert "- waited 900 of 1000 ms (`span:1: queue_ms=900`)" in told
    assert "- without the caller's own time limit: client-gone" in told


@pytest.mark.parametrize("form", [as_text, as_markdown])
@pytest.mark.parametrize("colour", [False, True])
def test_nothing_from_outside_commands_the_terminal(form, colour):
    evil = "a\x1b[2J\x07b\x9b1m\tc\x1b]0;title\x07\rd\ne"
    subject = msgspec.structs.replace(SATURATED.subject, request_id=evil, model=evil)
    found = finding(evidence=(Evidence(text=evil, quote=evil, source=evil),))
    verdict = msgspec.structs.replace(SATURATED.verdict, cause=evil)
    told = msgspec.structs.replace(SATURATED, subject=subject, findings=(found,), verdict=verdict)
    text = form(told, colour=colour) if form is as_text else form(told)
    ours = re.sub(r"\x1b\[[0-9;]{1,4}m", "", text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", ours)
    assert ours.count("\n") == (form(SATURATED).count("\n") - (3 if form is as_text else 4))  # an id cannot begin a line of its own


def test_colour_only_where_it_is_asked_for():
    assert "\x1b" not in as_text(SATURATED)
    painted = as_text(SATURATED, colour=True)
    assert painted.startswith("\x1b[33;1mqueue-saturation\x1b[0m  warning")
    assert re.sub(r"\x1b\[[0-9;]+m", "", painted) == TEXT


@pytest.mark.parametrize(
    ("severity", "confidence", "where", "line"),
    [
        (Severity.CRITICAL, Confidence.CERTAIN, "engine", "x  critical, certain, stage engine"),
        (Severity.INFO, Confidence.CERTAIN, "none", "x  certain"),
        (Severity.WARNING, Confidence.POSSIBLE, "auth_routing", "x  warning, possible, stage auth/routing"),
    ],
)
def test_the_first_line(severity, confidence, where, line):
    verdict = Verdict(label="x", stage=where, severity=severity, confidence=confidence, cause="c", fix="")
    told = as_text(msgspec.structs.replace(SATURATED, verdict=verdict))
    assert told.splitlines()[:3] == [line, "c", ""]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"outcome": "ok", "status": 200}, "ok (HTTP 200) after 1.0 s, started 2026-11-29 12:00:00.250 UTC"),
        ({"outcome": "lost", "status": None}, "lost, last heard of 1.0 s after it began, started 2026-11-29 12:00:00.250 UTC"),
        ({"outcome": "open", "status": None}, "open for 1.0 s, started 2026-11-29 12:00:00.250 UTC"),
        ({"outcome": "caller_gone", "status": None}, "caller gone after 1.0 s, started 2026-11-29 12:00:00.250 UTC"),
        (
            {"settled": False},
            "timed out (HTTP 504) after 1.0 s, started 2026-11-29 12:00:00.250 UTC (not settled: the engine's record is still out)",
        ),
        ({"started_at": None}, "timed out (HTTP 504) after 1.0 s, nobody knows when it started"),
    ],
)
def test_how_the_request_ended(changes, line):
    assert (
        as_text(msgspec.structs.replace(SATURATED, subject=msgspec.structs.replace(SATURATED.subject, **changes))).splitlines()[5] == line
    )


def test_of_files_those_that_gave_something_come_first_and_a_crowd_is_cut():
    kinds = [
        ("a.bin", "unknown", 0, 9),
        ("b.log", "vllm log", 1, 1),
        ("c.log", "access log", 0, 3),
        ("d", "unreadable: Permission denied", 0, 0),
    ]
    files = tuple(FileRead(path=p, kind=k, records=r, unread_lines=u) for p, k, r, u in kinds)
    told = msgspec.structs.replace(SATURATED, subject=Subject(kind="files"), timeline=(), findings=(), files=files)
    assert """
4 files, 1 of them understood

files
  b.log  vllm log, 1 record, 1 line not understood
  a.bin  not understood
  c.log  access log, nothing in it that is used
  d  unreadable: Permission denied
""" in as_text(told)
    many = tuple(FileRead(path=f"{n}.log", kind="vllm log", records=2, unread_lines=0) for n in range(50))
    assert "  19.log  vllm log, 2 records\n  and 30 more (--json shows all)\n" in as_text(msgspec.structs.replace(told, files=many))


def test_what_the_rule_was_not_decided_by_stands_apart_in_text_and_is_evidence_in_json():
    own = Evidence(text="waited 900 of 1000 ms", quote="queue_ms=900", source="span:1")
    more = tuple(Evidence(text=f"setting {n}", quote="y" * 900, source=f"flags.txt:{n}", beside=True) for n in range(9))
    text = as_text(told := msgspec.structs.replace(SATURATED, findings=(finding(evidence=(own, *more)),)))
    evidence, _, beside = text.partition("\nbeside it\n")
    assert "span:1: queue_ms=900" in evidence
    assert "flags.txt" not in evidence
    shown = beside.partition("\n\n")[0].splitlines()
    assert [line.split(" (")[0] for line in shown] == [*(f"  setting {n}" for n in range(5)), "  and 4 more"]
    assert max(map(len, shown)) <= MOST_QUOTED + 1
    assert as_markdown(told).index("### Beside it") > as_markdown(told).index("waited 900 of 1000 ms")
    lines = msgspec.json.decode(as_json(told))["findings"][0]["evidence"]
    assert [line.get("beside", False) for line in lines] == [False, *(True for _ in more)]


def test_a_long_quote_is_cut_in_text_and_whole_elsewhere():
    long = "x" * 5000
    told = msgspec.structs.replace(SATURATED, findings=(finding(evidence=(Evidence(text="t", quote=long, source="engine.log:1"),)),))
    assert max(map(len, as_text(told).splitlines())) <= MOST_QUOTED + 10
    assert long in as_markdown(told)
    assert long in as_json(told)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("subjects.queue_ms", "the time in queue"),
        ("subjects.max_gap_ms", "max gap"),
        ("gpu_samples.used_bytes", "used bytes in the GPU's samples"),
        ("events.name", "the engine's log or process events"),
        ("something else", "something else"),
        ("v0.1.2", "v0.1.2"),
    ],
)
def test_what_is_missing_has_a_name(name, words):
    assert missing(name) == words


def test_the_sentence_of_an_inconclusive_verdict_is_in_words_too():
    verdict = Verdict(
        label="inconclusive", stage="none", severity=Severity.INFO, confidence=Confidence.POSSIBLE, fix="",
        cause="could not tell, because this is missing: subjects.queue_ms, events.name",
    )  # fmt: skip
    told = as_text(msgspec.structs.replace(SATURATED, verdict=verdict))
    assert "because this is missing: the time in queue, the engine's log or process events" in told


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, ""), (0.0, "0.0 ms"), (9.94, "9.9 ms"), (9.96, "10 ms"), (999.4, "999 ms"), (999.6, "1.0 s"),
     (119_900.0, "119.9 s"), (120_000.0, "2.0 min")],
)  # fmt: skip
def test_durations(ms, text):
    assert duration(ms) == text


@given(st.floats(0.01, 1e7), st.floats(0, 1), st.floats(0, 1))
def test_a_bar_lies_where_the_stage_lies_and_is_never_invisible(total, begin, share):
    start, length = begin * total, share * (1 - begin) * total
    told = msgspec.structs.replace(SATURATED, total_ms=total, timeline=(stage("queue", start, length),), unattributed_ms=0.0)
    line = next(line for line in as_text(told).splitlines() if line.startswith("  queue"))
    bar = line[15 : 15 + BAR]
    assert set(bar) <= {" ", "█"}
    assert "█" in bar
    first, last = bar.index("█"), bar.rindex("█")
    assert "█" * (last - first + 1) in bar
    column = total / BAR
    assert first * column <= start + 1e-6 * total
    assert (first + 1) * column >= start - 1e-6 * total or first == BAR - 1
    assert (last + 1) * column >= start + length - 1e-6 * total
    assert last * column <= start + length + 1e-6 * total


@pytest.mark.parametrize("total", [0.0, None])
def test_a_request_without_a_length_has_bars_and_no_shares(total):
    assert "%" not in as_text(msgspec.structs.replace(SATURATED, total_ms=total)).split("evidence")[0]


@pytest.mark.parametrize(
    ("label", "findings", "fail_on", "status"),
    [
        ("no-incident", (), Severity.WARNING, 0),
        ("no-incident", (finding("no-incident", Severity.INFO, "negative"),), Severity.INFO, 0),
        ("queue-saturation", (finding(),), Severity.WARNING, 3),
        ("queue-saturation", (finding(),), Severity.CRITICAL, 0),
        ("queue-saturation", (finding(severity=Severity.INFO),), Severity.WARNING, 0),
        ("queue-saturation", (finding(severity=Severity.INFO),), Severity.INFO, 3),
        ("x", (finding(severity=Severity.INFO), finding(severity=Severity.CRITICAL)), Severity.CRITICAL, 3),
        ("inconclusive", (finding(severity=Severity.CRITICAL),), Severity.WARNING, 5),
    ],
)
def test_exit_statuses(label, findings, fail_on, status):
    verdict = msgspec.structs.replace(SATURATED.verdict, label=label)
    assert exit_status(msgspec.structs.replace(SATURATED, verdict=verdict, findings=findings), fail_on) == status


def test_how_much_of_prefill_was_front_end_is_said_beside_it():
    told = msgspec.structs.replace(SATURATED, frontend_ms=80.0)
    prefill = next(line for line in as_text(told).splitlines() if line.startswith("  prefill"))
    assert prefill.endswith("failed, 80 ms of it front end")
    assert "| prefill | failed, 80 ms of it front end |" in as_markdown(told)
    assert "front end" not in as_text(SATURATED) + as_text(msgspec.structs.replace(SATURATED, frontend_ms=0.3))
