"""Ticks under a clock that the test sets: rows get verdicts, verdicts incidents, incidents one letter each way."""

from judged_house import T0, Call, House, logged, process, scrape, webhooks
from lensd_collectors import conventions as c
from lensd_collectors.rows import Event

from lensd.errors import StoreFailedError
from lensd.store import queries
from lensd.store.memory import MemoryStore

REFUSED = {c.OUTCOME: "refused", c.DECISION: "key_unknown", c.HTTP_STATUS: 401, c.SAID_BY: "gateway", c.CHUNKS: 0}
CUT = {c.OUTCOME: "cut", c.DONE_SEEN: False, c.FINISH_REASONS: None, c.HTTP_STATUS: 200}
DEAD = {c.OUTCOME: "failed", c.DECISION: "engine_dead", c.HTTP_STATUS: 500, c.CHUNKS: 0, c.DONE_SEEN: False, c.FINISH_REASONS: None}


def labels(house):
    return {row["request_id"]: row["label"] for row in house.rows()}


# --- hard faults: one letter when they begin, one when they end


def engine_dies(house, at=20):
    """Alive for 20 s, then killed with a stream half sent."""
    house.receive(process(0, "running"), [scrape(second) for second in range(at)])
    house.tick(at - 1)
    cut = Call(1, at=at - 2, total=2000, about=CUT)
    house.receive(process(at, "exited", -9), scrape(at, up=False), cut.client() + cut.gateway())
    house.tick(at + 1)


def engine_is_back(house, begin, end, step=30):
    house.receive(process(begin, "running"))
    for at in range(begin, end, step):
        house.receive([scrape(second) for second in range(at, at + step, 5)])
        house.tick(at + step)


def test_a_dead_engine_is_told_once_and_its_end_once_over_a_restart():
    with webhooks() as (url, got):
        house = House(url)
        engine_dies(house)
        for at in (22, 23, 24, 40):
            house.receive(scrape(at, up=False))
            house.tick(at)
        (opened,) = got
        house.start()
        engine_is_back(house, 60, 420)
        house.start()
        engine_is_back(house, 420, 900)
        house.start()
        house.tick(930)
        assert len(got) == 2
        resolved = got[1]
        kinds = {row["reason"]: row["status"] for row in house.rows("select * from deliveries where status = 'sent'")}
        (incident,) = house.rows("select * from incidents")
        house.store.close()
    assert (opened["version"], opened["status"], opened["receiver"], len(opened["alerts"])) == ("4", "firing", "hook", 1)
    assert opened["commonLabels"] == {"alertname": "engine-crash", "severity": "critical", "stage": "engine", "engine": "e0"}
    assert opened["alerts"][0]["startsAt"] == "2026-09-21T14:13:41Z"
    assert opened["alerts"][0]["endsAt"] == "0001-01-01T00:00:00Z"
    assert resolved["status"] == resolved["alerts"][0]["status"] == "resolved"
    assert [resolved[name] for name in ("groupKey", "groupLabels")] == [opened[name] for name in ("groupKey", "groupLabels")]
    assert [resolved["alerts"][0][name] for name in ("fingerprint", "startsAt")] == [
        opened["alerts"][0][n] for n in ("fingerprint", "startsAt")
    ]
    assert resolved["alerts"][0]["endsAt"] > opened["alerts"][0]["startsAt"]
    assert kinds == {"opened": "sent", "resolved": "sent"}
    assert (incident["state"], incident["requests_hit"]) == ("resolved", 1)


def test_callers_of_a_dead_engine_make_one_alert_whatever_their_keys():
    with webhooks() as (url, got):
        house = House(url)
        house.receive([scrape(second) for second in range(10)])
        hit = [Call(n, at=9 + n / 10, key=f"k{n}", about=DEAD) for n in range(3)]
        house.receive([span for call in hit for span in call.gateway()])
        house.tick(11)  # their errors say it before any scrape does
        house.receive(process(11, "exited", -9), scrape(11, up=False))
        house.tick(12)
        house.store.close()
    assert [body["commonLabels"] for body in got] == [
        {"alertname": "engine-crash", "severity": "critical", "stage": "engine", "engine": "e0"}
    ]


def test_a_store_that_cannot_be_written_costs_neither_the_alert_nor_the_rows():
    class Full(MemoryStore):
        full = False

        def append(self, batch, position=None):
            if self.full:
                raise StoreFailedError("append rows: disk full")
            super().append(batch, position)

    with webhooks() as (url, got):
        house = House(url, store=Full())
        house.receive(process(0, "running"), [scrape(second) for second in range(20)])
        house.tick(19)
        cut = Call(1, at=18, total=2000, about=CUT)
        house.receive(logged(20, "engine.dead"), process(20, "exited", -9), scrape(20, up=False), cut.gateway())
        house.store.full = True
        house.tick(21)
        assert [body["status"] for body in got] == ["firing"]
        assert house.rows() == []
        house.store.full = False
        house.tick(31)
        assert (house.one()["outcome"], house.one()["label"]) == ("cut", "engine-crash")
        (incident,) = house.rows("select * from incidents")
        assert (incident["label"], incident["state"]) == ("engine-crash", "open")
        house.tick(32)
        assert len(got) == 1
        house.store.close()


def test_a_fault_in_judging_requests_does_not_silence_what_stands(monkeypatch, caplog):
    with webhooks() as (url, got):
        house = House(url)
        monkeypatch.setattr("lensd.judge.conclude", lambda *_: 1 / 0)
        engine_dies(house)
        house.tick(40)
        house.store.close()
    assert [body["status"] for body in got] == ["firing"]
    assert "requests of this tick were not judged" in caplog.text


# --- a new install


def saturated(house, at, first):
    """Six requests that waited ten seconds in line."""
    house.receive([scrape(at - 20 + second, running=8, waiting=6) for second in range(20)])
    calls = [Call(first + n, at=at - 12 + n / 10, total=10_200, queue=10_000) for n in range(6)]
    house.receive([span for call in calls for span in call.gateway() + call.llm_request()])


def told_of_saturation(got):
    return [body["status"] for body in got if body["commonLabels"]["alertname"] == "queue-saturation"]


def test_a_new_install_tells_of_hard_faults_only_until_its_first_half_hour_is_over():
    with webhooks() as (url, got):
        house = House(url, installed=0)
        saturated(house, 60, 1)
        house.tick(61)
        (incident,) = house.rows("select * from incidents")
        assert (incident["label"], incident["state"], incident["severity"]) == ("queue-saturation", "open", "warning")
        engine_dies(house, at=100)
        assert [body["commonLabels"]["alertname"] for body in got] == ["engine-crash"]
        engine_is_back(house, 110, 500)
        house.tick(1000)  # the line has gone: its end is no more news than its beginning was
        saturated(house, 1900, 20)
        house.tick(1901)
        house.store.close()
    assert told_of_saturation(got) == ["firing"]


def test_what_still_stands_when_the_quiet_time_ends_is_told_then_also_after_a_restart():
    with webhooks() as (url, got):
        house = House(url, installed=0)
        for at in range(1700, 1800, 20):
            saturated(house, at, at)
            house.tick(at + 1)
        assert got == []
        saturated(house, 1805, 5000)
        house.tick(1806)
        assert told_of_saturation(got) == ["firing"]
        house.start()
        house.tick(1807)
        house.store.close()
    assert told_of_saturation(got) == ["firing"]


def test_a_restart_in_the_quiet_time_tells_nothing_that_was_held_back():
    with webhooks() as (url, got):
        house = House(url, installed=0)
        saturated(house, 60, 1)
        house.tick(61)
        house.start()
        house.tick(62)
        house.store.close()
    assert got == []


# --- healthy traffic


def kinds_of_health(number, at):
    """Requests as different as healthy ones are."""
    plain = [Call(number + n, at + n) for n in range(7)]
    streamed, whole, long, two, prompts, bare, late = plain
    yield streamed.all()
    whole.about = {c.IS_STREAMING: False, c.DONE_SEEN: None, c.CHUNKS: None}
    yield whole.gateway(parent=None) + whole.llm_request()
    long.total, long.decode, long.about = 9000, 8900, {c.OUTPUT_TOKENS: 400}
    yield long.client() + long.gateway() + long.llm_request(**{"gen_ai.usage.completion_tokens": 400})
    yield two.gateway() + two.llm_request("engine0") + two.llm_request("engine1")
    names = [f"cmpl-{prompts.request_id}-{n}" for n in range(2)]
    spans = [s for n, name in enumerate(names) for s in prompts.llm_request(f"engine{n}", **{c.ENGINE_REQUEST_ID: name})]
    yield prompts.gateway(**{c.RESPONSE_ID: f"cmpl-{prompts.request_id}"}) + spans
    yield bare.llm_request(parent=None, finish_reason="stop")
    yield late.client() + late.gateway()  # and its engine says nothing of it


def test_an_hour_of_health_says_nothing_but_that():
    house = House("http://127.0.0.1:9/")
    house.receive(process(0, "running"))
    number = 1
    for at in range(0, 3600, 120):
        house.receive([scrape(at + second, running=second % 3, waiting=0) for second in range(0, 120, 5)])
        for begin in (at + 20, at + 80):
            for spans in kinds_of_health(number, begin):
                house.receive(spans)
            number += 7
        house.tick(at + 119)
    house.tick(3630)
    assert house.rows("select * from findings") == []
    assert house.rows("select * from incidents") == []
    assert house.rows("select * from deliveries") == []
    rows = house.rows()
    assert len(rows) == 60 * 7
    assert {(row["label"], row["outcome"], row["settled"]) for row in rows} == {("no-incident", "ok", True)}
    house.store.close()


# --- verdicts


def test_one_bad_request_does_not_spoil_the_verdict_of_those_judged_beside_it(house):
    bad = Call(9, at=1, about=REFUSED)
    house.receive([span for n in range(3) for span in Call(n, at=1).all()], bad.gateway())
    house.tick(3)
    assert labels(house) == {"r0": "no-incident", "r1": "no-incident", "r2": "no-incident", "r9": "auth-wrong-key"}
    assert {row["request_id"]: house.diagnose(row).verdict.label for row in house.rows()} == labels(house)


def card_lost(at):
    return Event(
        seen_at=T0 + round(at * 1e6), host="gpu-1", engine="e0", name="gpu.xid", severity="critical", src="log:1",
        fields='{"lensd.gpu.index": 3, "gpu": "3", "pci": "0000:3b:00", "xid": 79}',
    )  # fmt: skip


def test_a_request_that_failed_since_the_last_look_is_judged_by_what_is_known_by_now(house):
    house.receive(process(0, "running"), [scrape(second) for second in range(20)])
    house.tick(20)
    cut = Call(1, at=18, total=2200, about=CUT)
    house.receive(card_lost(20.1), process(20.2, "exited", -9), scrape(20.2, up=False), cut.all())
    house.tick(21.2)
    row = house.one()
    assert (row["settled"], row["label"]) == (True, "gpu-hardware-fault")
    assert house.diagnose(row).verdict.label == row["label"]


def test_what_an_engine_suffered_long_before_is_no_cause_of_a_request(house):
    house.receive(card_lost(0), [scrape(second) for second in range(1500, 1520)])
    cut = Call(1, at=1518, total=2000, about=CUT)
    house.receive(cut.all())
    house.tick(1520.5)
    assert [row["label"] for row in house.rows("select * from findings where request_key is null")] == ["gpu-hardware-fault"]
    assert house.diagnose(house.one()).verdict.label != "gpu-hardware-fault"
    assert house.one()["label"] == house.diagnose(house.one()).verdict.label


def test_the_engines_span_comes_six_seconds_after_the_gateways(house):
    call = Call(1, at=0, total=10_200, queue=10_000)
    house.receive([scrape(second, running=8, waiting=6) for second in range(12)], call.gateway())
    house.tick(10.5)
    first = house.one()
    assert (first["settled"], first["label"], first["queue_source"]) == (False, None, "scrape")
    house.receive(call.llm_request())
    house.tick(16.5)
    row = house.one()
    assert (row["settled"], row["label"], row["queue_ms"], row["queue_source"]) == (True, "queue-saturation", 10_000, "llm_request")
    assert row["revision"] > first["revision"]
    house.tick(40)
    assert house.one() == row


def test_the_engines_span_comes_after_the_request_was_settled_without_it(house):
    call = Call(1, at=0, total=10_200, queue=10_000)
    house.receive(call.gateway())
    house.tick(11)
    house.tick(21)
    before = house.one()
    assert (before["settled"], before["queue_source"]) == (True, "estimate")
    house.receive(call.llm_request())
    house.tick(22)
    after = house.one()
    assert (after["label"], after["queue_source"], after["queue_ms"]) == ("queue-saturation", "llm_request", 10_000)
    assert after["revision"] > before["revision"]


def test_two_requests_of_one_id_are_two_and_each_has_its_own_verdict(house):
    well, refused = Call(1, at=0, request_id="same"), Call(2, at=1, request_id="same", about=REFUSED)
    house.receive(well.all(), refused.gateway())
    house.tick(3)
    rows = house.rows()
    assert [(row["request_id"], row["trace_id"], row["label"]) for row in rows] == [
        ("same", well.trace, "no-incident"),
        ("same", refused.trace, "auth-wrong-key"),
    ]
    assert [house.diagnose(row).verdict.label for row in rows] == ["no-incident", "auth-wrong-key"]


def test_an_id_that_every_request_has_neither_hides_requests_nor_takes_a_round_each(house, monkeypatch):
    rounds = []
    judge_batch = house.judge._judge_batch
    monkeypatch.setattr(house.judge, "_judge_batch", lambda *given: rounds.append(1) or judge_batch(*given))
    house.receive([span for n in range(40) for span in Call(n, at=n / 100, request_id="test", about=REFUSED).gateway()])
    house.tick(2)
    assert [row["label"] for row in house.rows()] == ["auth-wrong-key"] * 40
    assert len(rounds) < 10
    (incident,) = house.rows("select * from incidents")
    assert (incident["label"], incident["requests_hit"], incident["typical_requests"]) == ("auth-wrong-key", 40, '["test"]')
    keys = house.rows("select count(distinct request_key) as n, count(*) as all, any_value(request_id) as id from findings")
    assert keys == [{"n": 40, "all": 40, "id": "test"}]


def test_a_finding_told_again_after_late_data_is_written_and_counted_once(house):
    call = Call(1, at=0, about=REFUSED)
    house.receive(call.gateway())
    house.tick(1)
    house.receive(call.client())
    house.tick(2)
    assert house.one()["client_source"] == "client"
    assert [row["label"] for row in house.rows("select * from findings")] == ["auth-wrong-key"]


def test_what_stands_is_written_down_once_a_minute(house):
    engine_dies(house)
    for at in range(22, 142, 5):
        house.receive([scrape(at + second, up=False) for second in range(5)])
        house.tick(at + 4)
    written = house.rows("select * from findings where request_key is null")
    assert len(written) == 3


def test_requests_told_of_an_hour_late_are_judged_but_open_nothing(house):
    calls = [Call(n, at=0, about=REFUSED) for n in range(20)]
    house.receive([span for call in calls for span in call.gateway()])
    house.tick(3600)
    assert set(labels(house).values()) == {"auth-wrong-key"}
    assert house.rows("select * from incidents") == []


# --- restarts


def test_a_restart_goes_on_with_what_was_stored_and_not_judged(house):
    open_one, ended = Call(1, at=0), Call(2, at=3)
    house.receive(open_one.open(1000))
    house.tick(2)
    house.receive(ended.all(), Call(3, at=3).open(1000))
    house.now = 4.5
    house.start()  # killed before the tick
    house.tick(5)
    found = {row["request_id"]: (row["outcome"], row["label"]) for row in house.rows()}
    assert found == {"r1": ("open", None), "r2": ("ok", "no-incident"), "r3": ("open", None)}


def test_a_restart_judges_what_was_settled_and_got_no_verdict(house, monkeypatch):
    house.receive(Call(1, at=0, about=REFUSED).gateway())
    monkeypatch.setattr("lensd.judge.conclude", lambda *_: 1 / 0)
    house.tick(1)
    assert house.one()["label"] is None
    monkeypatch.undo()
    house.now = 3600
    house.start()
    house.tick(3601)
    assert house.one()["label"] == "auth-wrong-key"


def test_a_restart_judges_nothing_again(house):
    calls = [Call(n, at=n / 10, about=REFUSED) for n in range(10)]
    house.receive([span for call in calls for span in call.gateway()])
    house.tick(2)
    before = house.rows(), house.rows("select * from incidents"), house.rows("select * from findings")
    for at in (3, 4):
        house.now = at
        house.start()
        house.tick(at + 0.5)
    assert (house.rows(), house.rows("select * from incidents"), house.rows("select * from findings")) == before


# --- open and lost


def test_an_open_request_is_listed_and_lost_after_half_a_minute_of_silence(house):
    call = Call(1, at=0)
    house.receive(call.open(1000))
    house.tick(1.5)
    assert [(row["request_id"], row["outcome"], row["settled"]) for row in house.listed()] == [("r1", "open", False)]
    house.receive(call.open(6000))
    house.tick(6.5)
    house.tick(35.9)
    assert [row["outcome"] for row in house.listed(outcome="open")] == ["open"]
    house.tick(36.1)
    (row,) = house.listed()
    assert (row["outcome"], row["settled"], row["ended_at"] is not None) == ("lost", True, True)
    house.receive(call.gateway(), call.llm_request())  # its sender had only been cut off
    house.tick(40)
    (row,) = house.listed()
    assert (row["outcome"], row["label"]) == ("ok", "no-incident")


def test_a_page_of_requests_goes_on_where_the_one_before_ended(house):
    house.receive([span for n in range(5) for span in Call(n, at=n % 2).gateway()])
    house.tick(1.5)
    seen, after = [], None
    with house.store.cursor() as cursor:
        for _ in range(3):
            page = queries.list_requests(cursor, queries.RequestFilter(key="k1"), 2, after)
            seen += [row["request_id"] for row in page.items]
            after = page.next
    assert after is None
    assert sorted(seen) == [f"r{n}" for n in range(5)]
    assert seen[:2] == sorted(seen[:2], key=("r3", "r1").index)
