"""A real engine that keeps the blocks of every tenth request, beside one that does not, under the same load: what daemon and agent tell."""

import re
import time

import msgspec
import pytest
from gateway_real import count
from house import House
from leaking import BLOCKS, Load, leaking

from lensd.store import queries
from lensd.store.folder import FolderStore

pytestmark = pytest.mark.engine

LABEL = "kv-cache-leak"
LEAKS, KEEPS = "leaks", "keeps"
IDLE_S = 70.0  # a minute with nothing running is enough for the rule, also where it has seen one idle stretch only
BLOCK_BYTES = 128 * 512  # tokens, bytes a token


class Seen:
    """What came of it: the load, what the API said at its end, and the rows of the store."""

    def __init__(self, load, memory, metrics, findings, requests) -> None:
        self.load, self.memory, self.metrics, self.findings, self.requests = load, memory, metrics, findings, requests


@pytest.fixture(scope="module")
def seen(engine_starter, engine_otlp_port, engine_token, tmp_path_factory):
    folder = tmp_path_factory.mktemp("leak")
    options = ("--num-gpu-blocks-override", str(BLOCKS), "--enable-prefix-caching")
    engines = {}
    try:
        for name, more in ((LEAKS, leaking(folder / "installed")), (KEEPS, {})):
            environment = {"OTEL_RESOURCE_ATTRIBUTES": f"lensd.engine={name}", **more}
            engines[name] = engine_starter.start(f"kv-{name}", options=options, environment=environment)
        for engine in engines.values():
            engine.wait_ready()
        yield _lived_through(House(folder, engines[LEAKS], engine_otlp_port, engine_token, LEAKS, {KEEPS: engines[KEEPS]}), engines)
    finally:
        for engine in engines.values():
            engine.stop()


def _lived_through(house, engines):
    house.start("serve", "agent")
    try:
        time.sleep(3)  # a few scrapes of two engines that nobody has asked for anything
        load = Load(engines)
        time.sleep(IDLE_S - (time.time() - load.ended_at))
        memory = {name: house.client.memory(engine=name) for name in engines}
        metrics = {name: {"prefix_hits": count(engine, "vllm:prefix_cache_hits_total")} for name, engine in engines.items()}
    finally:
        house.supervisor.stop()
    store = FolderStore(house.store, read_only=True)
    with store.cursor() as cursor:
        findings = queries.rows(cursor, "select *, epoch(seen_at) as at, epoch(since_at) as since from findings order by seen_at")
        requests = queries.rows(cursor, "select engine, outcome, count(*) as found from requests group by all order by engine")
    store.close()
    return Seen(load, memory, metrics, findings, requests)


def named(seen, engine):
    return [row for row in seen.findings if row["label"] == LABEL and row["engine"] == engine]


def said(row):
    return " | ".join(line["text"] for line in msgspec.json.decode(row["evidence"]))


def test_the_engine_really_leaks_and_the_other_does_not(seen):
    usages = {name: [burst.kv_usage for burst in of] for name, of in seen.load.bursts.items()}
    assert usages[KEEPS] == [0.0, 0.0, 0.0]
    assert 0.0 < usages[LEAKS][0] < usages[LEAKS][1] < usages[LEAKS][2] < 0.5
    assert seen.metrics[KEEPS]["prefix_hits"] > 0
    served = {row["engine"]: (row["outcome"], row["found"]) for row in seen.requests if row["engine"] in usages}
    assert served == dict.fromkeys(usages, ("ok", 60))


def test_it_is_named_within_three_minutes_of_the_last_requests_end(seen):
    rows = named(seen, LEAKS)
    assert rows, {(row["label"], row["engine"]) for row in seen.findings}
    late = rows[0]["at"] - seen.load.ended_at
    print(f"{LABEL} {late:.1f} s after the last request's end: {said(rows[0])}")
    assert 0.0 < late <= 180.0
    assert rows[0]["severity"] == "critical"


def test_since_when_how_fast_and_how_long_it_still_lasts(seen):
    row = named(seen, LEAKS)[-1]
    first, *_, last = seen.load.bursts[LEAKS]
    assert seen.load.began_at - 5.0 <= row["since"] <= first.ended_at + 5.0
    text = said(row)
    held = float(re.search(r"([\d.]+)% of the KV cache is held", text)[1]) / 100
    rate = float(re.search(r"grows by ([\d,.]+)% of the cache an hour", text)[1].replace(",", "")) / 100
    assert held == pytest.approx(last.kv_usage, abs=0.002)
    injected = last.kv_usage / (last.ended_at - seen.load.began_at) * 3600
    assert rate == pytest.approx(injected, rel=0.25), text
    left, unit = re.search(r"full in (\d+) (min|h|days)", text).groups()
    assert unit == "min"
    assert int(left) == pytest.approx(60 * (1 - held) / rate, abs=0.6), text


def test_the_engine_with_a_prefix_cache_and_no_leak_is_called_nothing(seen):
    assert [(row["label"], said(row)) for row in seen.findings if row["engine"] == KEEPS] == []


def test_the_memory_shows_what_is_held_to_the_block(seen):
    for name, of in seen.load.bursts.items():
        [card] = seen.memory[name].items
        parts = {part.band: part.bytes for part in card.points[-1].parts}
        used = round(of[-1].kv_usage * (BLOCKS - 1)) * BLOCK_BYTES
        assert (parts["kv_used"], parts["kv_free"]) == (used, BLOCKS * BLOCK_BYTES - used), name
        assert [mark.kind for mark in seen.memory[name].marks][:1] == ["start"], name
