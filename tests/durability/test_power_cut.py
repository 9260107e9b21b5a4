"""A disk that drops or tears whatever was not synced takes nothing that was acknowledged, over several power cuts."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from power_cut import SimulatedDisk

from lensd.errors import JournalError
from lensd.store.journal import Journal, Scan, Signal

FOLDER = Path("/journal")


class Life:
    """Journals one after another on what each power cut left; the store drains what it likes in between."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.disk = SimulatedDisk()
        self.sent: dict[bytes, int] = {}  # payload -> position once acknowledged, else 0
        self.stored = 0  # the position that the store has reached, which is safe
        self.drained: set[bytes] = set()

    def run(self, groups: list[int], fails_at: int) -> None:
        """Append groups of records until the power fails; now and then the store takes what is there."""
        self.disk.fail_after(fails_at)
        try:
            journal = Journal(FOLDER, segment_bytes=300, after=self.stored, disk=self.disk)
        except JournalError:
            return
        for size in groups:
            self._append(journal, size)
            if self.chance.random() < 0.3:
                self._drain(journal)
        journal.close()

    def _append(self, journal: Journal, count: int) -> None:
        futures = []
        for _ in range(count):
            payload = b"%d/" % len(self.sent) + self.chance.randbytes(self.chance.randrange(60))
            self.sent[payload] = 0
            futures.append((payload, journal.append(Signal.TRACES, 1, payload)))
        for payload, future in futures:
            if future.exception(10) is None:
                self.sent[payload] = future.result()

    def _drain(self, journal: Journal) -> None:
        try:
            for record in journal.read_from(self.stored):
                assert record.payload not in self.drained
                self.drained.add(record.payload)
                self.stored = record.position
        except OSError:
            return
        journal.drained(self.stored)

    def cut(self) -> None:
        self.disk = self.disk.survivors(self.chance)

    def holds(self) -> Counter[bytes]:
        """What the store has and what a reader finds in the journal beyond it."""
        found = Counter(self.drained)
        found.update(record.payload for record in Scan(FOLDER, self.stored, disk=self.disk))
        return found


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lives=st.lists(st.tuples(st.lists(st.integers(1, 12), max_size=8), st.integers(1, 60)), min_size=1, max_size=4),
)
def test_what_was_acknowledged_survives_every_power_cut_once(seed: int, lives: list[tuple[list[int], int]]) -> None:
    life = Life(random.Random(seed))
    for groups, fails_at in lives:
        life.run(groups, fails_at)
        life.cut()
        there = life.holds()
        assert [payload for payload, position in life.sent.items() if position and not there[payload]] == []
        assert [payload for payload, times in there.items() if times > 1] == []
        assert there.keys() <= life.sent.keys()  # nothing that nobody sent


@pytest.mark.parametrize("broken", ["sync", "sync_folder"])
def test_a_journal_that_does_not_sync_is_found_out(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated disk does take what is not synced: without a sync acknowledged records are lost."""
    monkeypatch.setattr(SimulatedDisk, broken, lambda self, handle: None)
    lost = 0
    for seed in range(40):
        life = Life(random.Random(seed))
        life.run([5, 5, 5], 10_000)
        life.cut()
        there = life.holds()
        lost += sum(position > 0 and not there[payload] for payload, position in life.sent.items())
    assert lost > 0
