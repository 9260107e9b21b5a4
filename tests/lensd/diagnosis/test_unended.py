"""What the diagnosis says of a request whose end nobody told: who fell silent when, where it stood, what it means for the caller."""

import pytest
from judged_house import Call, House, act, process, scrape, sent_by
from lensd_collectors import conventions as c

from lensd.records import Severity
from lensd.report import as_markdown, as_text, exit_status

GATEWAY = "the gateway 127.0.0.1:8080"
RESTARTED = "was restarted at 2026-09-21 14:13:28.000 UTC while the request stood in"
BROKE = "its end is unknown; its caller's connection broke when the old process died"
CALL = Call(1, at=0)
VLLM = {"service": "lensd-vllm"}
INSIDE = sent_by(CALL.open(6000, part="middleware", **{c.PARENT_SPAN_ID: None}), "old core", **VLLM)
BUSY, FULL = [scrape(n / 2) for n in range(14)], [scrape(n / 2, waiting=3) for n in range(14)]
AT_6 = "when last heard of, at 2026-09-21 14:13:26.000 UTC"


def progress(stage, since=5996, **more):
    return sent_by(CALL.open(6000, stage, **{c.PROGRESS_STAGE_AGE_MS: since} | more))


RESTARTS = {
    "in auth_routing": ([progress("auth_routing")], f"{GATEWAY} {RESTARTED} auth/routing (for 6.0 s {AT_6}); {BROKE}"),
    "in queue": ([progress("upstream"), *FULL], f"{GATEWAY} {RESTARTED} queue (for 6.0 s {AT_6}); {BROKE}"),
    "in prefill": ([progress("upstream"), *BUSY], f"{GATEWAY} {RESTARTED} prefill (for 6.0 s {AT_6}); {BROKE}"),
    "in either, with no scrape": ([progress("upstream")], f"{GATEWAY} {RESTARTED} queue or prefill (for 6.0 s {AT_6}); {BROKE}"),
    "in decode": ([progress("streaming", 2500), *BUSY], f"{GATEWAY} {RESTARTED} decode (for 2.5 s {AT_6}); {BROKE}"),
    "inside an engine": ([INSIDE], f"the middleware in e0 {RESTARTED} queue or prefill (for 6.0 s {AT_6}); {BROKE}"),
}


@pytest.mark.parametrize(("rows", "said"), RESTARTS.values(), ids=RESTARTS)
def test_a_request_lost_by_a_restart(house, rows, said):
    house.receive(act(-60), rows, act(8, "new"), act(8, "new", listen=None, engine="e0", **VLLM))
    house.tick(12)
    told = house.diagnose(house.one())
    assert (told.subject.outcome, told.verdict.label, told.verdict.severity) == ("lost", "inconclusive", Severity.WARNING)
    assert told.verdict.cause == f"lost: {said}"
    assert told.verdict.stage in said.split("stood in ")[1].replace("auth/routing", "auth_routing").split(" (")[0]
    assert told.verdict.cause in as_text(told)
    assert told.verdict.cause in as_markdown(told)
    assert exit_status(told, Severity.WARNING) == 5


SILENCES = {
    "known by its address": ([act(-60), progress("upstream")], GATEWAY),
    "known by its host": ([progress("upstream")], "the gateway on h"),
    "not known": ([CALL.open(6000)], "the gateway"),
    "inside an engine": ([INSIDE], "the middleware in e0"),
}


@pytest.mark.parametrize(("rows", "name"), SILENCES.values(), ids=SILENCES)
def test_a_request_lost_by_silence_does_not_say_that_its_sender_died(house, rows, name):
    house.receive(rows)
    house.tick(6.5)
    house.tick(40)
    verdict = house.diagnose(house.one()).verdict
    stopped = "stopped sending at 2026-09-21 14:13:26.000 UTC while the request stood in queue or prefill for 6.0 s; its end is unknown"
    assert verdict.cause == f"lost: {name} {stopped}; if that process died, its caller's connection broke then"
    assert verdict.fix.startswith(f"see whether {name} still runs")


def test_a_restart_that_came_after_the_silence_is_told_too(house):
    house.receive(act(-60), progress("upstream"))
    house.tick(6.5)
    house.tick(40)
    house.receive(act(300, "new"))
    house.tick(301)
    assert "was restarted at 2026-09-21 14:18:20.000 UTC while" in house.diagnose(house.one()).verdict.cause


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [("error", "connection reset", "in an error: connection reset"), ("error", None, "in an error"), ("ok", None, "without an error")],
)
def test_what_the_caller_saw_of_the_end_is_said_where_it_told(house, status, message, said):
    (client,) = Call(1, at=0, total=7000).client()
    client.status, client.status_message = status, message
    house.receive(act(-60), progress("upstream"), client, act(8, "new"))
    house.tick(8.2)
    told = house.diagnose(house.one())
    assert told.subject.outcome == "lost"
    assert told.verdict.cause.endswith(f"; its end is unknown; its caller saw it end {said}, 7.0 s after sending it")


def test_a_cause_that_has_evidence_stays_and_the_loss_is_said_beside_it(house):
    house.receive(act(-60), process(-60, "running"), progress("upstream"), process(5, "exited", -9), act(8, "new"))
    house.tick(8.2)
    told = house.diagnose(house.one())
    assert told.verdict.label == "engine-crash"
    assert told.verdict.cause.startswith("The engine died")
    assert told.verdict.cause.count(f"; besides, the request is lost: {GATEWAY} {RESTARTED} ") == 1


def test_an_end_that_came_late_takes_it_back(house):
    house.receive(act(-60), progress("upstream"), act(8, "new"))
    house.tick(8.2)
    house.receive(CALL.gateway(), CALL.llm_request())
    house.tick(9)
    assert "lost" not in house.diagnose(house.one()).verdict.cause


def test_an_open_request_is_told_as_before():
    house = House()
    house.receive(act(-60), progress("streaming", 2500, **{c.CHUNKS: 7, c.PROGRESS_SILENT_MS: 1200.0}), BUSY)
    house.tick(6.2)
    verdict = house.diagnose(house.one()).verdict
    assert verdict.cause == "still open: streaming for 2.7 s, 7 chunks so far, last byte 1.2 s before that was said"
    house.store.close()
