"""Good days: what servers say when nothing is wrong. No cause may be found in any of it, alone or together.

Captures of real servers, and `days/`: whole days of several machines as their keepers would hand them over, each with a `case.json`
that says why it is a good one.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lensd.diagnosis import triage as triage_module
from lensd.diagnosis.evaluate import Evaluation
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
SERVED = {"answers in one piece", "streams", "the engine's spans", "before, under and after a load"}
"""Days on which somebody was seen to be served."""
WHOLE = sorted((Path(__file__).parent / "days").iterdir())
NEGATIVE = ("no-incident", "benign-noise")
LEAST_DAYS = 3


def judge(folder: Path) -> Diagnosis:
    return triage([folder], BOOKS, {}, Limits())


def hold_quiet(found: Diagnosis) -> None:
    assert found.verdict.label in (*NEGATIVE, "inconclusive"), found.verdict.cause
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


@pytest.fixture(scope="module")
def whole_days(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Diagnosis, Evaluation]]:
    """What triage says of each whole day, and what every rule said of it."""
    found = {}
    for day in WHOLE:
        folder = tmp_path_factory.mktemp("day")
        for file in day.iterdir():
            if file.name != "case.json":
                shutil.copyfile(file, folder / file.name)
        with listening() as heard:
            diagnosis = judge(folder)
        found[day.name] = (diagnosis, heard[0])
    return found


@contextmanager
def listening() -> Iterator[list[Evaluation]]:
    heard: list[Evaluation] = []
    plain = triage_module.evaluate

    def evaluate(*args: object, **kwargs: object) -> Evaluation:
        heard.append(plain(*args, **kwargs))
        return heard[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triage_module, "evaluate", evaluate)
        yield heard


@pytest.mark.parametrize("day", [day.name for day in WHOLE])
def test_a_whole_good_day(day: str, whole_days: dict[str, tuple[Diagnosis, Evaluation]]) -> None:
    hold_quiet(whole_days[day][0])


def test_most_whole_days_are_said_to_be_good(whole_days: dict[str, tuple[Diagnosis, Evaluation]]) -> None:
    said = Counter(found.verdict.label in NEGATIVE for found, _ in whole_days.values())
    assert said[True] > said[False], {day: found.verdict.cause for day, (found, _) in whole_days.items()}


def evaluated(evaluation: Evaluation) -> set[str]:
    """Rules that had what they need, of the whole day or of one request at least."""
    return {
        result.runbook.id
        for result in evaluation.results
        if result.window_unknown is None and (result.runbook.scope == "window" or len(result.unknown) < len(evaluation.subjects))
    }


def test_every_stable_rule_was_quiet_on_three_days_on_which_it_could_have_spoken(
    whole_days: dict[str, tuple[Diagnosis, Evaluation]], record_property: Callable[[str, str], None]
) -> None:
    days = Counter(rule for _, evaluation in whole_days.values() for rule in evaluated(evaluation))
    counts = {name: days[name] for name, book in sorted(BOOKS.items()) if book.status == "stable"}
    record_property("figures", "\n".join(f"{name:<40} evaluated on {number} days" for name, number in counts.items()))
    assert {name: number for name, number in counts.items() if number < LEAST_DAYS} == {}
