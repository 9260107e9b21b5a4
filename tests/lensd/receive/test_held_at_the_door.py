"""A store that falls behind makes senders wait, each as long as it takes over the bodies before, and never for long."""

import asyncio
from bisect import bisect_right, insort
from pathlib import Path

import pytest
from otlp_bodies import traces

from lensd.receive import intake as intake_module
from lensd.receive.intake import Intake
from lensd.receive.pace import AIM_S, MOST_S, PATIENCE_S, Pace
from lensd.store.journal import Journal
from lensd.store.segments import Signal

A_BODY_S = 0.02


class House:
    """A door before a store, with a clock of its own."""

    def __init__(self, lag_s: float, a_body_s: float = A_BODY_S) -> None:
        self.now, self.lag_s = 100.0, lag_s
        self.pace = Pace(lambda: self.lag_s, lambda: a_body_s, lambda: self.now)

    def waits(self, bodies: int) -> list[float]:
        """Of bodies that come at once."""
        return [self.pace.wait_s() for _ in range(bodies)]


@pytest.mark.parametrize(
    ("lag_s", "waits"),
    [
        (0.0, [0.0, 0.0, 0.0]),
        (PATIENCE_S * 0.99, [0.0, 0.0, 0.0]),
        (AIM_S, [0.0, A_BODY_S, 2 * A_BODY_S]),
        (2 * AIM_S, [0.0, 2 * A_BODY_S, 4 * A_BODY_S]),
    ],
)
def test_turns_lie_further_apart_the_further_behind_the_store_is(lag_s: float, waits: list[float]) -> None:
    assert House(lag_s).waits(3) == pytest.approx(waits)


def test_a_body_that_comes_when_its_turn_has_come_does_not_wait() -> None:
    house = House(AIM_S)
    house.waits(2)
    house.now += 2 * A_BODY_S
    assert house.waits(2) == pytest.approx([0.0, A_BODY_S])


def test_no_body_waits_for_long() -> None:
    house = House(1e6)
    assert max(house.waits(100)) == MOST_S


def test_a_store_that_has_caught_up_holds_nobody_up() -> None:
    house = House(AIM_S)
    house.waits(50)
    house.lag_s = 0.0
    assert house.waits(2) == [0.0, 0.0]
    house.lag_s = AIM_S
    assert house.waits(1) == [0.0]


def test_nobody_waits_before_it_is_known_how_fast_the_store_is() -> None:
    assert House(AIM_S, a_body_s=0.0).waits(3) == [0.0, 0.0, 0.0]


def admitted(senders: int, store_s: float, checkpoint_s: float) -> tuple[float, float, float]:
    """Senders of one body at a time, for a minute, against a store that takes `store_s` over each and stands still once for so long.

    The door itself takes a quarter of that over a body. The longest wait, the longest lag, and the bodies a second that came in.
    """
    house, begun = House(0.0, store_s), 100.0
    due, came, waits, lags, stored = [begun] * senders, list[float](), list[float](), list[float](), 0
    for tick in range(int(60.0 / store_s)):
        house.now = begun + tick * store_s
        here = bisect_right(came, house.now)
        if stored < here and not 30.0 <= house.now - begun < 30.0 + checkpoint_s:
            stored += 1
        house.lag_s = house.now - came[stored] if stored < here else 0.0
        lags.append(house.lag_s)
        for sender in range(senders):
            while due[sender] <= house.now:
                waits.append(house.pace.wait_s())
                due[sender] = house.now + waits[-1] + senders * store_s / 4
                insort(came, due[sender])
    return max(waits), max(lags), len(came) / 60.0


@pytest.mark.parametrize("senders", [1, 4, 16])
def test_senders_come_into_balance_with_the_store_and_a_checkpoint_shows_little(senders: int) -> None:
    wait_s, lag_s, rate = admitted(senders, A_BODY_S, checkpoint_s=1.0)
    assert lag_s < 4.0
    assert wait_s < 2.5 * senders * A_BODY_S
    assert rate > 0.9 / A_BODY_S


@pytest.mark.parametrize(("lag_s", "waits"), [(0.0, []), (AIM_S, [A_BODY_S])])
def test_a_body_is_held_before_it_is_taken(lag_s: float, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, slept, house = Journal(tmp_path / "journal"), list[float](), House(lag_s)

    async def sleep(seconds: float) -> None:
        assert list(journal.read_from(0)) == []
        slept.append(seconds)

    monkeypatch.setattr(intake_module.asyncio, "sleep", sleep)
    house.waits(1)
    intake = Intake(journal, "", pace=house.pace)
    asyncio.run(intake.take(Signal.TRACES, traces({}).SerializeToString()))
    journal.close()
    assert slept == pytest.approx(waits)
    assert len(list(journal.read_from(0))) == 1
