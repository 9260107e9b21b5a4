"""kill -9 at any moment: what was acknowledged is there once, after ten kills of a real process with journal, writer and store."""

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lensd.store.bodies import hash_of
from lensd.store.folder import FolderStore
from lensd.store.journal import Scan, Signal
from lensd.store.writer import replay

KILLS = 10

CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from killed import decode
from lensd.store.folder import FolderStore
from lensd.store.journal import Journal, Signal
from lensd.store.writer import Writer
folder, first = Path(sys.argv[1]), int(sys.argv[3])
store = FolderStore(folder / "store")
journal = Journal(folder / "journal", segment_bytes=20_000, after=store.reached())
writer = Writer(journal, store, decode, max_records=40)
writer.start()
number = first
while True:
    futures = [(n, journal.append(Signal.TRACES, 1, b"%d" % n)) for n in range(number, number + 8)]
    number += 8
    for n, future in futures:
        future.result()
        print(n, flush=True)
"""


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    chance = random.Random(20261129)
    first = 0
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(Path(__file__).parent), str(first)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        wanted = chance.randrange(1, 400)
        for _ in range(wanted):  # what decides when it dies is how far it got, not how fast the machine is
            acknowledged.append(int(child.stdout.readline()))
        child.kill()
        acknowledged += [int(line) for line in child.stdout.read().split("\n")[:-1]]
        assert child.wait(10) == -9
        first = max(acknowledged) + 1000
    from killed import decode

    store = FolderStore(tmp_path / "store", read_only=True)
    kept = Counter(key for key, _ in store.bodies(0, 1_000_000))
    kept.update(hash_of(record.kind, record.payload) for record in Scan(tmp_path / "journal", store.position()))
    bad: list[object] = []
    replay(store, Scan(tmp_path / "journal", store.position()), decode, lambda record, error: bad.append(error))
    with store.cursor() as cursor:
        found = Counter(int(name) for (name,) in cursor.execute("SELECT name FROM spans").fetchall())
    store.close()
    assert len(acknowledged) > KILLS
    assert not bad
    assert [number for number in acknowledged if found[number] != 1] == []
    assert [number for number, times in found.items() if times > 1] == []
    assert kept == Counter(hash_of(Signal.TRACES, b"%d" % number) for number in found)
