"""Where the memory of the cards went, as the API tells it of rows that an agent, engines and their logs have left."""

import msgspec
import pytest
from lensd_collectors import conventions as c
from lensd_collectors.rows import ConfigFact, EngineSample, Event, GpuSample
from seeded import TOKEN, served

from lensd.api.client import Client
from lensd.api.items import GpuItem, Memory, Page
from lensd.api.memory import document, gpus
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore

S = 1_000_000
GIB = 1 << 30
T0 = 1_795_953_600 * S  # 2026-11-29T12:00:00Z
FACTS = {
    "weights_bytes": (15 * GIB, "measured"), "kv_cache_bytes": (50 * GIB, "measured"), "activation_bytes": (4 * GIB, "measured"),
    "graph_bytes": (GIB, "measured"), "non_torch_bytes": (GIB, "measured"), "gpu_memory_utilization": ("0.9", "flag"),
}  # fmt: skip


def facts(engine, at, told=FACTS):
    return [ConfigFact(seen_at=at, subject=engine, name=name, value=str(value), origin=origin) for name, (value, origin) in told.items()]


def device(second, used_gib, *, host="h0", gpu="0", **more):
    more = {"reserved_bytes": GIB, "free_bytes": (79 - used_gib) * GIB, "total_bytes": 80 * GIB} | more
    return GpuSample(seen_at=T0 + second * S, host=host, gpu=gpu, used_bytes=used_gib * GIB, src=f"scrape:nvml:{host}/{gpu}", **more)


def process(second, pid, engine, used_gib, *, host="h0", gpu="0", name="VLLM::Worker"):
    used = None if used_gib is None else used_gib * GIB
    return GpuSample(seen_at=T0 + second * S, host=host, gpu=gpu, pid=pid, pid_engine=engine, process=name, pid_used_bytes=used)


def sample(second, engine="e0", kv_usage=0.5, **more):
    return EngineSample(seen_at=T0 + second * S, engine=engine, kv_usage=kv_usage, running=1.0, waiting=0.0, up=True, **more)


class Told:
    """A store with these rows, and what is told of it."""

    def __init__(self, **tables):
        self.store = MemoryStore()
        self.store.append(batch_of(tables))

    def memory(self, since=0, until=120, engine=None):
        with self.store.cursor() as cursor:
            return document(cursor, engine, T0 + since * S, T0 + until * S)

    def gpus(self):
        with self.store.cursor() as cursor:
            return tuple(gpus(cursor))


def parts(point):
    return {(part.band, part.engine) if part.engine else part.band: part.bytes for part in point.parts}


def a_minute(**more):
    """A card with one engine, seen every second of a minute."""
    rows = {
        "gpu_samples": [each for s in range(60) for each in (device(s, 74), process(s, 11, "e0", 70), process(s, 12, None, 1))],
        "engine_samples": [sample(s) for s in range(60)],
        "config_facts": facts("e0", T0 - 60 * S),
    }
    return rows | more


def test_the_parts_of_a_card_over_time():
    told = Told(**a_minute()).memory()
    assert told.step_s == 10.0
    [card] = told.items
    assert (card.host, card.gpu, card.engines, card.assumed) == ("h0", "0", ("e0",), False)
    assert [point.seen_at for point in card.points] == [f"2026-11-29T12:00:{s:02}Z" for s in range(0, 60, 10)]
    point = card.points[3]
    assert parts(point) == {
        ("weights", "e0"): 15 * GIB, ("kv_used", "e0"): 25 * GIB, ("kv_free", "e0"): 25 * GIB, ("runtime", "e0"): 6 * GIB,
        "unexplained": 2 * GIB, "others": GIB, "driver": GIB, "free": 5 * GIB,
    }  # fmt: skip
    assert (point.limit_bytes, point.used_bytes, point.total_bytes, point.over_bytes) == (72 * GIB, 74 * GIB, 80 * GIB, 0)


def test_two_hosts_have_a_card_0_each():
    rows = [device(s, used, host=host) for s in range(30) for host, used in (("h0", 20), ("h1", 60))]
    told = Told(gpu_samples=rows).memory()
    assert [(card.host, card.gpu, card.points[0].used_bytes) for card in told.items] == [("h0", "0", 20 * GIB), ("h1", "0", 60 * GIB)]


def test_no_rows_no_cards():
    assert Told(gpu_samples=[]).memory() == Memory(items=(), marks=(), step_s=10.0)
    assert Told(gpu_samples=[]).gpus() == ()


def test_a_time_without_samples_has_no_points():
    rows = [device(s, 74) for s in (*range(10), *range(70, 80))]
    [card] = Told(gpu_samples=rows).memory().items
    assert [point.seen_at[-9:] for point in card.points] == ["12:00:00Z", "12:01:10Z"]


def test_of_an_engine_that_no_longer_answers_nothing_is_known():
    rows = a_minute(
        gpu_samples=[device(s, 74) for s in range(0, 200, 5)] + [process(s, 11, "e0", 73) for s in range(0, 200, 5)],
        engine_samples=[sample(s) for s in range(60)],
    )
    [card] = Told(**rows).memory(until=200).items
    assert parts(card.points[5])["weights", "e0"] == 15 * GIB
    last = parts(card.points[-1])
    assert (last["weights", "e0"], last["kv_pool", "e0"], last["runtime", "e0"]) == (None, None, None)
    assert (last["not_known"], last["others"]) == (74 * GIB, 0)
    assert card.points[-1].limit_bytes is None


def test_a_fact_holds_from_when_it_was_told():
    changed = facts("e0", T0 + 25 * S, {"kv_cache_bytes": (40 * GIB, "measured"), "gpu_memory_utilization": ("0.8", "flag")})
    [card] = Told(**a_minute(config_facts=[*facts("e0", T0 - 60 * S), *changed])).memory().items
    assert [parts(point)["kv_used", "e0"] // GIB for point in card.points] == [25, 25, 20, 20, 20, 20]
    assert [point.limit_bytes // GIB for point in card.points] == [72, 72, 64, 64, 64, 64]


def test_of_two_origins_the_one_that_the_engine_has():
    later = facts("e0", T0 + S, {"gpu_memory_utilization": ("0.5", "flag")})
    told = facts("e0", T0, {"gpu_memory_utilization": ("0.8", "effective")})
    [card] = Told(**a_minute(config_facts=[*told, *later])).memory().items
    assert card.points[3].limit_bytes == 64 * GIB


def test_facts_of_another_engine_are_not_taken():
    [card] = Told(**a_minute(config_facts=facts("e9", T0))).memory().items
    assert parts(card.points[0])["weights", "e0"] is None


def test_without_a_list_of_processes_the_one_engine_is_on_the_one_card():
    rows = a_minute(gpu_samples=[device(s, 74) for s in range(60)])
    [card] = Told(**rows).memory().items
    assert (card.engines, card.assumed, parts(card.points[0])["others"]) == (("e0",), True, None)


@pytest.mark.parametrize(
    ("cards", "engines", "ranks"), [(2, ("e0",), 1), (1, ("e0", "e1"), 1), (1, ("e0",), 2)], ids=["cards", "engines", "ranks"]
)
def test_where_that_does_not_follow_nobody_is_put_on_a_card(cards, engines, ranks):
    rows = a_minute(
        gpu_samples=[device(s, 74, gpu=str(number)) for s in range(60) for number in range(cards)],
        engine_samples=[sample(s, engine) for s in range(60) for engine in engines],
        config_facts=[*facts("e0", T0), *facts("e0", T0, {"tensor_parallel_size": (ranks, "flag")})],
    )
    told = Told(**rows).memory().items
    assert [card.engines for card in told if card.gpu is not None] == [()] * cards
    assert [card.engines for card in told if card.gpu is None] == [(engine,) for engine in engines]
    watched = parts(told[0].points[0])
    assert (watched["not_known"], watched["others"], watched["free"]) == (74 * GIB, None, 5 * GIB)


@pytest.mark.parametrize("text", ["²", "9" * 5000, "two", ""])
def test_ranks_and_numbers_of_cards_that_are_none(text):
    rows = a_minute(
        gpu_samples=[device(s, 74, gpu=text or "0") for s in range(60)],
        config_facts=[*facts("e0", T0 - S), *facts("e0", T0, {"tensor_parallel_size": (text, "flag")})],
    )
    told = Told(**rows)
    assert [card.engines for card in told.memory().items] == [("e0",)]
    assert len(told.gpus()) == 1


def test_two_ranks_are_on_two_cards():
    rows = a_minute(
        gpu_samples=[device(s, 74, gpu=gpu) for s in range(60) for gpu in ("0", "1")],
        config_facts=[*facts("e0", T0 - S), *facts("e0", T0, {"tensor_parallel_size": ("2", "flag")})],
    )
    assert [(card.gpu, card.engines, card.assumed) for card in Told(**rows).memory().items] == [("0", ("e0",), True), ("1", ("e0",), True)]


def test_an_engine_on_the_cards_of_nobody_is_told_by_what_it_says():
    rows = {"engine_samples": [sample(s) for s in range(60)], "config_facts": facts("e0", T0 - S)}
    [card] = Told(**rows).memory().items
    assert (card.host, card.gpu, card.engines) == (None, None, ("e0",))
    assert parts(card.points[0]) == {
        ("weights", "e0"): 15 * GIB, ("kv_used", "e0"): 25 * GIB, ("kv_free", "e0"): 25 * GIB, ("runtime", "e0"): 6 * GIB,
    }  # fmt: skip
    assert (card.points[0].used_bytes, card.points[0].limit_bytes) == (None, None)


def test_a_process_whose_size_is_not_told_leaves_the_others_unknown():
    rows = a_minute(gpu_samples=[each for s in range(60) for each in (device(s, 74), process(s, 11, "e0", 70), process(s, 12, None, None))])
    [card] = Told(**rows).memory().items
    assert parts(card.points[0])["others"] is None


def test_a_second_engine_that_has_told_nothing_is_on_the_card_with_unknown_parts():
    rows = a_minute(gpu_samples=[each for s in range(60) for each in (device(s, 74), process(s, 11, "e0", 70), process(s, 12, "e9", 3))])
    [card] = Told(**rows).memory().items
    found = parts(card.points[0])
    assert (card.engines, found["others"], found["weights", "e9"], found["kv_pool", "e9"]) == (("e0", "e9"), 0, None, None)
    assert card.points[0].limit_bytes is None


def test_a_process_that_ended_is_gone_from_the_others():
    rows = a_minute(
        gpu_samples=[
            each for s in range(120) for each in (device(s, 74), process(s, 11, "e0", 70), *([process(s, 12, None, 3)] if s < 40 else []))
        ],
        engine_samples=[sample(s) for s in range(120)],
    )
    [card] = Told(**rows).memory().items
    others = [parts(point)["others"] for point in card.points]
    assert others[3] == 3 * GIB
    assert others[-1] == 0


def test_only_the_cards_of_one_engine():
    rows = a_minute(gpu_samples=[*a_minute()["gpu_samples"], *(device(s, 3, gpu="1") for s in range(60))])
    told = Told(**rows)
    assert [card.gpu for card in told.memory(engine="e0").items] == ["0"]
    assert [card.gpu for card in Told(**rows).memory().items] == ["0", "1"]


def test_a_day_comes_in_few_steps():
    rows = {"gpu_samples": [device(s, 74) for s in range(0, 86_400, 60)]}
    told = Told(**rows).memory(until=86_400)
    assert (told.step_s, len(told.items[0].points)) == (360.0, 240)


def events(*told):
    return [
        Event(seen_at=T0 + second * S, host="h0", engine=engine, name=name, fields=msgspec.json.encode(fields).decode() if fields else None)
        for second, engine, name, fields in told
    ]


def test_marks_of_changed_configuration_starts_and_errors():
    changed = Event(
        seen_at=T0 + 6 * S, host="h0", engine="e0", name=c.EVENT_CONFIG_CHANGED, line="max_model_len 4096 -> 32768",
        fields='{"over_budget": true}',
    )  # fmt: skip
    rows = events(
        (5, "e0", "engine.started", {"version": "0.32.0"}),
        (40, "e0", "engine.oom", None),
        (41, "e1", "engine.oom", None),
        (42, "e0", "engine.ready", None),
        (200, "e0", "engine.oom", None),
    )
    told = Told(events=[*rows, changed]).memory(engine="e0")
    assert [(mark.at[-9:], mark.kind, mark.text, mark.over_budget) for mark in told.marks] == [
        ("12:00:05Z", "start", "started, version 0.32.0", None),
        ("12:00:06Z", "config", "max_model_len 4096 -> 32768", True),
        ("12:00:40Z", "oom", "out of memory", None),
    ]
    assert [mark.engine for mark in Told(events=rows).memory().marks] == ["e0", "e0", "e1"]


@pytest.mark.parametrize("fields", ['{"over_budget": "perhaps"}', "not JSON", "[]", None])
def test_a_mark_of_a_form_that_is_not_known_is_still_a_mark(fields):
    row = Event(seen_at=T0 + S, engine="e0", name=c.EVENT_CONFIG_CHANGED, fields=fields)
    [mark] = Told(events=[row]).memory().marks
    assert (mark.kind, mark.text, mark.over_budget) == ("config", "configuration changed", None)


def told_state(gpu, state, second, reason=None):
    fields = msgspec.json.encode({c.ABOUT_GPU: gpu, c.GPU_STATE: state, c.SOURCE_REASON: reason}).decode()
    return Event(seen_at=T0 + second * S, host="h0", name=c.EVENT_GPU_STATE, fields=fields)


def test_the_cards_as_they_are_now():
    rows = [
        *(device(s, 74, util=0.9, sm_mhz=1980.0, throttle="") for s in range(60)),
        device(59, 3, gpu="1", temp_c=40.0),
        device(-600, 74, ecc=7),  # told once, long before: no longer how it is
        process(59, 12, None, 2, name="python"),
        process(59, 11, "e0", 70),
        process(10, 13, None, 2),  # gone since
    ]
    states = [told_state("1", "failing", 50, "no answer"), told_state("1", "lost", 65)]
    first, second = Told(gpu_samples=rows, events=states).gpus()
    assert (first.host, first.gpu, first.used_bytes, first.util, first.throttle, first.ecc) == ("h0", "0", 74 * GIB, 0.9, "", None)
    assert (first.state, first.last_sample_at) == (None, "2026-11-29T12:00:59Z")
    assert [(each.pid, each.process, each.engine, each.used_bytes) for each in first.processes] == [
        (11, "VLLM::Worker", "e0", 70 * GIB), (12, "python", None, 2 * GIB),
    ]  # fmt: skip
    assert (second.gpu, second.state, second.state_reason, second.temp_c) == ("1", "lost", None, 40.0)
    assert second.state_at == "2026-11-29T12:01:05Z"


def test_a_card_that_was_never_sampled_has_its_state():
    [card] = Told(events=[told_state("0/gi7ci0", "denied", 0, "this user may not")]).gpus()
    assert (card.gpu, card.state, card.state_reason) == ("0/gi7ci0", "denied", "this user may not")
    assert (card.used_bytes, card.last_sample_at) == (None, None)


def test_a_series_is_of_one_card_of_one_host_and_of_the_device_alone():
    rows = [device(s, used, host=host, gpu=gpu) for s in range(3) for host, gpu, used in (("h0", "0", 20), ("h1", "0", 60), ("h1", "1", 5))]
    told = Told(gpu_samples=[*rows, process(0, 11, "e0", 70)])
    with served(told.store) as url:
        client, span = Client(url, TOKEN), {"since": T0, "until": T0 + 10 * S}
        found = client.series("gpu_samples.used_bytes", **span)
        assert {(point.host, point.gpu, point.value) for point in found} == {
            ("h0", "0", 20.0 * GIB), ("h1", "0", 60.0 * GIB), ("h1", "1", 5.0 * GIB),
        }  # fmt: skip
        assert {point.gpu for point in client.series("gpu_samples.used_bytes", host="h1", **span)} == {"0", "1"}
        assert len(client.series("gpu_samples.used_bytes", host="h1", gpu="1", **span)) == 3
        assert client.series("gpu_samples.used_bytes", engine="e0", **span) == ()
        assert client.series("engine_samples.running", host="h1", **span) == ()


@pytest.mark.parametrize("path", ["memory?since=x", f"memory?since={T0}&until=5", "memory?until=-1"])
def test_a_time_that_is_none_is_refused(path):
    with served(Told(gpu_samples=[]).store) as url:
        client = Client(url, TOKEN)
        status, body = client._exchange("GET", f"/api/v1/{path}", 5)
    assert (status, msgspec.json.decode(body)["error"]["code"]) == (400, "usage")


def test_a_client_reads_the_same_documents():
    told = Told(**a_minute())
    here = told.memory(), told.gpus()
    with served(told.store) as url:
        client = Client(url, TOKEN)
        assert (client.memory(since=T0, until=T0 + 120 * S), client.gpus()) == here
        _, body = client._exchange("GET", "/api/v1/gpus", 5)
    assert msgspec.json.decode(body, type=Page[GpuItem]).next is None
