"""Settings of an engine as they come in: each start's are facts, a change is told once and at once, and nothing else is a change."""

import json
from typing import Any

import pytest
from lensd_collectors.rows import ConfigFact, Event, Row
from otlp_bodies import AT_NS, AT_US, KINDS, logs, metrics

from lensd.receive.decode import Decoder
from lensd.receive.ledger import last_facts
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore

S = 10**9
LLAMA2_7B = {
    "model_type": "llama", "num_hidden_layers": "32", "num_attention_heads": "32", "num_key_value_heads": "32", "hidden_size": "4096",
    "dtype": "float16", "max_position_embeddings": "32768",
}  # fmt: skip
BANNER = "(APIServer pid=1) INFO 11-17 18:03:00 [utils.py:1] vLLM server version 0.33.0, serving model tiny"


class Door:
    """Bodies of one engine, `at` seconds after the first; keeps what would be stored."""

    def __init__(self, stored: list[ConfigFact] | None = None, start: int = 0) -> None:
        self.decoder, self.facts, self.events = Decoder(facts=stored or ()), list[ConfigFact](), list[Event]()
        self.number = start

    def take(self, message: Any) -> list[ConfigFact]:
        made: dict[str, list[Row]] = self.decoder.decode(KINDS[type(message)], message.SerializeToString(), AT_US)
        batch_of(made)
        news = [row for row in made.get("config_facts", ()) if isinstance(row, ConfigFact)]
        self.facts += news
        self.events += [row for row in made.get("events", ()) if isinstance(row, Event) and row.name == "lensd.config.changed"]
        return news

    def lines(self, at: float, *texts: str, path: str = "/var/log/e.log") -> list[ConfigFact]:
        records = []
        for text in texts:
            self.number += 1
            attributes = {"lensd.engine": "e", "lensd.engine.kind": "vllm", "log.file.path": path, "lensd.log.line": self.number}
            records.append({"name": "lensd.engine.log", "body": text, "attributes": attributes})
        message = logs(*records)
        for number, record in enumerate(message.resource_logs[0].scope_logs[0].log_records):
            record.time_unix_nano = AT_NS + round(at * S) + number * 1000
        return self.take(message)

    def start(self, at: float, args: str, *more: str) -> list[ConfigFact]:
        given = f"(APIServer pid=1) INFO 11-17 18:03:01 [api_utils.py:286] non-default args: {args}"
        return self.lines(at, BANNER, given, *(f"(APIServer pid=1) INFO 11-17 18:03:02 [model.py:2152] {text}" for text in more))

    def config(self, at: float, origin: str = "effective", **facts: str) -> list[ConfigFact]:
        """What the agent itself has found out."""
        about = {"lensd.config.subject": "e", "lensd.config.origin": origin, "lensd.engine": "e"}
        records = [
            {"name": "lensd.config", "attributes": {**about, "lensd.config.name": name, "lensd.config.value": value}}
            for name, value in facts.items()
        ]
        message = logs(*records)
        for record in message.resource_logs[0].scope_logs[0].log_records:
            record.time_unix_nano = AT_NS + round(at * S)
        return self.take(message)

    def scrape(self, at: float, start_s: float, **info: str) -> list[ConfigFact]:
        labels = {"lensd.engine": "e", "lensd.engine.kind": "vllm", "lensd.scrape.target": "http://h:8000/metrics"}
        return self.take(
            metrics(
                ("vllm:num_requests_running", 0.0, {**labels, "model_name": "m"}),
                ("process_start_time_seconds", AT_NS / S + start_s, labels),
                ("vllm:cache_config_info", 1.0, {**labels, **info}),
                at_ns=AT_NS + round(at * S),
            )
        )

    def told(self) -> list[tuple[str | None, str | None, str | None, str | None]]:
        return [(fact.name, fact.value, fact.was, fact.origin) for fact in self.facts]

    def changes(self) -> list[dict[str, Any]]:
        return [change for event in self.events for change in json.loads(event.fields or "")["changes"]]


def test_both_ways_of_one_line_are_one_fact() -> None:
    door = Door()
    door.start(0, "{'enforce_eager': True, 'max_model_len': '4k', 'served_model_name': ['a', 'b']}")
    assert door.config(0.1, "flag", enforce_eager="true", max_model_len="4000", served_model_name="a b") == []
    assert door.told() == [
        ("enforce_eager", "true", None, "flag"), ("max_model_len", "4000", None, "flag"), ("served_model_name", "a b", None, "flag"),
    ]  # fmt: skip
    assert door.events == []


def test_another_start_tells_everything_again_and_changes_are_one_event() -> None:
    door = Door()
    door.start(0, "{'max_model_len': 4096, 'max_num_seqs': 8, 'port': 8000}", "Using max model len 4096")
    news = door.start(9000, "{'max_model_len': 32768, 'port': 8000, 'gpu_memory_utilization': 0.95}", "Using max model len 32768")
    assert sorted((fact.name, fact.value, fact.was, fact.origin) for fact in news) == [
        ("gpu_memory_utilization", "0.95", None, "flag"), ("max_model_len", "32768", "4096", "effective"),
        ("max_model_len", "32768", "4096", "flag"), ("max_num_seqs", None, "8", "flag"), ("port", "8000", None, "flag"),
    ]  # fmt: skip
    [event] = door.events
    assert (event.engine, event.severity) == ("e", "info")
    assert event.line == "max_model_len 4096 -> 32768, gpu_memory_utilization not given -> 0.95, max_num_seqs 8 -> not given"
    assert {change["name"]: (change["was"], change["value"]) for change in door.changes()} == {
        "max_model_len": ("4096", "32768"), "gpu_memory_utilization": (None, "0.95"), "max_num_seqs": ("8", None),
    }  # fmt: skip
    assert "over_budget" not in json.loads(event.fields or "")


def test_the_same_start_over_again_is_no_change() -> None:
    door = Door()
    for at in (0, 9000, 18000):
        door.start(at, "{'max_model_len': 4096}", "Using max model len 4096")
        door.config(at + 60, max_model_len="4096", served_model_name="m")
        door.scrape(at + 61, at - 5, block_size="16", num_gpu_blocks=str(700 + at), cache_dtype="auto")
    assert [fact.name for fact in door.facts if fact.was is not None] == ["num_gpu_blocks", "num_gpu_blocks"]
    assert door.events == []


def test_an_agent_that_starts_again_tells_nothing_new() -> None:
    door = Door()
    door.start(0, "{'max_model_len': 4096}", "Using max model len 4096")
    door.config(60, max_model_len="4096", served_model_name="m")
    door.scrape(61, -5, block_size="16")
    assert door.config(500, "flag", max_model_len="4096") == []  # looked back for
    assert door.config(501, max_model_len="4096", served_model_name="m") == []
    assert door.scrape(502, -5, block_size="16") == []
    assert door.events == []


def test_a_key_that_somebody_sends_as_a_setting_is_not_kept() -> None:
    door = Door()
    door.start(0, "{'max_model_len': 4096}")
    door.config(1, "flag", api_key="plain-as-a-word", hf_token="another-word", kv_cache_dtype="fp8")
    assert door.told()[1:] == [("api_key", "***", None, "flag"), ("hf_token", "***", None, "flag"), ("cache_dtype", "fp8", None, "flag")]


def stored(door: Door) -> list[ConfigFact]:
    """What a store gives the next run."""
    store = MemoryStore()
    try:
        store.append(batch_of({"config_facts": door.facts}))
        with store.cursor() as cursor:
            return last_facts(cursor)
    finally:
        store.close()


def test_a_daemon_that_starts_again_remembers() -> None:
    before = Door()
    before.start(0, "{'max_model_len': 4096, 'max_num_seqs': 8}", "Using max model len 4096")
    before.scrape(61, -5, block_size="16")
    door = Door(stored(before), start=3)
    assert door.scrape(100, -5, block_size="16") == []
    assert door.config(101, "flag", max_model_len="4096", max_num_seqs="8") == []
    news = door.start(9000, "{'max_model_len': 32768}")
    assert [(fact.name, fact.value, fact.was) for fact in news] == [("max_model_len", "32768", "4096"), ("max_num_seqs", None, "8")]
    assert len(door.events) == 1


def test_a_daemon_that_remembers_nothing_tells_no_change() -> None:
    door = Door()
    door.start(9000, "{'max_model_len': 32768}", "Using max model len 32768")
    assert [fact.was for fact in door.facts] == [None, None]
    assert door.events == []


def test_a_restart_while_the_daemon_was_away_is_seen_by_the_process_start() -> None:
    before = Door()
    before.start(0, "{'max_model_len': 4096}")
    door = Door(stored(before))
    door.scrape(9100, 9000, block_size="16")
    news = door.config(9101, "flag", max_model_len="32768")
    assert [(fact.value, fact.was) for fact in news] == [("32768", "4096")]
    assert [change["name"] for change in door.changes()] == ["max_model_len"]


def test_two_replicas_behind_one_name_change_nothing() -> None:
    door = Door()
    for at in range(0, 600, 15):
        door.scrape(at, -500 + at % 2 * 30, block_size="16", num_gpu_blocks=str(700 + at % 2), cache_dtype=("auto", "fp8")[at % 2])
    assert all(fact.was is None for fact in door.facts)
    assert len(door.facts) == 5
    assert door.events == []


def test_replicas_that_start_again_have_their_own_values_still() -> None:
    door = Door()
    for begun in (0, 9000):
        for at in (0, 15, 30):
            for replica in (0, 1):
                door.scrape(begun + at + replica, begun - 10 + replica, cache_dtype=("auto", "fp8")[replica])
    assert all(fact.was is None for fact in door.facts)
    assert door.events == []


def over(door: Door) -> list[Any]:
    return [json.loads(event.fields or "").get("over_budget") for event in door.events]


MEASURED = {"kv_cache_bytes": str(8 << 30), "weights_bytes": str(13 << 30)}


def test_a_length_that_the_cache_cannot_hold_is_flagged_at_the_start() -> None:
    door = Door()
    door.start(0, "{'max_model_len': 4096}")
    door.config(5, "model", **LLAMA2_7B)
    door.config(6, "measured", **MEASURED)
    derived = {fact.name: fact.value for fact in door.facts if fact.origin == "derived"}
    assert (derived["kv_bytes_per_token"], derived["kv_request_bytes"]) == ("524288", str(2 << 30))
    door.start(9000, "{'max_model_len': 32768}")
    [event] = door.events
    fields = json.loads(event.fields or "")
    assert (fields["over_budget"], fields["need_bytes"], fields["have_bytes"]) == (True, 16 << 30, 8 << 30)
    assert 16_000 < fields["fits"] <= 16_384
    assert event.severity == "warning"


@pytest.mark.parametrize("args", ["{'max_model_len': 8192}", "{'max_model_len': 4096, 'max_num_seqs': 256}"])
def test_more_than_fits_at_once_is_no_overrun(args: str) -> None:
    door = Door()
    door.start(0, "{'max_model_len': 4096}")
    door.config(5, "model", **LLAMA2_7B)
    door.config(6, "measured", **MEASURED)
    door.start(9000, args)
    assert over(door) in ([False], [None])


def test_what_was_measured_before_says_nothing_of_another_share_of_the_card() -> None:
    door = Door()
    door.start(0, "{'max_model_len': 4096}")
    door.config(5, "model", **LLAMA2_7B)
    door.config(6, "measured", **MEASURED)
    door.start(9000, "{'max_model_len': 32768, 'gpu_memory_utilization': 0.95}")
    assert over(door) == [None]
    door.config(9050, "measured", kv_cache_bytes=str(10 << 30))
    assert over(door) == [None, True]
    assert door.changes()[:2] == door.changes()[2:]
    door.config(9060, "measured", num_gpu_blocks="1280")
    assert len(door.events) == 2, "flagged once"


@pytest.mark.parametrize("args", ["{'max_model_len': 20000, 'kv_cache_dtype': 'fp8'}", "{'max_model_len': 20000, 'block_size': 8}"])
def test_blocks_that_were_counted_in_another_size_say_nothing(args: str) -> None:
    door = Door()
    door.start(0, "{'max_model_len': 4096, 'block_size': 16, 'kv_cache_dtype': 'auto'}")
    door.config(5, "model", **LLAMA2_7B)
    door.config(6, "measured", num_gpu_blocks="1024")
    fits = [fact.value for fact in door.facts if fact.name == "fits_max_model_len"]
    assert len(fits) == 1, "the blocks are known"
    door.start(9000, args)
    assert over(door) == [None]
    assert [fact.value for fact in door.facts if fact.name == "fits_max_model_len"] == fits


def test_weights_that_leave_no_room_are_flagged_before_they_are_loaded() -> None:
    door = Door()
    device = {"device_total_bytes": str(24 << 30)}
    door.start(0, "{'max_model_len': 4096, 'gpu_memory_utilization': 0.9}")
    door.config(5, "model", **LLAMA2_7B)
    door.config(6, "measured", **device, weights_bytes=str(13 << 30))
    door.start(9000, "{'max_model_len': 32768, 'gpu_memory_utilization': 0.9}")
    assert over(door) == [True]
