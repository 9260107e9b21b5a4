"""The doors are one: what comes in by HTTP with protobuf, HTTP with JSON and gRPC is taken, cut, refused and answered alike."""

import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lensd_collectors.rows import Row
from otlp_bodies import AT_NS, AT_US, KINDS, logs, metrics, pairs, traces
from otlp_senders import SENDERS, Answer, Send

from lensd.receive.decode import Decoder
from lensd.receive.intake import Intake
from lensd.receive.limits import DoorLimits
from lensd.store.journal import Journal, Scan, Signal

ENGINE = {"lensd.engine": "one", "lensd.engine.kind": "vllm", "model_name": "tiny", "engine": "0"}
LIMITS = DoorLimits(max_body_bytes=200_000, max_decoded_bytes=400_000, max_records=5, max_attributes=10, max_value_chars=100)
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE, UNAUTHENTICATED = 3, 8, 14, 16


def histograms() -> Any:
    message = metrics(("vllm:num_requests_running", 2.0, ENGINE), ("vllm:num_preemptions_total", 3.0, ENGINE))
    metric = message.resource_metrics[0].scope_metrics[0].metrics.add(name="vllm:time_to_first_token_seconds").exponential_histogram
    metric.aggregation_temporality = 2
    point = metric.data_points.add(time_unix_nano=AT_NS, scale=1, count=3, sum=4.0, zero_count=1)
    point.positive.offset, point.positive.bucket_counts[:] = -1, [1, 0, 1]
    point.attributes.extend(pairs(ENGINE))
    return message


BODIES = {
    "spans": traces(
        {"name": "llm_request", "attributes": {"gen_ai.request.id": "r1", "a": [1, 2.5, True, {"b": "c"}]}, "events": [("e", {"k": 1})]},
        {"name": "s?q=1", "attributes": {"gen_ai.prompt": "planted"}, "message": "Bearer sk-planted0walrus0key7741"},
        resource={"service.name": "vllm"},
    ),
    "metrics": histograms(),
    "logs": logs({"name": "lensd.request.started", "body": "line ü", "attributes": {"lensd.request.id": "r1", "n": 2**62}}),
    "nothing": traces(),
}


@pytest.fixture(params=SENDERS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal")
    yield made
    made.close()


@pytest.fixture
def intake(journal: Journal) -> Intake:
    return Intake(journal, "t", LIMITS, clock=lambda: AT_US / 1e6)


@pytest.fixture
def send(way: str, intake: Intake) -> Iterator[Send]:
    with SENDERS[way](intake) as made:
        yield made


def held(journal: Journal) -> list[Any]:
    """The messages that the journal has."""
    kinds = {signal: kind for kind, signal in KINDS.items()}
    return [kinds[record.kind].FromString(record.payload) for record in Scan(journal.folder)]


def rows(journal: Journal) -> list[dict[str, list[Row]]]:
    decoder = Decoder(keep_all_points=True)
    each = [decoder.decode(record.kind, record.payload, record.received_at_us) for record in Scan(journal.folder)]
    return [{table: list(some) for table, some in made.items()} for made in each]


def test_the_same_bodies_give_the_same_rows(send: Send, journal: Journal, intake: Intake, tmp_path: Path) -> None:
    for number, message in enumerate(BODIES.values()):
        assert send(KINDS[type(message)], message, packed=number % 2 == 1) == Answer(0, "", 0, None)
    plain = Journal(tmp_path / "plain")
    for message in BODIES.values():
        wanted = type(message).FromString(message.SerializeToString())
        intake.scrubber.scrub(KINDS[type(message)], wanted)
        plain.append(KINDS[type(message)], AT_US, wanted.SerializeToString()).result(5)
    plain.close()
    assert rows(journal) == rows(plain)
    assert [sorted(made) for made in rows(journal)] == [["spans"], ["engine_samples", "points"], ["events"], []]
    assert "planted" not in str(held(journal))
    assert intake.counts.accepted == {"traces": 2, "metrics": 1, "logs": 1}


def test_a_packed_body_is_the_same_body(send: Send, journal: Journal, intake: Intake) -> None:
    for packed in (False, True, True):
        assert send(Signal.TRACES, BODIES["spans"], packed=packed).code == 0
    assert len(held(journal)) == 1
    assert (intake.counts.accepted, intake.counts.repeated) == ({"traces": 1}, {"traces": 2})


@pytest.mark.parametrize(
    ("signal", "message", "kept"),
    [
        (Signal.TRACES, traces(*({"name": f"s{n}"} for n in range(8))), [f"s{n}" for n in range(5)]),
        (Signal.LOGS, logs(*({"name": f"s{n}"} for n in range(8))), [f"s{n}" for n in range(5)]),
        (Signal.METRICS, metrics(*((f"s{n}", float(n), {}) for n in range(8))), [f"s{n}" for n in range(5)]),
    ],
)
def test_records_over_the_limit_are_left_out_and_the_sender_is_told(
    send: Send, journal: Journal, intake: Intake, signal: Signal, message: Any, kept: list[str]
) -> None:
    for _ in range(2):  # also where the first answer was lost
        answer = send(signal, message)
        assert (answer.code, answer.left_out) == (0, 3)
        assert answer.message.startswith("a body may hold 5 ")
    assert len(held(journal)) == 1
    found = [row.name for made in rows(journal) for table in made.values() for row in table]  # type: ignore[attr-defined]
    assert found == kept
    assert intake.counts.left_out == {signal.name.lower(): 3}


def test_attributes_over_the_limit_are_dropped_and_long_values_cut(send: Send, journal: Journal, intake: Intake) -> None:
    many, long = {f"a{n:02}": n for n in range(12)}, "ü" * 150
    message = traces(
        {"attributes": {"gen_ai.prompt": "x", **many}, "events": [("e", many)], "message": long}, {"name": long}, resource=many
    )
    message.resource_spans[0].scope_spans[0].scope.attributes.extend(pairs({"l": [long, "short"], "m": {"k": long}}))
    message.resource_spans[0].scope_spans[0].scope.attributes.add(key="b").value.bytes_value = b"b" * 150
    assert send(Signal.TRACES, message) == Answer(0, "", 0, None)
    [kept] = held(journal)
    resource = kept.resource_spans[0]
    span, other = (scope.spans[0] for scope in resource.scope_spans)
    for holder in (resource.resource, span, span.events[0]):
        assert [pair.key for pair in holder.attributes] == [f"a{n:02}" for n in range(10)]
    assert (span.status.message, other.name) == ("ü" * 100, "ü" * 100)
    listed, mapped, raw = (pair.value for pair in resource.scope_spans[0].scope.attributes)
    assert [item.string_value for item in listed.array_value.values] == ["ü" * 100, "short"]
    assert mapped.kvlist_value.values[0].value.string_value == "ü" * 100
    assert raw.bytes_value == b"b" * 100
    assert (intake.scrubber.counts["attributes-over-limit"], intake.scrubber.counts["value-over-limit"]) == (6, 5)


def test_a_key_at_the_end_of_a_long_value_is_taken_out_before_it_is_cut(send: Send, journal: Journal) -> None:
    assert send(Signal.LOGS, logs({"body": "x" * 85 + " sk-planted0walrus0key7741"})).code == 0
    assert "sk-planted" not in str(held(journal))


def bomb(size: int) -> bytes:
    return gzip.compress(b"\0" * size)


@pytest.mark.parametrize(
    ("how", "code", "says", "counted"),
    [
        ({"token": "wrong"}, UNAUTHENTICATED, "bearer token", "unauthorized"),
        ({"raw": b"\xff\xff\xff"}, INVALID_ARGUMENT, "body is not", "bad-body"),
        ({"raw": gzip.compress(b"\xff\xff\xff"), "packed": True}, INVALID_ARGUMENT, "body is not", "bad-body"),
        ({"raw": gzip.compress(b"x" * 500)[:-4], "packed": True}, INVALID_ARGUMENT, "cut short", "bad-body"),
        ({"raw": gzip.compress(b"x" * 500) + b"x", "packed": True}, INVALID_ARGUMENT, "after its end", "bad-body"),
        ({"raw": b"\x1f\x8b" + b"x" * 50, "packed": True}, INVALID_ARGUMENT, "not gzip", "bad-body"),
        ({"raw": bomb(400_001), "packed": True}, RESOURCE_EXHAUSTED, "over 400000 bytes once unpacked", "body-too-large"),
        ({"raw": b"x" * 200_001}, RESOURCE_EXHAUSTED, "arger|over 200000", "body-too-large"),
        ({"raw": random.Random(1).randbytes(200_001)}, RESOURCE_EXHAUSTED, "arger|over 200000", "body-too-large"),
    ],
)
def test_what_is_refused_is_refused_alike_and_not_kept(
    send: Send, journal: Journal, intake: Intake, how: dict[str, Any], code: int, says: str, counted: str
) -> None:
    answer = send(Signal.TRACES, **{"message": BODIES["spans"], **how})
    assert (answer.code, answer.left_out, answer.retry_after_s) == (code, 0, None)
    assert any(part in answer.message for part in says.split("|"))
    assert "\n" not in answer.message
    assert held(journal) == []
    assert intake.counts.refused == {counted: 1}
    assert send(Signal.TRACES, BODIES["spans"]).code == 0


def test_a_full_journal_and_a_closed_one_say_when_to_come_back(way: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "small", max_bytes=400)
    intake = Intake(journal, "t", DoorLimits(retry_after_s=7))
    with SENDERS[way](intake) as send:
        answers = [send(Signal.TRACES, traces({"name": f"s{n}"})) for n in range(12)]
        taken = [answer for answer in answers if answer.code == 0]
        assert 0 < len(taken) < 12
        assert all((answer.code, answer.retry_after_s) == (RESOURCE_EXHAUSTED, 7) for answer in answers[len(taken) :])
        assert len(held(journal)) == len(taken)
        journal.close()
        last = send(Signal.TRACES, traces({"name": "late"}))
        assert (last.code, last.retry_after_s) == (UNAVAILABLE, 7)
    assert intake.counts.refused == {"journal-full": 12 - len(taken), "journal-failed": 1}
