"""The daemon looks after its store's files, and says so."""

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from lensd_collectors.rows import Instant, SpanRow

from lensd.config import Config, ServeConfig
from lensd.daemon import Daemon
from lensd.store.arrow import batch_of


def test_the_daemon_keeps_house(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lensd.store.housekeeping.EVERY_S", 0.01)
    daemon = Daemon(Config(serve=ServeConfig(store=str(tmp_path / "store"))))
    old = time.time() - 30 * 86_400  # long over; its rows came a moment ago, so it stays
    day = f"{datetime.fromtimestamp(old, UTC):%Y-%m-%d}"
    daemon.store.append(batch_of({"spans": [SpanRow(trace_id="t", started_at=Instant(int(old * 1e6)))]}))
    packed, real = threading.Event(), daemon.housekeeping.look

    def look() -> None:
        real()
        if daemon.health()["housekeeping"]["packed_day"]:
            packed.set()

    monkeypatch.setattr(daemon.housekeeping, "look", look)
    daemon.start()
    try:
        assert packed.wait(60)
        state = daemon.health()["housekeeping"]
    finally:
        daemon.stop()
    assert (state["packed_day"], state["deleted_day"], state["last_error"]) == (day, None, "")
    assert state["bytes"] > 0
    assert not [thread.name for thread in threading.enumerate() if thread.name == "lensd-housekeeping"]
    assert [path.name for path in (tmp_path / "store").glob("day-*-packed.duckdb")] == [f"day-{day.replace('-', '')}-packed.duckdb"]
