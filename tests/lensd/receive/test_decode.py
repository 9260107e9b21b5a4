"""What bodies become: spans of a real vLLM, scrapes as wide rows, log records as events, facts and meanings."""

import json
from typing import Any

import pytest
from lensd_collectors.host.scrape import Histogram, parse
from lensd_collectors.rows import ConfigFact, EngineSample, Event, GpuSample, Row, SpanRow
from otlp_bodies import AT_NS, AT_US, CAPTURES, KINDS, logs, metrics, pairs, traces

from lensd.errors import BadBodyError
from lensd.receive.decode import Decoder
from lensd.store.arrow import batch_of
from lensd.store.segments import Signal

ENGINE = {"lensd.engine": "one", "lensd.engine.kind": "vllm", "lensd.scrape.target": "http://h:8000/metrics"}
LABELS = {**ENGINE, "model_name": "tiny", "engine": "0"}


def rows(message: Any, decoder: Decoder | None = None) -> dict[str, list[Row]]:
    made = (decoder or Decoder()).decode(KINDS[type(message)], message.SerializeToString(), AT_US + 5)
    batch_of(made)  # every row fits its table
    return made


def test_spans_of_a_real_vllm() -> None:
    made = Decoder().decode(Signal.TRACES, (CAPTURES / "otlp" / "requests.pb").read_bytes(), 1)["spans"]
    batch_of({"spans": made})
    span = made[0]
    assert isinstance(span, SpanRow)
    assert (span.name, span.kind, span.status) == ("llm_request", "server", None)
    assert span.request_id
    assert span.src == f"span:{span.span_id}"
    assert len(span.trace_id or "") == 32
    attributes = json.loads(span.attributes or "")
    assert attributes["gen_ai.request.id"] == span.request_id
    assert attributes["gen_ai.usage.prompt_tokens"] > 0
    assert all(isinstance(row, SpanRow) and row.name == "llm_request" for row in made)
    assert span.ended_at is not None
    assert span.started_at is not None
    assert span.duration_ms == pytest.approx((span.ended_at - span.started_at) / 1000, abs=0.002)


def test_a_span_takes_what_columns_need() -> None:
    message = traces(
        {
            "attributes": {"lensd.request.id": "r", "gen_ai.request.id": "e", "lensd.engine": "mine"},
            "events": [("exception", {"exception.message": "boom"})],
        },
        {},
        resource={"service.name": "lensd-gateway", "service.instance.id": "i", "lensd.engine": "theirs"},
    )  # fmt: skip
    message.resource_spans[0].scope_spans[0].scope.name = "lensd.gateway"
    message.resource_spans[0].scope_spans[0].spans[0].status.code = 2
    first, second = rows(message)["spans"]
    assert isinstance(first, SpanRow)
    assert isinstance(second, SpanRow)
    assert (first.request_id, first.engine, first.service, first.instance, first.scope) == (
        "r",
        "mine",
        "lensd-gateway",
        "i",
        "lensd.gateway",
    )
    assert (first.status, first.status_message, first.duration_ms) == ("error", "boom", 1.5)
    assert (second.engine, second.request_id, second.attributes, second.parent_span_id) == ("theirs", None, None, None)


@pytest.mark.parametrize("start", [0, 2**64 - 1])
def test_a_span_without_a_sane_time_has_that_of_its_receipt(start: int) -> None:
    message = traces({})
    message.resource_spans[0].scope_spans[0].spans[0].start_time_unix_nano = start
    (span,) = rows(message)["spans"]
    assert isinstance(span, SpanRow)
    assert span.started_at == AT_US + 5


def engine_samples(message: Any, decoder: Decoder | None = None) -> list[EngineSample]:
    return [row for row in rows(message, decoder).get("engine_samples", []) if isinstance(row, EngineSample)]


def test_a_scrape_is_one_wide_row() -> None:
    (row,) = engine_samples(
        metrics(
            ("up", 1.0, ENGINE),
            ("process_start_time_seconds", 1795963000.25, ENGINE),
            ("vllm:num_requests_running", 3.0, LABELS),
            ("vllm:num_requests_waiting", 2.0, LABELS),
            ("vllm:num_requests_waiting_by_reason", 2.0, {**LABELS, "reason": "capacity"}),
            ("vllm:num_requests_waiting_by_reason", 0.0, {**LABELS, "reason": "deferred"}),
            ("vllm:gpu_cache_usage_perc", 0.1, LABELS),
            ("vllm:kv_cache_usage_perc", 0.5, LABELS),
            ("vllm:request_success_total", 5.0, {**LABELS, "finished_reason": "stop"}),
            ("vllm:request_success_total", 2.0, {**LABELS, "finished_reason": "abort"}),
        )
    )
    assert row == EngineSample(
        seen_at=AT_US, engine="one", model="tiny", running=3.0, waiting=2.0, waiting_capacity=2.0, waiting_deferred=0.0, kv_usage=0.5,
        finished_total=7.0, aborted_total=2.0, up=True, start_at=1_795_963_000_250_000, src="scrape:http://h:8000/metrics@2026-11-29T14:38:46.000Z",
    )  # fmt: skip


def test_models_ranks_and_instants_have_rows_of_their_own() -> None:
    message = metrics(
        ("vllm:num_requests_running", 1.0, LABELS),
        ("vllm:num_requests_running", 2.0, {**LABELS, "engine": "1"}),
        ("vllm:num_requests_running", 3.0, {**LABELS, "model_name": "other"}),
        ("up", 1.0, ENGINE),
    )
    message.MergeFrom(metrics(("vllm:num_requests_running", 4.0, LABELS), at_ns=AT_NS + 10**9))
    found = {(row.engine, row.model, (row.seen_at or 0) - AT_US): (row.running, row.up) for row in engine_samples(message)}
    assert found == {
        ("one", "tiny", 0): (1.0, True),
        ("one/dp1", "tiny", 0): (2.0, True),
        ("one", "other", 0): (3.0, True),
        ("one", "tiny", 1_000_000): (4.0, None),
    }


def test_an_engine_that_does_not_answer_is_a_row() -> None:
    (row,) = engine_samples(metrics(("up", 0.0, {**ENGINE, "error.type": "refused"})))
    assert (row.engine, row.model, row.up, row.running) == ("one", None, False, None)


def test_anyone_elses_up_is_no_engine() -> None:
    decoder = Decoder()
    foreign = {"service.name": "node", "service.instance.id": "10.0.0.1:9100"}
    assert engine_samples(metrics(("up", 0.0, {}), resource=foreign), decoder) == []
    vllm = {"service.name": "vllm", "service.instance.id": "10.0.0.1:8000"}
    message = metrics(("vllm:num_requests_running", 1.0, {"model_name": "tiny", "engine": "0"}), ("up", 1.0, {}), resource=vllm)
    (row,) = engine_samples(message, decoder)
    assert (row.engine, row.model, row.running, row.up) == ("10.0.0.1:8000", "tiny", 1.0, True)
    (row,) = engine_samples(metrics(("up", 0.0, {}), resource=vllm), decoder)
    assert (row.engine, row.up) == ("10.0.0.1:8000", False)


def test_delta_counters_are_not_taken_for_totals() -> None:
    message = metrics(("vllm:num_preemptions_total", 3.0, LABELS))
    message.resource_metrics[0].scope_metrics[0].metrics[0].sum.aggregation_temporality = 1
    decoder = Decoder()
    assert rows(message, decoder) == {}
    assert decoder.dropped == {"delta": 1}


def test_values_that_are_no_numbers_are_not_known() -> None:
    (row,) = engine_samples(metrics(("vllm:num_requests_running", float("nan"), LABELS), ("vllm:num_requests_waiting", 1.0, LABELS)))
    assert (row.running, row.waiting) == (None, 1.0)


def test_points_are_kept_where_a_dialect_knows_them() -> None:
    message = metrics(("http_requests_total", 4.0, {**ENGINE, "handler": "/v1"}), ("unheard_of", 1.0, ENGINE))
    histogram = message.resource_metrics[0].scope_metrics[0].metrics.add(name="vllm:time_to_first_token_seconds").histogram
    histogram.aggregation_temporality = 2
    histogram.data_points.add(
        time_unix_nano=AT_NS, sum=1.5, count=3, explicit_bounds=[0.1, 1.0], bucket_counts=[1, 2, 0]
    ).attributes.extend(pairs(LABELS))
    decoder = Decoder()
    made = rows(message, decoder)["points"]
    assert [(row.name, row.value, row.buckets, row.counts) for row in made] == [  # type: ignore[attr-defined]
        ("http_requests_total", 4.0, None, None),
        ("vllm:time_to_first_token_seconds", 1.5, [0.1, 1.0], [1.0, 2.0, 0.0]),
    ]
    assert json.loads(made[1].labels) == {"lensd.engine": "one", "model_name": "tiny", "engine": "0"}  # type: ignore[attr-defined]
    assert decoder.dropped == {"unknown": 1}
    assert len(rows(message, Decoder(keep_all_points=True))["points"]) == 3


def one_metric(name: str, kind: str, **fields: Any) -> Any:
    """A body of one data point; `temporality` and the point's own fields."""
    message = metrics(resource=ENGINE)
    data = getattr(message.resource_metrics[0].scope_metrics[0].metrics.add(name=name), kind)
    if "temporality" in fields:
        data.aggregation_temporality = fields.pop("temporality")
    data.data_points.add(time_unix_nano=AT_NS, **fields).attributes.extend(pairs(LABELS))
    return message


def points(message: Any, decoder: Decoder) -> list[tuple[Any, ...]]:
    made: list[Any] = list(rows(message, decoder).get("points", ()))
    return [(row.name, json.loads(row.labels).get("quantile"), row.value, row.buckets, row.counts) for row in made]


def test_an_exponential_histogram_is_one_with_bounds() -> None:
    """Scale 1: the base is the root of two; the buckets 1 and 3 above zero hold (1.41, 2] and (2.83, 4]."""
    name = "vllm:time_to_first_token_seconds"
    fields = {
        "scale": 1,
        "sum": 9.0,
        "zero_count": 4,
        "zero_threshold": 0.5,
        "count": 8,
        "positive": {"offset": 1, "bucket_counts": [1, 0, 2]},
    }
    decoder = Decoder()
    ((_, _, value, buckets, counts),) = points(one_metric(name, "exponential_histogram", temporality=2, **fields), decoder)
    assert value == 9.0
    assert buckets == pytest.approx([0.5, 2**0.5, 2.0, 2**1.5, 4.0])
    assert counts == [4.0, 0.0, 1.0, 0.0, 2.0, 0.0]
    assert points(one_metric(name, "exponential_histogram", temporality=1, **fields), decoder) == []
    assert points(one_metric(name, "exponential_histogram", temporality=2, scale=-90), decoder) == []
    assert decoder.dropped == {"delta": 1, "buckets": 1}


def test_a_summary_is_a_series_for_each_quantile_and_sum_and_count() -> None:
    summary = one_metric(
        "s", "summary", sum=3.5, count=7, quantile_values=[{"quantile": 0.5, "value": 0.25}, {"quantile": 0.99, "value": float("nan")}]
    )
    assert points(summary, Decoder(keep_all_points=True)) == [
        ("s", "0.5", 0.25, None, None), ("s", "0.99", None, None, None),
        ("s_sum", None, 3.5, None, None), ("s_count", None, 7.0, None, None),
    ]  # fmt: skip
    decoder = Decoder()
    assert points(summary, decoder) == []
    assert decoder.dropped == {"unknown": 4}


@pytest.mark.parametrize("kind", ["gauge", "sum", "histogram", "exponential_histogram", "summary"])
def test_a_point_without_a_value_is_no_zero(kind: str) -> None:
    decoder = Decoder(keep_all_points=True)
    assert rows(one_metric("vllm:num_requests_running", kind, flags=1), decoder) == {}
    assert decoder.dropped == {"no-value": 1}


def test_histograms_without_buckets_are_kept_and_those_that_do_not_add_up_are_not() -> None:
    decoder = Decoder(keep_all_points=True)
    assert points(one_metric("h", "histogram", temporality=2, sum=1.5, count=3), decoder) == [("h", None, 1.5, [], [3.0])]
    assert points(one_metric("h", "histogram", temporality=2, bucket_counts=[1, 2], explicit_bounds=[1.0]), decoder) == [
        ("h", None, None, [1.0], [1.0, 2.0])
    ]
    assert points(one_metric("h", "histogram", temporality=2, bucket_counts=[1, 2], explicit_bounds=[1.0, 2.0]), decoder) == []
    assert decoder.dropped == {"buckets": 1}


def test_a_real_scrape() -> None:
    text = (CAPTURES / "metrics-4-after-load.txt").read_text()
    values = [value for value in parse(text, ("vllm:",)) if not isinstance(value, Histogram)]
    message = metrics(*((value.name, value.value, {**value.labels, **ENGINE}) for value in values))
    decoder = Decoder()
    made = rows(message, decoder)
    (row,) = made["engine_samples"]
    assert isinstance(row, EngineSample)
    assert (row.engine, row.running, row.waiting) == ("one", 0.0, 0.0)
    finished = sum(value.value for value in values if value.name == "vllm:request_success_total")
    assert row.finished_total == finished > 0
    assert None not in (row.kv_usage, row.prompt_tokens_total, row.generation_tokens_total, row.prefix_queries_total, row.start_at)
    facts = {row.name: row.value for row in made["config_facts"] if isinstance(row, ConfigFact)}
    assert int(facts["num_gpu_blocks"] or 0) > 0
    assert "config_facts" not in rows(message, decoder)


def test_gpus() -> None:
    gpu = {"hw.id": "GPU-1", "hw.type": "gpu", "lensd.gpu.index": 1}
    message = metrics(
        ("hw.gpu.memory.usage", 10.0, gpu), ("hw.gpu.memory.limit", 80.0, gpu), ("hw.gpu.utilization", 0.5, gpu), ("hw.power", 300.5, gpu),
        ("hw.gpu.memory.usage", 7.0, {**gpu, "lensd.gpu.index": 0}), ("hw.temperature", 40.0, {"hw.type": "cpu", "hw.id": "0"}),
        resource={"host.name": "h"},
    )  # fmt: skip
    assert rows(message)["gpu_samples"] == [
        GpuSample(
            seen_at=AT_US, host="h", gpu="1", used_bytes=10, total_bytes=80, util=0.5, power_w=300.5,
            src="scrape:gpu:h/1@2026-11-29T14:38:46.000Z",
        ),
        GpuSample(seen_at=AT_US, host="h", gpu="0", used_bytes=7, src="scrape:gpu:h/0@2026-11-29T14:38:46.000Z"),
    ]  # fmt: skip


SENDER = {"host.name": "h", "service.name": "lensd-gateway", "service.instance.id": "i"}


def test_request_events() -> None:
    attributes = {"lensd.request.id": "r", "lensd.engine": "one", "lensd.progress.stage": "upstream", "lensd.progress.age_ms": 5000.0}
    message = logs({"name": "lensd.request.progress", "attributes": attributes}, resource=SENDER)
    message.resource_logs[0].scope_logs[0].log_records[0].trace_id = bytes(range(16))
    (row,) = rows(message)["events"]
    assert row == Event(
        seen_at=AT_US, host="h", engine="one", request_id="r", trace_id=bytes(range(16)).hex(),
        name="lensd.request.progress", severity="info",
        fields='{"service.name":"lensd-gateway","service.instance.id":"i",'
               '"lensd.request.id":"r","lensd.progress.stage":"upstream","lensd.progress.age_ms":5000.0}',
        src="log:h/lensd-gateway@2026-11-29T14:38:46.000Z",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "attributes", "resource", "kept"),
    [
        ("lensd.gateway.act", {"lensd.listen": "h:1"}, SENDER, {**SENDER, "lensd.listen": "h:1"}),
        ("lensd.request.started", {}, {**SENDER, "lensd.listen": "h:1"}, {**SENDER, "lensd.listen": "h:1"}),
        ("lensd.request.started", {"service.instance.id": "mine"}, SENDER, {**SENDER, "service.instance.id": "mine"}),
        ("lensd.request.started", {}, {"service.name": "x", "service.version": "1"}, {"service.name": "x"}),
        ("lensd.request.started", {}, {}, None),
        ("lensd.engine.request", {"a": 1}, SENDER, {"a": 1}),
        ("lensd.engine.process", {"a": 1}, SENDER, {"a": 1}),
        ("somebody.elses", {"a": 1}, SENDER, {"a": 1}),
    ],
)  # fmt: skip
def test_events_of_ours_that_can_be_lost_keep_who_sent_them(
    name: str, attributes: dict[str, Any], resource: dict[str, Any], kept: dict[str, Any] | None
) -> None:
    (row,) = rows(logs({"name": name, "attributes": attributes}, resource=resource))["events"]
    assert isinstance(row, Event)
    in_fields = {key: value for key, value in kept.items() if key != "host.name"} if kept is not None else None
    assert (json.loads(row.fields) if row.fields else None) == in_fields
    assert row.host == resource.get("host.name")


def test_an_events_name_may_be_an_attribute() -> None:
    (row,) = rows(logs({"attributes": {"event.name": "lensd.gateway.act", "lensd.gateway.act": "keys_reloaded"}, "severity": 13}))["events"]
    assert isinstance(row, Event)
    assert (row.name, row.severity, row.fields) == ("lensd.gateway.act", "warning", '{"lensd.gateway.act":"keys_reloaded"}')


def test_a_config_event_is_a_fact_told_once_a_start() -> None:
    decoder = Decoder()
    about = {"lensd.config.subject": "one", "lensd.config.name": "max_model_len", "lensd.config.origin": "effective"}
    made = [
        rows(logs({"name": "lensd.config", "attributes": {**about, "lensd.config.value": value}}), decoder)
        for value in ("16k", "16000", "32")
    ]
    assert [[(fact.name, fact.value, fact.was, fact.origin) for fact in body.get("config_facts", ()) if isinstance(fact, ConfigFact)]
            for body in made] == [
        [("max_model_len", "16000", None, "effective")], [], [("max_model_len", "32", None, "effective")],
    ]  # fmt: skip


DEAD = "(EngineCore pid=2) ERROR 11-17 18:03:00 [core.py:1512] EngineCore encountered a fatal error."


@pytest.mark.parametrize("kind", [{"lensd.engine.kind": "vllm"}, {}])
@pytest.mark.parametrize("name", ["lensd.engine.log", ""])
def test_engine_log_lines_get_their_meaning(kind: dict[str, str], name: str) -> None:
    attributes = {**kind, "lensd.engine": "one", "log.file.path": "/var/log/one.log", "lensd.log.line": 41}
    decoder = Decoder()
    made = rows(
        logs({"name": name, "body": DEAD, "attributes": attributes}, {"name": name, "body": "no meaning at all", "attributes": attributes}),
        decoder,
    )
    (row,) = made["events"]
    assert isinstance(row, Event)
    assert (row.engine, row.seq, row.line, row.seen_at) == ("one", 41, DEAD, AT_US)
    assert row.name is not None
    assert row.name.startswith("engine.")
    assert decoder.dropped == {"unread-lines": 1}


def test_a_line_of_nobody_is_counted() -> None:
    decoder = Decoder()
    assert rows(logs({"body": "hello"}), decoder) == {}
    assert decoder.dropped == {"unread-lines": 1}


def test_what_is_no_request_is_said() -> None:
    with pytest.raises(BadBodyError, match="traces"):
        Decoder().decode(Signal.TRACES, b"\xff\xff", 1)
