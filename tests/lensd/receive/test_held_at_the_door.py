"""A store that falls behind makes senders wait, a little at first, and never for long."""

import asyncio
from pathlib import Path

import pytest
from otlp_bodies import traces

from lensd.receive import intake as intake_module
from lensd.receive.intake import MOST_HELD_S, Intake, held_for
from lensd.store.journal import Journal
from lensd.store.segments import Signal


@pytest.mark.parametrize(("lag_s", "held_s"), [(0.0, 0.0), (1.5, 0.0), (2.5, 0.04), (3.5, 0.32), (5.0, 1.715), (1e6, MOST_HELD_S)])
def test_the_wait_grows_with_the_lag(lag_s: float, held_s: float) -> None:
    assert held_for(lag_s) == pytest.approx(held_s)


def test_many_senders_come_into_balance_before_the_lag_is_too_long() -> None:
    """64 senders of one body at a time, a store that takes 70 bodies a second: the lag at which as many come in."""
    lag_s = next(lag / 100 for lag in range(1000) if 64 / (held_for(lag / 100) + 0.005) <= 70)
    assert 1.0 < lag_s < 5.0


@pytest.mark.parametrize(("lag_s", "waits"), [(0.0, []), (2.5, [0.04])])
def test_a_body_is_held_before_it_is_taken(lag_s: float, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, slept = Journal(tmp_path / "journal"), list[float]()

    async def sleep(seconds: float) -> None:
        assert list(journal.read_from(0)) == []
        slept.append(seconds)

    monkeypatch.setattr(intake_module.asyncio, "sleep", sleep)
    intake = Intake(journal, "", lag_s=lambda: lag_s)
    asyncio.run(intake.take(Signal.TRACES, traces({}).SerializeToString()))
    journal.close()
    assert slept == pytest.approx(waits)
    assert len(list(journal.read_from(0))) == 1
