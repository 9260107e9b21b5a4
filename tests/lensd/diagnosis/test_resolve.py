"""What a cite becomes when nothing but the store is left."""

import pytest

from lensd.diagnosis.cases import fill
from lensd.diagnosis.resolve import LiveCites, resolve
from lensd.records import Confidence, Evidence, Finding, Severity
from lensd.store.memory import MemoryStore

AT = "2026-11-20 10:00:00"
SCRAPE = "scrape:http://e0:8000/metrics@2026-11-20T10:00:00Z"
ROWS = {
    "requests": [{"request_id": "r", "queue_ms": 59970.25, "status": 401, "done_seen": False, "src": "span:1", "started_at": AT}],
    "spans": [{"trace_id": "t", "name": "llm_request", "duration_ms": 1.5, "src": "span:1", "started_at": AT}],
    "engine_samples": [{"seen_at": AT, "engine": "e0", "model": "m", "waiting": 203, "kv_usage": 0.987, "up": True, "src": SCRAPE}],
    "points": [
        {"seen_at": AT, "name": "vllm:num_requests_waiting", "labels": '{"model_name": "m", "engine": "0"}', "value": 203.0, "src": SCRAPE}
    ],
    "events": [
        {"seen_at": AT, "engine": "e0", "name": "engine.dead", "line": "EngineCore encountered a fatal error.", "src": "log:h/vllm.log@1"},
        {"seen_at": AT, "engine": "e0", "name": "lensd.engine.process", "fields": '{"process.exit.code": -9}', "src": "log:h/agent@1"},
    ],
    "config_facts": [
        {"subject": "e0", "name": "max_model_len", "value": "16384", "src": "log:h/vllm.log@2"},
        {"subject": "e0", "name": "max_num_seqs", "value": "64", "src": "log:h/vllm.log@2"},
    ],
    "gpu_samples": [{"seen_at": AT, "host": "h", "gpu": "0", "used_bytes": 1024, "src": "scrape:nvml:h/0@1"}],
}


@pytest.fixture
def cursor():
    store = MemoryStore()
    fill(store, ROWS)
    with store.cursor() as made:
        yield made
    store.close()


@pytest.mark.parametrize(
    ("src", "column", "quote"),
    [
        ("span:1", "queue_ms", "queue_ms=59970.25"),
        ("log:h/vllm.log@2", "max_num_seqs", "max_num_seqs=64"),
        ("log:h/vllm.log@2", "max_model_len", "max_model_len=16384"),
        ("span:1", "status", "status=401"),
        ("span:1", "done_seen", "done_seen=false"),
        ("span:1", "duration_ms", "duration_ms=1.5"),
        (SCRAPE, "waiting", 'waiting{engine="e0",model_name="m"} 203'),
        (SCRAPE, "kv_usage", 'kv_usage{engine="e0",model_name="m"} 0.987'),
        (SCRAPE, "up", 'up{engine="e0",model_name="m"} true'),
        ("log:h/vllm.log@1", "line", "EngineCore encountered a fatal error."),
        ("log:h/agent@1", "line", 'lensd.engine.process {"process.exit.code": -9}'),
        ("log:h/vllm.log@2", "value", "max_model_len=16384"),
        ("scrape:nvml:h/0@1", "used_bytes", 'used_bytes{host="h",gpu="0"} 1024'),
    ],
)
def test_quote(cursor, src, column, quote):
    found = LiveCites(cursor)(src, column)
    assert found is not None
    assert (found.quote, found.source) == (quote, src)


def test_a_sample_goes_by_the_engines_own_name_where_the_store_has_it(cursor):
    cites = LiveCites(cursor, metric_names={"waiting": ("vllm:num_requests_waiting",)})
    found = cites(SCRAPE, "waiting")
    assert found is not None
    assert found.quote == 'vllm:num_requests_waiting{engine="0",model_name="m"} 203'
    assert cites(SCRAPE, "kv_usage").quote == 'kv_usage{engine="e0",model_name="m"} 0.987'


def test_outside_its_extent_nothing_is_found(cursor):
    assert LiveCites(cursor, 0, 1)(SCRAPE, "waiting") is None
    assert LiveCites(cursor)("span:nowhere", "queue_ms") is None


def test_resolve_keeps_text_and_place_of_what_is_not_found(cursor):
    finding = Finding(
        label="x",
        runbook="x",
        title="x",
        kind="cause",
        stage="queue",
        severity=Severity.INFO,
        confidence=Confidence.LIKELY,
        cause="x",
        fix="x",
        evidence=(Evidence(text="a", source="span:1#queue_ms"), Evidence(text="b", source="gone:1#status"), Evidence(text="c")),
    )
    (resolved,) = resolve([finding], LiveCites(cursor))
    assert resolved.evidence == (
        Evidence(text="a", quote="queue_ms=59970.25", source="span:1"),
        Evidence(text="b", source="gone:1"),
        Evidence(text="c"),
    )
