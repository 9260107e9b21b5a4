"""The process that is killed: journal, writer and store with small limits, which says what it is at and what it has acknowledged.

    python prey.py FOLDER FIRST feed|write

It numbers records from FIRST. Lines on stdout: `+phase` and `-phase` around a phase, a number once it is acknowledged. Phases: append
(a group of records is written to the journal and synced), commit (a batch goes into the store's files), checkpoint, roll_over (a day's
files are packed into one meanwhile), and replay (opening the store and storing what the journal still holds). `feed` writes to the
journal only, so that the next one has something to replay.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lensd" / "store")]

import killed  # noqa: E402
from lensd_collectors.rows import Row  # noqa: E402
from store_rows import DAY_US, NOV_29  # noqa: E402

from lensd.errors import StoreError  # noqa: E402
from lensd.store.disk import RealDisk  # noqa: E402
from lensd.store.folder import FolderStore  # noqa: E402
from lensd.store.journal import Journal, Signal  # noqa: E402
from lensd.store.rollover import roll_over  # noqa: E402
from lensd.store.writer import Writer  # noqa: E402

SEGMENT_BYTES: Final = 20_000
RECORDS_A_BATCH: Final = 40
MOST_UNDRAINED_BYTES: Final = 5_000  # of some thirty a record
BATCHES_A_CHECKPOINT: Final = 3
BATCHES_A_ROLL_OVER: Final = 2
DAYS: Final = tuple(NOV_29 // DAY_US + number for number in range(3))  # those that `decode` gives
GROUP: Final = 8


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one write, so that a kill cuts no line


def decode(kind: Signal, payload: bytes, received_at_us: int) -> dict[str, list[Row]]:
    """The span of a record with 600 bytes that hardly compress, so that commits and checkpoints take their time."""
    rows = killed.decode(kind, payload, received_at_us)
    noise = hashlib.shake_256(payload).hexdigest(300)
    for row in rows["spans"]:
        row.attributes = json.dumps({"noise": noise})  # type: ignore[attr-defined]
    return rows


class TellingDisk(RealDisk):
    def append(self, handle: int, data: bytes) -> None:
        say("+append")
        super().append(handle, data)

    def sync(self, handle: int) -> None:
        super().sync(handle)
        say("-append")


class TellingStore(FolderStore):
    batches = 0

    def append(self, *arguments: Any, **named: Any) -> None:
        say("+commit")
        super().append(*arguments, **named)
        say("-commit")
        self.batches += 1
        if self.batches % BATCHES_A_CHECKPOINT == 0:
            self.checkpoint()
        if self.batches % BATCHES_A_ROLL_OVER == 0:
            due.release()

    def checkpoint(self) -> None:
        """What a store does by itself when a log is long, here every few batches."""
        say("+checkpoint")
        super().checkpoint()
        say("-checkpoint")


due = threading.Semaphore(0)
"""Let go as often as a roll-over is due."""


def keep_house(store: FolderStore) -> None:
    """Pack one day after the other, as the daemon's housekeeping does on a thread of its own."""
    for day in itertools.cycle(DAYS):
        due.acquire()
        store.release()
        say("+roll_over")
        with contextlib.suppress(StoreError):  # put off, as housekeeping does
            roll_over(store, day)
        say("-roll_over")


def main(folder: Path, first: int, mode: str) -> None:
    if mode == "feed":
        with_store = FolderStore(folder / "store")
        after = with_store.reached()
        with_store.close()
        feed(Journal(folder / "journal", segment_bytes=SEGMENT_BYTES, after=after, disk=TellingDisk()), first)
    say("+replay")
    store = TellingStore(folder / "store")
    journal = Journal(folder / "journal", segment_bytes=SEGMENT_BYTES, after=store.reached(), disk=TellingDisk())
    writer = Writer(journal, store, decode, max_records=RECORDS_A_BATCH)
    writer.drain_now()
    say("-replay")
    threading.Thread(target=keep_house, args=(store,), daemon=True).start()
    writer.start()
    feed(journal, first, MOST_UNDRAINED_BYTES)


def feed(journal: Journal, number: int, most_bytes: float = math.inf) -> None:
    """Append and acknowledge for ever; wait while more than `most_bytes` are not in the store, so that it gets its turn."""
    while True:
        while journal.bytes > most_bytes:
            time.sleep(0.001)
        now = time.time_ns() // 1000
        futures = [(n, journal.append(Signal.TRACES, now, b"%d" % n)) for n in range(number, number + GROUP)]
        number += GROUP
        for n, future in futures:
            future.result()
            say(str(n))


def end(died: threading.ExceptHookArgs) -> None:
    """A thread that dies ends the process, which then was not killed: the hunt tells of it."""
    threading.__excepthook__(died)
    os._exit(3)


if __name__ == "__main__":
    threading.excepthook = end
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
