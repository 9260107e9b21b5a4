"""Good days: what servers say when nothing is wrong. No cause may be found in any of it, alone or together."""

import shutil
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.records import Diagnosis
from lensd.timeline.limits import Limits

CAPTURES = Path(__file__).parents[1] / "captures"
VLLM = CAPTURES / "vllm-0.32.0"
BOOKS = load()

DAYS: dict[str, Sequence[str]] = {
    "a start with compiling": ("startup-http-otlp-compile.log",),
    "a start with a plugin": ("startup-noflags-plugin.log",),
    "both starts": ("startup-http-otlp-compile.log", "startup-noflags-plugin.log"),
    "an idle engine": ("metrics-1-fresh-idle.txt",),
    "an engine under load, some waiting": ("metrics-3-under-load-queue-2.txt",),
    "before, under and after a load": ("metrics-1-fresh-idle.txt", "metrics-3-under-load-queue-2.txt", "metrics-4-after-load.txt"),
    "after running requests were thrown out": ("metrics-6-preempt-after.txt",),
    "answers in one piece": ("http/ok-chat-nonstream.json", "http/ok-completion-nonstream.json"),
    "streams": ("http/ok-chat-stream.json", "http/ok-completion-stream.json", "http/ok-per-request-metrics-stream.json"),
    "a list of models": ("http/models.json",),
    "the engine's spans": ("otlp/0005.http.json",),
    "the engine's spans of its start": ("otlp/0000.http.json", "otlp/0002.http.json"),
}
SERVED = {"answers in one piece", "streams", "the engine's spans"}
"""Days on which there is a request to say something good of."""


def judge(folder: Path) -> Diagnosis:
    return triage([folder], BOOKS, {}, Limits())


def hold_quiet(found: Diagnosis) -> None:
    assert found.verdict.label in ("no-incident", "inconclusive"), found.verdict.cause
    assert [finding.label for finding in found.findings if finding.kind != "negative"] == []


def hand_over(folder: Path, names: Sequence[str]) -> Path:
    for number, name in enumerate(names):
        shutil.copyfile(VLLM / name, folder / f"{number}-{Path(name).name}")
    return folder


@pytest.mark.parametrize("day", DAYS)
def test_a_good_day(day: str, tmp_path: Path) -> None:
    found = judge(hand_over(tmp_path, DAYS[day]))
    hold_quiet(found)
    assert (found.verdict.label == "no-incident") == (day in SERVED)


@pytest.mark.parametrize(
    ("one", "other"), list(combinations(("a start with a plugin", "before, under and after a load", "streams", "the engine's spans"), 2))
)
def test_two_good_days_together(one: str, other: str, tmp_path: Path) -> None:
    hold_quiet(judge(hand_over(tmp_path, (*DAYS[one], *DAYS[other]))))


def test_all_of_it_together(tmp_path: Path) -> None:
    hold_quiet(judge(hand_over(tmp_path, sorted({name for names in DAYS.values() for name in names}))))


@pytest.mark.parametrize("body", ["requests.pb", "startup.pb", "preempted.pb"])
def test_a_body_as_it_was_sent_decoded(body: str, tmp_path: Path) -> None:
    sent = ExportTraceServiceRequest.FromString((VLLM / "otlp" / body).read_bytes())
    (tmp_path / "spans.json").write_text(MessageToJson(sent))
    hold_quiet(judge(tmp_path))


def test_another_engines_good_day(tmp_path: Path) -> None:
    """Requests, cancellations and a stop in order of a llama.cpp server are nobody's fault, beside a request that was served."""
    shutil.copyfile(CAPTURES / "llamacpp-b10434" / "server.log", tmp_path / "server.log")
    shutil.copyfile(VLLM / "http" / "ok-chat-nonstream.json", tmp_path / "ok.json")
    found = judge(tmp_path)
    hold_quiet(found)
    assert found.verdict.label == "no-incident"
    assert {file.path: file.kind for file in found.files}["server.log"] == "llamacpp log"
