"""What DuckDB's checkpoint of this version writes, and when: the grounds that the undo record stands on (docs/adr/022)."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from watched import HERE, Change, changes, environ, library

from lensd.store.undo import BLOCK_BYTES, HEADER_BYTES, HEADERS_BYTES

FILE, RECORD, LOG = "made.duckdb", "made.duckdb.undo", "made.duckdb.wal"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_checkpoint_writes_over_headers_and_metadata_only(seed: int, is_long: bool, tmp_path: Path) -> None:
    if seed and not is_long:
        pytest.skip("takes long: make test-durability")
    watched, log = tmp_path / "watched", tmp_path / "log"
    watched.mkdir()
    command = [sys.executable, str(HERE / "checkpointed.py"), str(watched), str(seed)]
    done = subprocess.run(
        command, env=environ(library(tmp_path), watched, WATCHED_LOG=str(log)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = _Seen()
    for change in changes(log):
        seen.take(change)
    assert seen.counts["checkpoints"] > 20
    assert seen.counts["metadata written over"] > 10, "otherwise there would be nothing to undo"
    assert seen.counts["blocks written between checkpoints"] > 0, "large inserts write into free blocks at once"


class _Seen:
    """Follows the changes of one file and holds each against what its tables and its metadata lay in before."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._tables: set[int] = set()
        self._metadata: set[int] = set()
        self._size = 0
        self._has_record = False
        self._is_over: bool | None = None  # of the checkpoint under way: its header is written, and then on the disk

    def take(self, change: Change) -> None:
        if change.path.startswith("used/") and change.kind == "w":
            found = json.loads(change.data)
            self._tables, self._metadata = set(found["tables"]), set(found["metadata"])
        elif change.path == RECORD:
            self._record(change)
        elif change.path == FILE:
            self._file(change)
        elif change.path == LOG and change.kind in "rn":
            assert self._is_over, "a log goes when the header that makes it needless is on the disk"

    def _record(self, change: Change) -> None:
        if change.kind == "c":
            self._has_record, self._is_over = True, None
        elif change.kind == "r" and self._has_record:
            assert self._is_over
            self._has_record = False
            self.counts["checkpoints"] += 1

    def _file(self, change: Change) -> None:
        if change.kind == "s" and self._is_over is False:
            self._is_over = True
        elif change.kind == "t":
            assert self._is_over, "the file is cut when the header is on the disk"
        elif change.kind == "w" and change.offset >= HEADERS_BYTES:
            assert self._is_over is None or not self._has_record, "blocks come before the header"
            self._block((change.offset - HEADERS_BYTES) // BLOCK_BYTES)
        elif change.kind == "w" and self._size >= HEADERS_BYTES:  # not the making of the file
            assert self._has_record
            assert change.offset in (HEADER_BYTES, 2 * HEADER_BYTES)
            self._is_over = False
        self._size = max(self._size, change.offset + len(change.data))

    def _block(self, block: int) -> None:
        assert block not in self._tables, "the file's tables lie in this block"
        if block in self._metadata:
            assert self._has_record
            self.counts["metadata written over"] += 1
        elif not self._has_record:
            self.counts["blocks written between checkpoints"] += 1
