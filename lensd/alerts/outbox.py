"""Tells every destination of every incident once when it opens and once when it resolves, over failures and restarts.

What is owed follows from the rows of `incidents` and `deliveries` alone. A letter is written down before its first try and
after each; a letter that has a row `sent` or `gave_up` is done. The only repeat left is a crash between a receiver's 2xx and
the row of it, and then the body has the same groupKey and fingerprint.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec
from lensd_collectors.rows import DeliveryRow

from lensd.alerts.delivery import Destination, Post, Reason, Status, delivery_id
from lensd.alerts.lane import Lane
from lensd.alerts.stages import RETRIED, Desk, Letter, Retry, deliver, row_of
from lensd.records import Incident

log = logging.getLogger(__name__)

FINAL = frozenset({Status.SENT, Status.GAVE_UP})
IDLE_S = 1.0  # longest sleep of a worker that has nothing due
GONE = 410
DISABLED = "the destination is disabled: it answered 410 Gone"

StoreAppend = Callable[[Sequence[DeliveryRow]], None]


class Outbox:
    """Durable queue of alerts. `offer` may be called from any thread; `run` works in its own, a worker a destination.

    `clock` gives microseconds since the epoch, `chance` a number from 0 to 1 (jitter), `post` sends one request.
    `store_append` may raise: the rows are kept and offered to it again with the next ones.
    """

    def __init__(
        self,
        store_append: StoreAppend,
        destinations: Sequence[Destination],
        clock: Callable[[], int],
        *,
        chance: Callable[[], float],
        post: Post,
        retry: Retry | None = None,
        max_pending: int = 1000,
    ) -> None:
        self._append = store_append
        self._clock = clock
        self._chance = chance
        self._post = post
        self._retry = retry or Retry()
        self._max_pending = max_pending
        self._lanes = {destination.name: Lane(destination) for destination in destinations}
        self._statuses: dict[str, Status] = {}  # how each letter that is done ended
        self._unwritten: list[DeliveryRow] = []
        self._lock = threading.RLock()

    def restore(self, incidents: Iterable[Incident], rows: Iterable[DeliveryRow]) -> None:
        """Takes up what a former process owed: call once, before `offer`, with stored incidents and deliveries.

        A letter begun and not done goes on where it was. An incident still open that a destination has never been offered
        is offered now (the process died in between, or the destination is new); a resolved one only if it was told of.
        """
        last: dict[str, DeliveryRow] = {}
        begun: dict[str, int] = {}
        for row in rows:
            if row.delivery_id not in last or _order(row) > _order(last[row.delivery_id]):
                last[row.delivery_id] = row
            begun[row.delivery_id] = min(row.attempted_at, begun.get(row.delivery_id, row.attempted_at))
        with self._lock:
            self._statuses.update({key: Status(row.status) for key, row in last.items() if row.status in FINAL})
            for incident in incidents:
                for lane in self._lanes.values():
                    self._resume(lane, incident, last, begun)

    def offer(self, incident: Incident, reason: Reason) -> None:
        """Owes this to every destination that has not been told; returns once that is written down.

        A resolution is owed only where the opening was: who never heard of an incident need not hear of its end.
        """
        for lane in self._lanes.values():
            self._owe(lane, incident, reason)

    def step(self, now: int) -> int | None:
        """Tries all that is due, one after another; gives the instant of the next try, None with nothing owed."""
        for lane in self._lanes.values():
            self._work(lane, now)
        self._flush()
        with self._lock:
            times = [due for lane in self._lanes.values() if (due := lane.next_due()) is not None]
        return min(times, default=None)

    def run(self, stop: threading.Event) -> None:
        """Works until `stop` is set: one thread a destination, so that a dead one holds up no other."""
        workers = [threading.Thread(target=self._serve, args=(lane, stop), name=f"alerts-{name}") for name, lane in self._lanes.items()]
        for worker in workers:
            worker.start()
        stop.wait()
        for lane in self._lanes.values():
            lane.wake.set()
        for worker in workers:
            worker.join()
        self._flush()

    def pending(self) -> int:
        """Letters owed."""
        with self._lock:
            return sum(len(lane.letters) for lane in self._lanes.values())

    def disabled(self) -> frozenset[str]:
        """Destinations that answered 410 Gone; a restart asks them again."""
        with self._lock:
            return frozenset(name for name, lane in self._lanes.items() if lane.disabled)

    def _resume(self, lane: Lane, incident: Incident, last: dict[str, DeliveryRow], begun: dict[str, int]) -> None:
        name = lane.destination.name
        told = delivery_id(incident, name, Reason.OPENED) in last
        owed = Reason.OPENED if incident.state != "resolved" else Reason.RESOLVED if told else None
        for reason in (Reason.OPENED, Reason.RESOLVED):
            key = delivery_id(incident, name, reason)
            row = last.get(key)
            if row is not None and key not in self._statuses:
                letter = self._letter(lane, incident, reason, begun[key])
                wait = self._retry.delay_s(row.attempt, 1.0) if row.attempt else 0.0
                lane.letters[key] = msgspec.structs.replace(letter, attempt=row.attempt, due_at=row.attempted_at + int(wait * 1e6))
            elif row is None and reason is owed:
                self._owe(lane, incident, reason)

    def _owe(self, lane: Lane, incident: Incident, reason: Reason) -> None:
        if reason is Reason.RESOLVED and not lane.destination.send_resolved:
            return
        now = self._clock()
        letter = self._letter(lane, incident, reason, now)
        with self._lock:
            opening = delivery_id(incident, lane.destination.name, Reason.OPENED)
            if self._knows(lane, letter.delivery_id) or (reason is Reason.RESOLVED and not self._knows(lane, opening)):
                return
            refused = self._refusal(lane, letter)
            if refused is None:
                lane.letters[letter.delivery_id] = letter
                self._write_one(row_of(letter, now))
            else:
                self._statuses[letter.delivery_id] = self._give_up(letter, refused, now).status
                log.warning("alert %s of %s to %s given up: %s", reason, incident.incident_id, lane.destination.name, refused)
        lane.wake.set()

    def _knows(self, lane: Lane, key: str) -> bool:
        return key in lane.letters or key in self._statuses

    def _refusal(self, lane: Lane, letter: Letter) -> str | None:
        if lane.disabled and letter.reason is not Reason.TEST:
            return DISABLED
        if len(lane.letters) >= self._max_pending:
            return f"{self._max_pending} letters are owed to the destination already"
        return None

    def _letter(self, lane: Lane, incident: Incident, reason: Reason, offered_at: int) -> Letter:
        key = delivery_id(incident, lane.destination.name, reason)
        return Letter(
            delivery_id=key, incident=incident, reason=reason, destination=lane.destination, offered_at=offered_at, due_at=offered_at
        )

    def _work(self, lane: Lane, now: int) -> None:
        """Tries the lane's due letters until none is left or the destination fails."""
        while True:
            with self._lock:
                due = lane.due(now)
            if not due:
                return
            self._attempt(lane, due[0], now)

    def _attempt(self, lane: Lane, letter: Letter, now: int) -> None:
        if letter.reason is Reason.RESOLVED and self._opened_was_lost(letter):
            done = self._give_up(letter, "not sent: that the incident opened could not be told", now)
        else:
            desk = Desk(now=now, post=self._post, retry=self._retry, chance=self._chance, is_done=self._is_done, write=self._write_one)
            done = deliver(letter, desk)
        if done.failure is not None:
            log.warning("alert %s of %s to %s: %s", done.reason, done.incident.incident_id, lane.destination.name, done.error)
        with self._lock:
            self._settle(lane, done, now)
            if lane.disabled:
                for owed in lane.letters.values():
                    self._statuses[owed.delivery_id] = self._give_up(owed, DISABLED, now).status
                lane.letters.clear()

    def _settle(self, lane: Lane, done: Letter, now: int) -> None:
        """Puts the letter away or back, and lets the destination rest after a failure that is worth a retry."""
        lane.letters.pop(done.delivery_id, None)
        if done.status is Status.FAILED:
            lane.letters[done.delivery_id] = done
        elif not done.dropped:
            self._statuses[done.delivery_id] = done.status
        if done.failure in RETRIED:
            asked = done.answer is not None and done.answer.retry_after is not None
            rest = now + int(self._retry.first_s * 1e6)
            lane.blocked_until = done.due_at if asked and done.status is Status.FAILED else rest
        if done.answer is not None and done.answer.status == GONE:
            lane.disabled = True
        elif done.status is Status.SENT:
            lane.disabled = False

    def _give_up(self, letter: Letter, why: str, now: int) -> Letter:
        letter = msgspec.structs.replace(letter, status=Status.GAVE_UP, error=why)
        self._write_one(row_of(letter, now))
        return letter

    def _opened_was_lost(self, letter: Letter) -> bool:
        with self._lock:
            return self._statuses.get(delivery_id(letter.incident, letter.destination.name, Reason.OPENED)) is Status.GAVE_UP

    def _serve(self, lane: Lane, stop: threading.Event) -> None:
        while not stop.is_set():
            lane.wake.clear()
            now = self._clock()
            self._work(lane, now)
            self._flush()
            with self._lock:
                due = lane.next_due()
            left = IDLE_S if due is None else (due - self._clock()) / 1e6
            lane.wake.wait(min(IDLE_S, max(0.0, left)))

    def _is_done(self, key: str) -> bool:
        with self._lock:
            return key in self._statuses

    def _write_one(self, row: DeliveryRow) -> None:
        self._write([row])

    def _flush(self) -> None:
        if self._unwritten:
            self._write([])

    def _write(self, rows: list[DeliveryRow]) -> None:
        """Stores rows, with those that could not be stored before; a store that fails costs no alert."""
        with self._lock:
            waiting = self._unwritten + rows
            try:
                self._append(waiting)
                self._unwritten = []
            except Exception as error:
                self._unwritten = waiting[-self._max_pending * len(self._lanes) :]
                log.warning("deliveries not stored yet (%d rows): %s", len(waiting), type(error).__name__)


def _order(row: DeliveryRow) -> tuple[int, bool]:
    """Rows of one letter in the order they were written; giving up may repeat the number of the last attempt."""
    return row.attempt, row.status in FINAL
