"""From vLLM's statistics to rows of the public tables: what the plugin sends is what the receiver looks for."""

import json
from typing import Any

import pytest
from lensd_collectors.post import Post, Reply, Result
from lensd_collectors.vllm import plugin
from lensd_collectors.vllm.plugin import LensdStatLogger
from lensd_collectors.vllm.sender import make_sender
from stats_objects import AT, finished, iteration, recorded, scheduler

from lensd.receive.decode import Decoder
from lensd.receive.parse import parse_json
from lensd.store.segments import Signal

SIGNALS = {"/v1/metrics": Signal.METRICS, "/v1/logs": Signal.LOGS}


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    sent: list[tuple[str, bytes]] = []

    def send(self: Post, path: str, data: bytes) -> Reply:
        sent.append((path, data))
        return Reply(Result.TAKEN)

    monkeypatch.setattr(Post, "send", send)
    return sent


def received(bodies: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch, steps: Any) -> dict[str, list[Any]]:
    made = make_sender({"LENSD_OTLP": "http://127.0.0.1:1", "LENSD_ENGINE": "e0"})
    assert made is not None
    monkeypatch.setattr(plugin, "sender", lambda: made)
    logger = LensdStatLogger()
    for scheduler_stats, iteration_stats in steps:
        logger.record(scheduler_stats, iteration_stats)
        assert made.exporter.flush()
    made.exporter.close()
    decoder, rows = Decoder(), dict[str, list[Any]]()
    for path, data in bodies:
        for table, found in decoder.decode(SIGNALS[path], parse_json(SIGNALS[path], data).SerializeToString(), int(AT * 1e6)).items():
            rows.setdefault(table, []).extend(found)
    return rows


def test_a_record_is_found_by_the_id_of_its_reply(bodies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = plugin.time.time()
    rows = received(bodies, monkeypatch, [(None, iteration(finished(), finished(request_id="cmpl-2-0"), iteration_timestamp=now))])
    told = [(row.name, row.request_id, row.engine) for row in rows["events"]]
    assert told == [("lensd.engine.request", "chatcmpl-r1", "e0"), ("lensd.engine.request", "cmpl-2-0", "e0")]
    assert rows["events"][0].seen_at == pytest.approx(now * 1e6, abs=2)
    fields = json.loads(rows["events"][0].fields)
    assert {name: fields[f"lensd.engine.{name}"] for name in ("queue_ms", "prefill_ms", "decode_ms", "e2e_ms", "preemptions")} == {
        "queue_ms": 250.0, "prefill_ms": 500.0, "decode_ms": 1500.0, "e2e_ms": 2500.0, "preemptions": 1,
    }  # fmt: skip


def test_a_sample_fills_every_column_that_a_scrape_fills(bodies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    [row] = received(bodies, monkeypatch, [(scheduler(), iteration(finished()))])["engine_samples"]
    columns = (
        "running", "waiting", "waiting_capacity", "waiting_deferred", "kv_usage", "preemptions_total", "prompt_tokens_total",
        "generation_tokens_total", "prefix_queries_total", "prefix_hits_total", "finished_total",
    )  # fmt: skip
    assert [getattr(row, column) for column in columns] == [2, 4, 3, 1, 0.5, 1, 12, 8, 12, 4, 1]
    assert row.engine == "e0"


def test_a_real_servers_steps(bodies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = received(bodies, monkeypatch, [(each.scheduler_stats, each.iteration_stats) for each in recorded()])
    assert len({row.request_id for row in rows["events"]}) == 5
    assert {row.running for row in rows["engine_samples"]} == {0.0, 1.0}
