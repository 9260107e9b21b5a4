import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.rows import DeliveryRow

from lensd.alerts.config import AlertsConfig
from lensd.alerts.delivery import Destination, Failure, HttpAnswer, HttpRequest, Reason, SendError
from lensd.alerts.destinations.alertmanager_webhook import AlertmanagerWebhook, Webhook
from lensd.alerts.outbox import Outbox
from lensd.alerts.post import post
from lensd.alerts.registry import make_destinations
from lensd.alerts.stages import ORDER, Retry, retry_after_s
from lensd.errors import ConfigError
from lensd.records import Confidence, Incident, Severity

S = 1_000_000
START = 1_800_000_000 * S
OK = HttpAnswer(status=200)
BUSY = HttpAnswer(status=503)


def incident(name: str = "inc-1", resolved: bool = False) -> Incident:
    return Incident(
        incident_id=name,
        revision=2 if resolved else 1,
        label="engine-crash",
        state="resolved" if resolved else "open",
        severity=Severity.CRITICAL,
        stage="engine",
        confidence=Confidence.CERTAIN,
        cause="c",
        fix="f",
        opened_at=START,
        last_seen_at=START,
        resolved_at=START + 9 * S if resolved else None,
    )


class World:
    """A receiver, a store and a clock, which outlive the process that `start` begins."""

    def __init__(self, *names: str, send_resolved: bool = True) -> None:
        hooks = [Webhook(name=name, url=f"http://{name}/x", send_resolved=send_resolved) for name in names or ("ops",)]
        self.destinations: list[Destination] = [AlertmanagerWebhook(hook, "http://l") for hook in hooks]
        self.now = START
        self.rows: list[DeliveryRow] = []
        self.heard: list[tuple[str, str, str]] = []  # host, incident, status; of 2xx answers only
        self.asked: list[int] = []
        self.answer: Callable[[str], HttpAnswer] = lambda host: OK
        self.storing: Callable[[], None] = lambda: None
        self.start()

    def start(self, incidents: Iterable[Incident] = (), **more: Any) -> Outbox:
        self.outbox = Outbox(self._store, self.destinations, lambda: self.now, chance=lambda: 1.0, post=self._post, **more)
        self.outbox.restore(incidents, self.rows)
        return self.outbox

    def step(self, after_s: float = 0) -> int | None:
        self.now += int(after_s * S)
        return self.outbox.step(self.now)

    def statuses(self) -> list[tuple[str, int, str]]:
        return [(row.reason, row.attempt, row.status) for row in self.rows]

    def _store(self, rows: Sequence[DeliveryRow]) -> None:
        self.storing()
        self.rows += rows

    def _post(self, request: HttpRequest) -> HttpAnswer:
        self.asked.append((self.now - START) // S)
        host = request.url.split("/")[2]
        answer = self.answer(host)
        if answer.status < 300:
            body = json.loads(request.body)
            self.heard.append((host, body["alerts"][0]["annotations"]["incident_id"], body["status"]))
        return answer


def test_the_way_of_a_letter() -> None:
    assert [stage.__name__ for stage in ORDER] == ["dedupe", "render", "send", "record"]


def test_opened_and_resolved_are_told_once_to_each() -> None:
    world = World("a", "b")
    for _ in range(3):
        world.outbox.offer(incident(), Reason.OPENED)
        world.step(1)
    for _ in range(3):
        world.outbox.offer(incident(resolved=True), Reason.RESOLVED)
        world.step(1)
    assert world.heard == [(host, "inc-1", status) for status in ("firing", "resolved") for host in ("a", "b")]
    assert world.outbox.pending() == 0


def test_retries_wait_longer_each_time_until_the_deadline() -> None:
    world = World()
    world.answer = lambda host: BUSY
    world.outbox.offer(incident(), Reason.OPENED)
    due = world.step()
    while due is not None:
        due = world.step((due - world.now) / S)
    waits = [later - sooner for sooner, later in zip(world.asked, world.asked[1:], strict=False)]
    assert waits[:7] == [5, 10, 20, 40, 80, 160, 300]
    assert set(waits[7:]) == {300}
    assert world.asked[-1] <= 3600 < world.asked[-1] + 300
    assert [row.status for row in world.rows] == ["queued", *["failed"] * (len(waits)), "gave_up"]
    assert world.rows[-1].error == f"server_error: http://ops/… answered 503 Service Unavailable; gave up after {len(waits) + 1} attempts"


@given(st.integers(1, 500), st.floats(0, 1))
def test_jitter_takes_off_at_most_half(attempt: int, chance: float) -> None:
    whole = Retry().delay_s(attempt, 1.0)
    assert whole / 2 <= Retry().delay_s(attempt, chance) <= whole <= 300


def test_nothing_is_tried_before_it_is_due() -> None:
    world = World()
    world.answer = lambda host: BUSY
    world.outbox.offer(incident(), Reason.OPENED)
    assert world.step() == START + 5 * S
    assert world.step(4.9) == START + 5 * S
    assert world.asked == [0]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("120", 120), (" 7 ", 7), ("Fri, 15 Jan 2027 08:01:00 GMT", 60), ("soon", 0), ("-1", 0), ("", 0), (None, 0), ("9" * 30, 999_999_999)],
)
def test_retry_after_is_read(header: str | None, seconds: float) -> None:
    assert retry_after_s(header, START) == seconds


def test_retry_after_is_honoured_for_the_whole_destination() -> None:
    world = World()
    world.answer = lambda host: HttpAnswer(status=429, retry_after="100")
    world.outbox.offer(incident(), Reason.OPENED)
    world.step()
    world.answer = lambda host: OK
    world.outbox.offer(incident("inc-2"), Reason.OPENED)
    assert world.step(99) == START + 100 * S
    assert world.heard == []
    assert world.step(1) is None
    assert sorted(world.heard) == [("ops", "inc-1", "firing"), ("ops", "inc-2", "firing")]


def test_retry_after_past_the_deadline_is_given_up() -> None:
    world = World()
    world.answer = lambda host: HttpAnswer(status=429, retry_after="3601")
    world.outbox.offer(incident(), Reason.OPENED)
    assert world.step() is None
    assert world.statuses()[-1] == ("opened", 1, "gave_up")


def test_destination_that_fails_is_not_asked_for_every_letter() -> None:
    world = World()
    world.answer = lambda host: BUSY
    for n in range(20):
        world.outbox.offer(incident(f"inc-{n}"), Reason.OPENED)
    world.step()
    assert world.asked == [0]
    world.answer = lambda host: OK
    world.step(5)
    assert Counter(world.heard) == Counter({("ops", f"inc-{n}", "firing"): 1 for n in range(20)})


def test_one_destination_down_does_not_keep_the_other_waiting() -> None:
    world = World("down", "fine")
    world.answer = lambda host: BUSY if host == "down" else OK
    world.outbox.offer(incident(), Reason.OPENED)
    world.step()
    assert world.heard == [("fine", "inc-1", "firing")]


def test_resolved_waits_for_its_opened() -> None:
    world = World()
    world.answer = lambda host: BUSY
    world.outbox.offer(incident(), Reason.OPENED)
    world.step()
    world.outbox.offer(incident(resolved=True), Reason.RESOLVED)
    assert world.step(1) == START + 5 * S
    world.answer = lambda host: OK
    assert world.step(4) is None
    assert world.heard == [("ops", "inc-1", "firing"), ("ops", "inc-1", "resolved")]


def test_resolved_is_not_told_where_opened_never_was() -> None:
    world = World()
    world.answer = lambda host: HttpAnswer(status=400)
    world.outbox.offer(incident(), Reason.OPENED)
    world.step()
    world.answer = lambda host: OK
    world.outbox.offer(incident(resolved=True), Reason.RESOLVED)
    assert world.step(1) is None
    assert world.heard == []
    assert (world.statuses()[-1][2], world.rows[-1].error) == ("gave_up", "not sent: that the incident opened could not be told")


def test_resolved_is_not_owed_where_opened_was_never_offered() -> None:
    world = World()
    world.outbox.offer(incident(resolved=True), Reason.RESOLVED)
    assert world.step() is None
    assert (world.heard, world.rows) == ([], [])


def test_send_resolved_off() -> None:
    world = World(send_resolved=False)
    world.outbox.offer(incident(), Reason.OPENED)
    world.outbox.offer(incident(resolved=True), Reason.RESOLVED)
    world.step()
    assert world.heard == [("ops", "inc-1", "firing")]


def test_gone_disables_until_a_test_or_a_restart() -> None:
    world = World()
    world.answer = lambda host: HttpAnswer(status=410)
    for n in range(3):
        world.outbox.offer(incident(f"inc-{n}"), Reason.OPENED)
    assert world.step() is None
    assert world.asked == [0]
    assert world.outbox.disabled() == {"ops"}
    assert [row.status for row in world.rows[3:]] == ["gave_up"] * 3
    world.outbox.offer(incident("inc-4"), Reason.OPENED)
    assert (world.rows[-1].status, world.outbox.pending()) == ("gave_up", 0)
    world.answer = lambda host: OK
    world.outbox.offer(incident("test-1"), Reason.TEST)
    world.step()
    assert world.outbox.disabled() == frozenset()
    world.outbox.offer(incident("inc-5"), Reason.OPENED)
    world.step()
    assert [name for _, name, _ in world.heard] == ["test-1", "inc-5"]


def test_a_test_is_tried_once() -> None:
    world = World()
    world.answer = lambda host: BUSY
    world.outbox.offer(incident("test-1"), Reason.TEST)
    assert world.step() is None
    assert world.statuses()[-1] == ("test", 1, "gave_up")


def test_full_lane_gives_up_and_says_so() -> None:
    world = World()
    world.start(max_pending=2)
    for n in range(3):
        world.outbox.offer(incident(f"inc-{n}"), Reason.OPENED)
    assert [row.status for row in world.rows] == ["queued", "queued", "gave_up"]
    assert world.rows[-1].error == "2 letters are owed to the destination already"


def test_restart_repeats_nothing() -> None:
    world = World()
    world.outbox.offer(incident(), Reason.OPENED)
    world.step()
    world.start([incident()])
    world.outbox.offer(incident(), Reason.OPENED)
    world.step(1)
    world.outbox.offer(incident(resolved=True), Reason.RESOLVED)
    world.step(1)
    world.start([incident(resolved=True)])
    world.step(1)
    assert world.heard == [("ops", "inc-1", "firing"), ("ops", "inc-1", "resolved")]


def test_restart_goes_on_with_attempts_and_deadline() -> None:
    world = World()
    world.answer = lambda host: BUSY
    world.outbox.offer(incident(), Reason.OPENED)
    world.step()
    world.step(5)
    world.start([incident()])
    assert world.step(1) == START + 15 * S
    world.step(9)
    assert world.statuses()[-1] == ("opened", 3, "failed")
    world.now = START + 3599 * S
    world.start([incident()])
    assert world.step() is None
    assert world.statuses()[-1] == ("opened", 4, "gave_up")


def test_restart_tells_what_was_stored_and_never_offered() -> None:
    world = World()
    world.start([incident()])
    world.step()
    world.start([incident(resolved=True)])
    world.step()
    assert world.heard == [("ops", "inc-1", "firing"), ("ops", "inc-1", "resolved")]


def test_restart_tells_nothing_of_what_ended_before_the_destination_was_there() -> None:
    world = World()
    world.start([incident(resolved=True)])
    assert world.step() is None
    assert world.heard == []


def test_store_that_fails_costs_no_alert_and_no_row() -> None:
    def full() -> None:
        raise OSError("disk full")

    world = World()
    world.storing = full
    world.outbox.offer(incident(), Reason.OPENED)
    world.step()
    assert (world.heard, world.rows) == ([("ops", "inc-1", "firing")], [])
    world.storing = lambda: None
    world.step(1)
    assert world.statuses() == [("opened", 0, "queued"), ("opened", 1, "sent")]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_numbered_incidents_over_failures_and_restarts(seed: int, number: int) -> None:
    """Numbered items: each receiver that answers in the end hears of every incident once when it opens, once when it ends."""
    dice, world, stored = random.Random(seed), World("a", "b"), {}
    answers = [OK, BUSY, HttpAnswer(status=429, retry_after="2"), HttpAnswer(status=408)]

    def moody(host: str) -> HttpAnswer:
        if dice.random() < 0.2:
            raise SendError(Failure.TIMEOUT, "did not answer")
        return dice.choice(answers)

    world.answer = moody
    for n in range(number):
        for resolved, reason in ((False, Reason.OPENED), (True, Reason.RESOLVED)):
            stored[n] = incident(f"inc-{n}", resolved)
            if resolved or dice.random() < 0.8:  # else the process dies between storing and offering it
                world.outbox.offer(stored[n], reason)
            else:
                world.start(stored.values())
            world.step(dice.uniform(0, 30))
            if dice.random() < 0.3:
                world.start(stored.values())
    world.answer = lambda host: OK
    for _ in range(60):
        world.step(60)
    assert Counter(world.heard) == Counter(
        (host, f"inc-{n}", s) for host in ("a", "b") for n in range(number) for s in ("firing", "resolved")
    )
    for host in ("a", "b"):
        mine = [(name, status) for where, name, status in world.heard if where == host]
        assert all(mine.index((f"inc-{n}", "firing")) < mine.index((f"inc-{n}", "resolved")) for n in range(number))


def test_a_death_between_answer_and_row_repeats_the_same_alert() -> None:
    world = World()
    bodies: list[bytes] = []

    def dies(request: HttpRequest) -> HttpAnswer:
        bodies.append(request.body)
        raise KeyboardInterrupt

    outbox = Outbox(world._store, world.destinations, lambda: world.now, chance=lambda: 1.0, post=dies)
    outbox.offer(incident(), Reason.OPENED)
    with pytest.raises(KeyboardInterrupt):
        outbox.step(world.now)
    world.start([incident()])
    world.step()
    assert len(world.heard) == 1
    assert json.loads(bodies[0])["groupKey"] == json.loads(world.destinations[0].render(incident(), Reason.OPENED, "d").body)["groupKey"]


def test_threads_post_over_http_and_end_when_told() -> None:
    got: list[Any] = []
    told = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            told.set()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    config = AlertsConfig(webhooks=(Webhook(name="ops", url=f"http://127.0.0.1:{server.server_port}/hook"),))
    rows: list[DeliveryRow] = []
    outbox = Outbox(rows.extend, make_destinations(config, "http://l/"), lambda: START, chance=lambda: 0.5, post=post)
    stop = threading.Event()
    worker = threading.Thread(target=outbox.run, args=(stop,))
    worker.start()
    outbox.offer(incident(), Reason.OPENED)
    assert told.wait(10)
    stop.set()
    worker.join(10)
    server.shutdown()
    server.server_close()
    serving.join()
    assert not worker.is_alive()
    assert [row.status for row in rows] == ["queued", "sent"]
    assert [(body["receiver"], body["status"], body["externalURL"]) for body in got] == [("ops", "firing", "http://l")]


def test_two_destinations_of_one_name_are_refused() -> None:
    hook = Webhook(name="ops", url="http://h/secret")
    with pytest.raises(ConfigError, match="'ops'") as caught:
        make_destinations(AlertsConfig(webhooks=(hook, hook)), "http://l")
    assert "secret" not in str(caught.value)


def test_configuration_reads_as_written() -> None:
    text = {"webhooks": [{"name": "ops", "url_file": "/run/secrets/hook", "send_resolved": False, "timeout_s": 3}]}
    assert msgspec.convert(text, AlertsConfig).webhooks[0].timeout_s == 3
