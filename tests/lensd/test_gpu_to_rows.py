"""From a driver to stored rows, through real processes: a card whose memory runs out, one that is lost, and one whose driver blocks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_process import LIMIT_S, Daemon, free_port, until
from lensd_collectors.host.procfs import sees_hosts_pids
from nvml_stub.build import built, environment, require_compiler
from nvml_stub.scripts import GIB, TOTAL, cards, series, text

from lensd.store.folder import FolderStore

STEPS = 12


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    require_compiler()
    made = Daemon(tmp_path)
    yield made
    made.clean_up()


class Agent:
    """A real `lensd agent` beside the daemon, on a driver that plays a script; this process is the engine that holds the memory."""

    def __init__(self, daemon: Daemon, script: str) -> None:
        path = daemon.folder / "script"
        path.write_text(script)
        self.mark = daemon.folder / "mark"
        with daemon.config.open("a") as config:
            config.write(
                f'[agent]\nexport_url = "http://127.0.0.1:{daemon.otlp}"\nkmsg = false\ngpu_interval_s = 0.1\nmemory_interval_s = 0.1\n'
                f'[[agent.engines]]\nname = "e0"\nurl = "http://127.0.0.1:{free_port()}"\npid = {os.getpid()}\n'
            )
        env = daemon.environment() | environment(built(daemon.folder / "nvml"), path, step_ms=250, call_us=1000, mark=self.mark)
        command = [sys.executable, "-m", "lensd", "agent", "--config", str(daemon.config)]
        self.process = subprocess.Popen(command, env=env | {"HOME": str(daemon.folder)})

    def has_seen_all(self) -> bool:
        assert self.process.poll() is None
        return self.mark.exists()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)


def stored(daemon: Daemon, query: str) -> list[tuple[Any, ...]]:
    """Of a store whose daemon has ended."""
    store = FolderStore(daemon.store, read_only=True)
    try:
        with store.cursor() as cursor:
            return cursor.execute(query).fetchall()
    finally:
        store.close()


def told(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    return [json.loads(fields) for (fields,) in stored(daemon, f"select fields from events where name = '{name}' order by seen_at")]


@pytest.mark.slow
def test_memory_runs_out_on_one_card_and_another_is_lost(daemon: Daemon) -> None:
    used = [TOTAL - (STEPS - step) * GIB for step in range(STEPS)]
    growth = [series("0", "used", used), series("0", f"proc.{os.getpid()}", [each - GIB for each in used]), series("0", "reserved", [0])]
    mark = f"{STEPS + 5} - mark 1"
    end = [f"{STEPS} 0 proc.{os.getpid()} -2", f"{STEPS} 0 used {GIB}", f"{STEPS} 0 xid 31", f"{STEPS} 1 lost 1", f"{STEPS} 1 xid 79"]
    daemon.start()
    agent = Agent(daemon, text(cards(2), *growth, end, mark))
    try:
        until(agent.has_seen_all)
    finally:
        assert agent.end() == 0
    assert daemon.end(signal.SIGTERM) == 0
    curve = [row[0] for row in stored(daemon, "select used_bytes from gpu_samples where gpu = '0' and pid is null order by seen_at")]
    grown = curve[: curve.index(GIB)]
    assert grown == sorted(grown)
    assert len(set(grown)) >= STEPS // 2
    assert grown[-1] >= TOTAL - 2 * GIB
    rows = stored(daemon, f"select distinct pid_engine, process is null from gpu_samples where gpu = '0' and pid = {os.getpid()}")
    assert rows == ([("e0", False)] if sees_hosts_pids() else [(None, True)])
    first, last = stored(daemon, "select min(seen_at), max(seen_at) from gpu_samples where gpu = '1'")[0]
    lost_at = stored(daemon, "select seen_at from events where name = 'lensd.gpu.state.changed' and fields like '%\"lost\"%'")
    assert len(lost_at) == 1
    assert first < last <= lost_at[0][0]
    faults = [(each["gpu"], each["xid"], each["pci"]) for each in told(daemon, "gpu.xid")]
    assert sorted(faults) == [("0", 31, "0000:3b:00"), ("1", 79, "0000:3c:00")]
    assert stored(daemon, "select count(*) > 3 from gpu_samples where gpu is null and pid is null and rss_bytes < total_bytes") == [(True,)]
    assert stored(daemon, f"select distinct pid_engine from gpu_samples where gpu is null and pid = {os.getpid()}") == [("e0",)]


@pytest.mark.slow
def test_a_driver_that_blocks_holds_up_nothing_else(daemon: Daemon) -> None:
    daemon.start()
    agent = Agent(daemon, text(cards(1), "3 - block.UtilizationRates 1", "14 - mark 1"))
    try:
        until(agent.has_seen_all)
    finally:
        assert agent.end() == 0
    assert daemon.end(signal.SIGTERM) == 0
    blocked_at = stored(daemon, "select max(seen_at) from gpu_samples where gpu = '0'")[0][0]
    assert stored(daemon, f"select count(*) > 5 from gpu_samples where gpu is null and seen_at > timestamp '{blocked_at}'") == [(True,)]
