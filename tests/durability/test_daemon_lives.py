"""A real daemon under load is killed or stands still; its senders send again what was not answered; nothing is lost or doubled."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_process import Daemon, until
from load import SENDERS, Load, compared, spans_in

STOPPED_S = 10.0
TRY_S = 1.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.clean_up()


@pytest.mark.slow
def test_kills_under_load_lose_and_double_nothing(daemon: Daemon, kills: int, record_property: Callable[[str, object], None]) -> None:
    load = Load(daemon, time.time_ns())
    lives = max(2, kills // 10)
    for life in range(lives):
        daemon.start()
        load.start()
        wanted = len(load.acknowledged) + 40 + 13 * (life % 7)
        until(lambda: len(load.acknowledged) >= wanted)  # noqa: B023
        assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
        load.stop()
    daemon.start()
    load.settle()
    assert daemon.end(signal.SIGTERM) == 0
    lost, doubled = compared(load, spans_in(daemon))
    figures = f"{lives} kills of a daemon; {len(load.acknowledged)} bodies acknowledged, {len(lost)} spans lost, {len(doubled)} doubled"
    record_property("figures", figures)
    assert (lost, doubled) == ([], []), figures


@pytest.mark.slow
def test_a_daemon_that_stands_still_for_ten_seconds_loses_and_doubles_nothing(long_only: None, daemon: Daemon) -> None:
    load = Load(daemon, time.time_ns(), timeout_s=TRY_S)
    daemon.start()
    load.start()
    until(lambda: len(load.acknowledged) > 50)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: load.statuses[0] >= SENDERS * STOPPED_S / TRY_S)  # tries that nobody answered for a second
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    before = len(load.acknowledged)
    until(lambda: len(load.acknowledged) > before + 50)
    load.stop()
    load.settle()
    assert daemon.end(signal.SIGTERM) == 0
    assert compared(load, spans_in(daemon)) == ([], [])
