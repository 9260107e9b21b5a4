"""A disk that is full: the daemon refuses cleanly and goes on reading, and takes again by itself once there is room."""

import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_process import Daemon, until
from load import Load, compared, spans_in
from small_disk import small_disk

DISK_MEGABYTES = 64
LEFT_BYTES = 1 << 20
PADDING = 20_000  # so that a megabyte is soon full


@pytest.mark.slow
def test_a_full_disk_is_refused_read_from_and_recovered_from(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with small_disk(tmp_path / "disk", DISK_MEGABYTES) as disk:
        if disk is None:
            pytest.skip("this machine lets no test mount a file system")
        daemon = Daemon(disk.folder)
        load = Load(daemon, time.time_ns(), padding=PADDING)
        try:
            daemon.start()
            load.start()
            until(lambda: len(load.acknowledged) > 20)
            disk.fill(LEFT_BYTES)
            until(lambda: load.statuses[429] + load.statuses[503] > 20)
            before = len(load.acknowledged)
            assert answers(daemon)
            disk.free()
            until(lambda: len(load.acknowledged) > before + 20)
            load.stop()
            load.settle()
            assert answers(daemon)
            assert daemon.end(signal.SIGTERM) == 0
            lost, doubled = compared(load, spans_in(daemon))
        finally:
            load.stop()
            daemon.clean_up()
    record_property("figures", f"{len(load.acknowledged)} bodies acknowledged around a full disk; answers {dict(load.statuses)}")
    assert (lost, doubled) == ([], [])
    assert set(load.statuses) <= {200, 429, 503}  # no answer is left out and none is a fault
    assert load.retry_after


def answers(daemon: Daemon) -> bool:
    """Whether the API still reads the store."""
    token = (daemon.store / "token").read_text().strip()
    for path in ("requests?limit=5", "status"):
        request = urllib.request.Request(f"http://127.0.0.1:{daemon.api}/api/v1/{path}", headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
    return True
