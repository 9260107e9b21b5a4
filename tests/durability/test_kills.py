"""kill -9 inside every phase of a real process: what was acknowledged is there, and there once."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hunt import FOLDER_KILLS, PHASES, Folder, Hunt, hunt

SEED = 20261201
MOST_TRIES = 3  # kills that hit no phase are kills too, but do not count for one


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, kills: int, record_property: Callable[[str, object], None]) -> None:
    found = Hunt(random.Random(SEED))
    wanted = -(-kills // len(PHASES))
    folder = Folder(tmp_path / "0")
    for _ in range(MOST_TRIES * kills):
        left = [phase for phase in PHASES if found.kills[phase] < wanted]
        if not left:
            break
        if found.total and found.total % FOLDER_KILLS == 0:
            folder = Folder(tmp_path / str(found.total))
        hunt(found, folder, min(left, key=lambda phase: found.kills[phase]))
        assert (found.lost, found.doubled) == ([], []), found.figures()
    record_property("figures", found.figures())
    assert {phase: found.kills[phase] >= wanted for phase in PHASES} == dict.fromkeys(PHASES, True), found.figures()
    assert found.acknowledged > kills * 10
