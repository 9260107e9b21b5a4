"""Every sample line of every dialect file matches its pattern and gives the fields it names; mistakes in a file are named."""

import re
from collections.abc import Iterator, Mapping

import pytest
from lensd_collectors.conventions import Decision
from lensd_collectors.dialects import Dialect, DialectError, ErrorPattern, EventPattern, classify, load, loads
from lensd_collectors.gateway.decisions import ANSWERS, Refused, error_body
from lensd_collectors.rows import EngineSample

EVENTS = [(dialect, event) for dialect in load().values() for event in dialect.events]
ERRORS = [(dialect, error) for dialect in load().values() for error in dialect.errors]


def frame_samples() -> Iterator[tuple[str, re.Pattern[str], Mapping[str, str]]]:
    for dialect in load().values():
        for frame, samples in zip(dialect.frames, dialect.frame_like, strict=True):
            yield from ((dialect.name, frame, sample) for sample in samples)


def failure_samples() -> Iterator[tuple[re.Pattern[str], Mapping[str, str]]]:
    for dialect in load().values():
        for pattern in (*dialect.failures, *dialect.limits):
            yield from ((pattern.regex, sample) for sample in pattern.like)


def given(match: re.Match[str] | None, sample: Mapping[str, object], *known: str) -> None:
    assert match is not None, sample["text"]
    fields = {key: value for key, value in sample.items() if key not in ("text", *known)}
    assert {key: match[key] for key in fields} == fields


@pytest.mark.parametrize(("dialect", "event"), EVENTS, ids=[f"{dialect.name}-{event.name}-{event.sign}" for dialect, event in EVENTS])
def test_event_samples_match(dialect: Dialect, event: EventPattern) -> None:
    assert event.like, "a pattern without a sample is a guess"
    for sample in event.like:
        given(event.search(sample["text"]), sample)


@pytest.mark.parametrize(("dialect", "event"), EVENTS, ids=[f"{dialect.name}-{event.name}-{event.sign}" for dialect, event in EVENTS])
def test_no_earlier_event_takes_a_sample(dialect: Dialect, event: EventPattern) -> None:
    for sample in event.like:
        first = next(other for other in dialect.events if other.search(sample["text"]))
        assert first.name == event.name


@pytest.mark.parametrize(("name", "frame", "sample"), list(frame_samples()))
def test_frame_samples_match(name: str, frame: re.Pattern[str], sample: Mapping[str, str]) -> None:
    given(frame.match(sample["text"]), sample)


@pytest.mark.parametrize(("regex", "sample"), list(failure_samples()))
def test_client_failure_samples_match(regex: re.Pattern[str], sample: Mapping[str, str]) -> None:
    given(regex.search(sample["text"]), sample)


@pytest.mark.parametrize(("dialect", "error"), ERRORS, ids=[f"{dialect.name}-{error.means}-{error.status}" for dialect, error in ERRORS])
def test_error_samples_mean_what_they_say_among_all_dialects(dialect: Dialect, error: ErrorPattern) -> None:
    for sample in error.like:
        status, text, path = int(sample["status"]), str(sample["text"]), sample.get("path")
        given(error.match(status, text, str(path) if path else None), sample, "status", "path")
        meaning = classify(load().values(), status, text, str(path) if path else None)
        assert meaning is not None
        assert meaning.decision is error.means


def test_an_unknown_answer_means_nothing() -> None:
    assert classify(load().values(), 503, "<html>upstream connect error</html>") is None
    assert classify(load().values(), 503, "", "/v1/chat/completions") is None


def test_metrics_fill_columns_of_engine_samples() -> None:
    for dialect in load().values():
        assert set(dialect.metrics) <= set(EngineSample.__struct_fields__)
    assert load()["vllm"].metrics["kv_usage"] == ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert load()["vllm"].selectors["waiting_capacity"][0].labels == (("reason", "capacity"),)
    assert load()["vllm"].selectors["finished_total"][0].total


HEAD = 'name = "x"\nrole = "engine"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('role = "engine"', "'name'"),
        ('name = "x"\nrole = "oracle"', "oracle"),
        (HEAD + "[metrics]\nspeed = ['x']", "speed"),
        (HEAD + "[metrics]\nrunning = ['a b']", "a b"),
        (HEAD + "[[events]]\nname='e'\nanchor='a'\npattern='a'\ninto='nowhere'", "nowhere"),
        (HEAD + "[[events]]\nname='e'\nanchor='a'\npattern='a'\nfields={n='int'}", "'n'"),
        (HEAD + "[[events]]\nname='e'\nanchor='a'\npattern='('", "missing )"),
        (HEAD + "[[errors]]\nbody='a'\nmeans='bad-luck'", "bad-luck"),
        (HEAD + "[names]\n'x:a' = {kind='speed'}", "speed"),
        (HEAD + "[names]\n'x:a' = {kind='gauge', since='soon'}", "soon"),
        (HEAD + "[names]\n'x:a' = {kind='gauge', sinse='0.6'}", "sinse"),
        ("name = ", "file.toml"),
    ],
)
def test_a_mistake_is_named_with_the_file(text: str, said: str) -> None:
    with pytest.raises(DialectError) as caught:
        loads(text, "file.toml")
    assert "file.toml" in str(caught.value)
    assert said in str(caught.value)


def test_every_meaning_is_a_decision() -> None:
    assert all(isinstance(error.means, Decision) for _, error in ERRORS)


@pytest.mark.parametrize("decision", [one for one in ANSWERS if one is not Decision.CALLER_GONE])
def test_the_gateways_own_answers_mean_what_it_decided(decision: Decision) -> None:
    meaning = classify(load().values(), ANSWERS[decision].status, error_body(Refused(decision)).decode())
    assert meaning is not None
    assert (meaning.decision, meaning.dialect) == (decision, "lensd")
