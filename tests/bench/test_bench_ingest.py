"""What bench-ingest sends is what it says it sends, and its figures are those of what happened."""

import sys
from typing import Any

import pytest
from checkout import ROOT
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "lensd")]

from ingest import figures  # noqa: E402
from ingest.client import Sent  # noqa: E402
from ingest.ours import Look, Result, Watch  # noqa: E402
from ingest.spans import A_REQUEST, bodies  # noqa: E402

SPANS, A_BODY, FIRST_US = 7 * 1_000, 512, 1_790_000_000_000_000


@pytest.fixture(scope="module")
def sent() -> list[Any]:
    return [ExportTraceServiceRequest.FromString(body) for body in bodies(SPANS, A_BODY, FIRST_US, 1)]


def spans_of(body: Any) -> list[Any]:
    return [span for resource in body.resource_spans for scope in resource.scope_spans for span in scope.spans]


def test_bodies_hold_the_spans_that_were_asked_for(sent: list[Any]) -> None:
    assert [len(spans_of(body)) for body in sent] == [A_BODY] * (SPANS // A_BODY) + [SPANS % A_BODY]
    spans = [span for body in sent for span in spans_of(body)]
    assert len({(span.trace_id, span.span_id) for span in spans}) == SPANS
    by_trace: dict[bytes, set[bytes]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, set()).add(span.span_id)
    assert {len(ids) for ids in by_trace.values()} == {A_REQUEST}
    assert all(not span.parent_span_id or span.parent_span_id in by_trace[span.trace_id] for span in spans)
    assert sum(not span.parent_span_id for span in spans) == len(by_trace)


def test_spans_are_as_large_and_as_often_wrong_as_the_facts_say(sent: list[Any]) -> None:
    spans = [span for body in sent for span in spans_of(body)]
    assert sum(len(span.attributes) for span in spans) / SPANS == pytest.approx(14.7, abs=0.1)
    assert sum(body.ByteSize() for body in sent) / SPANS == pytest.approx(600, abs=40)
    failed = {span.trace_id for span in spans if span.status.code == 2}
    assert 0.015 < len(failed) / (SPANS / A_REQUEST) < 0.05
    assert all(span.start_time_unix_nano < span.end_time_unix_nano for span in spans)


def test_bodies_are_written_as_protobuf_writes_them(sent: list[Any]) -> None:
    again = list(bodies(SPANS, A_BODY, FIRST_US, 1))
    assert [len(body) for body in again] == [body.ByteSize() for body in sent]
    assert list(bodies(SPANS, A_BODY, FIRST_US, 2)) != again


def result(**changed: Any) -> Result:
    made = {
        "spans": 400, "body_bytes": 1, "sent": Sent([10.0, 10.0, 11.0, 11.0], [10.1, 10.2, 11.1, 11.5]), "looks": [Look(12.0, 4, 400)],
        "stored_at": 12.0, "judged_at": None, "checkpoints": [], "requests": 0, "judged": 0, "store_bytes": 40_000, "cpu_s": 0.02,
    }  # fmt: skip
    return Result(**(made | changed))


def test_a_rate_runs_from_the_first_body_sent_until_the_last_is_queryable() -> None:
    found = figures.of_round(result())
    assert (found["rate"], found["ack_max"], found["span_cpu"]) == pytest.approx((200.0, 500.0, 50.0))
    assert (found["ack_p50"], found["ack_p99"], found["request_bytes"]) == pytest.approx((100.0, 500.0, 700.0))
    assert "judged_rate" not in found
    assert figures.of_round(result(judged_at=14.0, requests=10, judged=9))["judged_rate"] == pytest.approx(100.0)


def test_lag_is_the_wait_of_the_oldest_body_that_is_acknowledged_and_not_stored() -> None:
    looks = [Look(10.5, 0, 0), Look(11.3, 1, 100), Look(12.0, 3, 300), Look(12.5, 4, 400)]
    assert figures.lags(result(), looks) == pytest.approx([0.4, 1.1, 0.5, 0.0])


def test_only_acknowledgements_that_overlap_a_checkpoint_count_as_during_one() -> None:
    assert figures.of_round(result(checkpoints=[(10.05, 10.15)]))["ack_checkpoint_p99"] == pytest.approx(200.0)
    assert figures.of_round(result(checkpoints=[(11.05, 11.2)]))["ack_checkpoint_p99"] == pytest.approx(500.0)
    assert "ack_checkpoint_p99" not in figures.of_round(result(checkpoints=[(20.0, 21.0)]))


def test_writes_close_together_are_one_checkpoint(tmp_path: Any) -> None:
    watch = Watch(tmp_path)
    watch._seen = [1.0, 1.05, 1.1, 3.0]
    assert watch.checkpoints() == [(1.0, 1.1), (3.0, 3.0)]


@pytest.mark.parametrize(
    ("with_peers", "found", "compared", "held"),
    [
        (False, {"rules_off_rate": 40_000.0}, {}, [True]),
        (False, {"rules_off_rate": 39_999.0}, {}, [False]),
        (False, {}, {}, [False]),
        (True, {"rules_off_rate": 20_000.0}, {"to_phoenix": 100.0, "to_mlflow": 20.0}, [True, True]),
        (True, {"rules_off_rate": 90_000.0}, {"to_phoenix": 99.0}, [False, False]),
    ],
)
def test_the_ratio_decides_where_peers_are_measured(with_peers: bool, found: Any, compared: Any, held: list[bool]) -> None:
    budgets = figures.budgets(found, compared, with_peers=with_peers)
    assert [budget["held"] for budget in budgets][: len(held)] == held
    assert not any(budget["held"] for budget in budgets[len(held) :])
