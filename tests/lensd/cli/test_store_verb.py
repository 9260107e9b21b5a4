"""`lensd store` beside a daemon that has the store, and after it: a damaged day is told everywhere, and everything else goes on."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from daemon_process import Daemon
from lensd_collectors.rows import ConfigFact
from seeded import T0, fill_folder

from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore

BAD = "day-20261128.duckdb"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    fill_folder(made.store)
    store = FolderStore(made.store)
    store.append(batch_of({"config_facts": [ConfigFact(seen_at=T0, subject="e0", name="kept")]}), 9)
    store.close()
    (made.store / BAD).write_bytes(b"not a database" * 1000)
    yield made
    made.clean_up()


@pytest.mark.slow
def test_a_damaged_day_beside_a_daemon_and_after_it(daemon: Daemon) -> None:
    daemon.start()
    told = daemon.cli("doctor")
    [said] = [check for check in told["checks"] if check["about"] == "store"]
    assert (said["health"], BAD in said["said"], "lensd store check" in said["do"]) == ("warn", True, True)
    assert len(daemon.requests()) == 8
    log = (daemon.folder / "serve.log").read_text()
    assert log.count(f"{BAD} is damaged and left out") == 1
    assert daemon.process is not None
    for verb in (("check",), ("export", "--parquet", str(daemon.folder / "out")), ("restore", "backup-v1-20261201T050000Z")):
        done = daemon.lensd("store", *verb)
        assert done.returncode == 5, (verb, done.stdout)
        [line] = done.stderr.splitlines()
        assert verb[0] == "restore" or f"process {daemon.process.pid}" in line, line
    assert daemon.lensd("store", "restore").stdout == "no backups: a migration makes them\n"
    assert daemon.end(signal.SIGTERM) == 0
    done = daemon.lensd("store", "check", "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert {file["file"]: file["error"] is None for file in found["files"]}[BAD] is False
    assert {view["table"]: view["rows"] for view in found["views"]}["requests"] == 8
    assert [file["file"] for file in found["files"] if file["error"] is not None] == [BAD]
    assert daemon.lensd("store", "export", "--parquet", str(daemon.folder / "out")).returncode == 0
    assert pq.read_table(daemon.folder / "out" / "requests.parquet").num_rows == 8
