"""One source at a time fills an engine's rows; histograms are kept every 10 s; what names no engine gets the only one it can be of."""

import itertools
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.rows import EngineSample, Event, Point, Row, SpanRow
from otlp_bodies import AT_NS, AT_US, KINDS, logs, metrics, pairs, traces

from lensd.receive.decode import Decoder
from lensd.receive.scrapes import Scrapes
from lensd.store.arrow import batch_of

S = 10**9
SCRAPE = {
    "lensd.engine": "one",
    "lensd.engine.kind": "vllm",
    "lensd.scrape.target": "http://h:8000/metrics",
    "model_name": "tiny",
    "engine": "0",
}
PLUGIN = {key: value for key, value in SCRAPE.items() if key != "lensd.scrape.target"}
PLUGIN_RESOURCE = {"service.name": "lensd-vllm", "service.instance.id": "0b6f0a56"}
UP = {key: SCRAPE[key] for key in ("lensd.engine", "lensd.engine.kind", "lensd.scrape.target")}
GENERATED = "vllm:generation_tokens_total"


def rows(decoder: Decoder, message: Any, received_at: int = AT_US) -> dict[str, list[Row]]:
    made = decoder.decode(KINDS[type(message)], message.SerializeToString(), received_at)
    batch_of(made)
    return made


def samples(decoder: Decoder, message: Any) -> list[EngineSample]:
    return [row for row in rows(decoder, message).get("engine_samples", []) if isinstance(row, EngineSample)]


def scrape(at_s: float, value: float = 1.0, **labels: Any) -> Any:
    every = {**SCRAPE, **labels}
    return metrics((GENERATED, value, every), ("up", 1.0, {key: every[key] for key in UP}), at_ns=AT_NS + int(at_s * S))


def down(at_s: float) -> Any:
    return metrics(("up", 0.0, {**UP, "error.type": "refused"}), at_ns=AT_NS + int(at_s * S))


def plugin(at_s: float, value: float = 1.0, named: bool = True) -> Any:
    labels = {key: label for key, label in PLUGIN.items() if named or not key.startswith("lensd.")}
    return metrics((GENERATED, value, labels), resource=PLUGIN_RESOURCE, at_ns=AT_NS + int(at_s * S))


def test_a_plugins_samples_are_left_out_while_the_scrape_answers() -> None:
    decoder = Decoder()
    assert len(samples(decoder, plugin(0))) == 1
    assert len(samples(decoder, scrape(1))) == 1
    assert [samples(decoder, plugin(at)) for at in (1.0, 5.0, 11.0)] == [[], [], []]
    assert decoder.dropped == {"beside-scrape": 3}
    assert len(samples(decoder, plugin(11.1))) == 1


@pytest.mark.parametrize("at_s", [0.9, 12.0])
def test_what_a_plugin_sent_of_another_time_is_taken_however_late_it_comes(at_s: float) -> None:
    decoder = Decoder()
    samples(decoder, scrape(1))
    assert len(samples(decoder, plugin(at_s))) == 1


def test_a_scrape_that_does_not_answer_holds_nobody_back() -> None:
    decoder = Decoder()
    samples(decoder, down(1))
    assert len(samples(decoder, plugin(2))) == 1


def test_another_engines_scrape_holds_nobody_back() -> None:
    decoder = Decoder()
    samples(decoder, scrape(1, **{"lensd.engine": "two"}))
    assert len(samples(decoder, plugin(2))) == 1


def test_where_scrapes_are_far_apart_the_two_do_not_take_turns() -> None:
    decoder = Decoder()
    for at in (0, 30, 60):
        samples(decoder, scrape(at))
    assert [samples(decoder, plugin(at)) for at in (71, 80, 89)] == [[], [], []]
    samples(decoder, scrape(90))
    assert len(samples(decoder, plugin(140))) == 1


@pytest.mark.parametrize("behind", [0.0, 1.0])
def test_counters_of_both_give_the_true_increase(behind: float) -> None:
    """A plugin a token behind the scrape would read as a restart at every turn."""
    decoder = Decoder()
    seen = []
    for at in range(60):
        seen += samples(decoder, scrape(at, value=1000.0 + at))
        seen += samples(decoder, plugin(at + 0.5, value=1000.0 + at - behind))
    macros = (Path(__file__).parents[3] / "lensd" / "store" / "macros.sql").read_text()
    with duckdb.connect() as connection:
        connection.execute(macros)
        connection.execute("create table s (seen_at bigint, counter double)")
        connection.executemany("insert into s values (?, ?)", [(row.seen_at, row.generation_tokens_total) for row in seen])
        assert connection.execute("select increase(counter, seen_at) from s").fetchone() == (59.0,)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=40))
def test_a_plugin_is_heard_only_where_no_scrape_answered_in_the_10_s_before(told: list[tuple[int, bool]]) -> None:
    """A scrape before it within 10 s always covers it; without any scrape before it nothing does."""
    scrapes = Scrapes()
    answered: list[int] = []
    for at_s, is_scrape in told:
        at = at_s * 1_000_000
        if is_scrape:
            scrapes.answered("one", at)  # type: ignore[arg-type]
            answered.append(at_s)
        elif any(0 <= at_s - other <= 10 for other in answered[-16:]):
            assert scrapes.covers("one", at)  # type: ignore[arg-type]
        elif not any(other <= at_s for other in answered):
            assert not scrapes.covers("one", at)  # type: ignore[arg-type]


def histogram(at_ns: int, name: str = "vllm:request_queue_time_seconds", model: str = "tiny") -> Any:
    message = metrics(("vllm:num_requests_running", 1.0, SCRAPE), at_ns=at_ns)
    data = message.resource_metrics[0].scope_metrics[0].metrics.add(name=name).histogram
    data.aggregation_temporality = 2
    labels = pairs({**SCRAPE, "model_name": model})
    data.data_points.add(time_unix_nano=at_ns, sum=1.0, count=1, explicit_bounds=[0.3], bucket_counts=[1, 0]).attributes.extend(labels)
    return message


def test_histograms_are_kept_every_10_s_and_gauges_each_time() -> None:
    decoder = Decoder()
    made = [rows(decoder, histogram(AT_NS + 999 + at * S)) for at in range(25)]
    kept = [at for at, body in enumerate(made) if "points" in body]
    assert kept == [0, 10, 20]
    assert all("engine_samples" in body for body in made)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 120 * 1000), min_size=1, max_size=30))
def test_no_two_rows_of_a_histogram_are_nearer_than_10_s(at_ms: list[int]) -> None:
    decoder = Decoder()
    kept = [at for at in sorted(at_ms) if "points" in rows(decoder, histogram(AT_NS + at * 1_000_000))]
    assert kept[0] == min(at_ms)
    assert all(after - before >= 10_000 for before, after in itertools.pairwise(kept))
    assert all(any(before <= at < before + 10_000 for before in kept) for at in at_ms)


def test_each_series_of_a_histogram_has_its_own_10_s() -> None:
    decoder = Decoder()
    for name, model in (("vllm:request_queue_time_seconds", "a"), ("vllm:request_queue_time_seconds", "b"), ("vllm:request_params_n", "a")):
        [point] = rows(decoder, histogram(AT_NS, name, model))["points"]
        assert isinstance(point, Point)
        assert point.name == name


def test_whoever_keeps_all_points_keeps_all_histograms() -> None:
    decoder = Decoder(keep_all_points=True)
    assert [len(rows(decoder, histogram(AT_NS + at * S))["points"]) for at in range(3)] == [2, 2, 2]


REQUEST = {"name": "llm_request", "attributes": {"gen_ai.request.id": "chatcmpl-1", "gen_ai.usage.prompt_tokens": 5}}


def span(decoder: Decoder, scope: str = "vllm.tracing.otel", received_at: int = AT_US, fields: Any = REQUEST, **resource: Any) -> SpanRow:
    message = traces(fields, resource=resource)
    message.resource_spans[0].scope_spans[0].scope.name = scope
    [row] = rows(decoder, message, received_at)["spans"]
    assert isinstance(row, SpanRow)
    return row


def model(row: SpanRow) -> Any:
    return json.loads(row.attributes or "{}").get("gen_ai.response.model")


def test_a_span_that_names_no_engine_is_of_the_only_one() -> None:
    decoder = Decoder()
    assert span(decoder).engine is None
    samples(decoder, scrape(0))
    row = span(decoder)
    assert (row.engine, model(row)) == ("one", "tiny")
    assert span(decoder, scope="lensd.vllm").engine == "one"
    assert span(decoder, received_at=AT_US + 11 * 60_000_000).engine is None  # nothing of it for long


@pytest.mark.parametrize("scope", ["lensd.gateway", "litellm", "vllm", "my.app", ""])
def test_nobody_elses_span_is_given_an_engine(scope: str) -> None:
    decoder = Decoder()
    samples(decoder, scrape(0))
    row = span(decoder, scope=scope)
    assert (row.engine, model(row)) == (None, None)


def test_of_two_engines_none_is_guessed() -> None:
    decoder = Decoder()
    samples(decoder, scrape(0))
    samples(decoder, scrape(0, **{"lensd.engine": "two"}))
    assert span(decoder).engine is None
    named = span(decoder, **{"lensd.engine": "two"})
    assert (named.engine, model(named)) == ("two", "tiny")


@pytest.mark.parametrize("other", ["log", "span", "sglang"])
def test_an_engine_counts_wherever_it_was_heard_of(other: str) -> None:
    decoder = Decoder()
    samples(decoder, scrape(0))
    if other == "log":
        rows(decoder, logs({"name": "lensd.engine.process", "attributes": {"lensd.engine": "two"}}))
    elif other == "span":
        span(decoder, **{"lensd.engine": "two"})
    else:
        samples(decoder, metrics(("sglang:num_running_reqs", 1.0, {"lensd.engine": "two", "lensd.engine.kind": "sglang"})))
    assert span(decoder).engine == ("one" if other == "sglang" else None)


@pytest.mark.parametrize(
    "also",
    [
        (GENERATED, 1.0, {**SCRAPE, "model_name": "other"}),
        ("vllm:lora_requests_info", 1.0, {**SCRAPE, "max_lora": "1"}),
    ],
)
def test_a_model_that_is_not_sure_is_not_named(also: Any) -> None:
    decoder = Decoder()
    samples(decoder, metrics((GENERATED, 1.0, SCRAPE), also))
    assert model(span(decoder)) is None


def test_a_span_that_names_its_model_keeps_it() -> None:
    decoder = Decoder()
    samples(decoder, scrape(0))
    for name in ("gen_ai.request.model", "gen_ai.response.model"):
        told = json.loads(span(decoder, fields={"name": "llm_request", "attributes": {name: "mine"}}).attributes or "")
        assert told == {name: "mine"}


def test_a_model_served_after_a_restart_replaces_the_one_before() -> None:
    decoder = Decoder()
    samples(decoder, scrape(0))
    samples(decoder, scrape(60, model_name="new"))
    assert model(span(decoder)) == "new"


def test_a_plugin_without_a_name_speaks_of_the_only_engine() -> None:
    decoder = Decoder()
    [row] = samples(decoder, plugin(0, named=False))
    assert row.engine == "0b6f0a56"
    samples(decoder, scrape(1))
    [row] = samples(decoder, plugin(20, named=False))
    assert row.engine == "one"
    assert samples(decoder, plugin(2, named=False)) == []
    assert span(decoder).engine == "one"  # an instance's id is no engine of its own
    [record] = rows(decoder, logs({"name": "lensd.engine.request", "attributes": {"gen_ai.response.id": "chatcmpl-1"}}))["events"]
    assert isinstance(record, Event)
    assert record.engine == "one"
