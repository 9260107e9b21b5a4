"""A kill inside any change that a store makes to its files, after any part of a write: what it had before is there, and there once."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torn import LIVES, ROWS
from watched import HERE, environ, library

SHORT_FORM = 7  # of so many changes one is tried


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
def test_a_torn_change_loses_and_doubles_nothing(
    life: str, is_long: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    command = [sys.executable, str(HERE / "torn.py"), str(tmp_path), life, str(1 if is_long else SHORT_FORM)]
    done = subprocess.run(command, env=environ(library(tmp_path), tmp_path / "watched"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    in_files = [kill for kill in kills if kill["path"].endswith((".duckdb", ".undo"))]
    record_property("figures", f"{life}: {len(kills)} kills inside a change, {len(in_files)} of them of a database file or its undo record")
    assert {kill["status"] for kill in kills} == {-9}
    assert [kill for kill in kills if not is_right(kill["found"])] == [], done.stderr[-1000:]
    assert in_files


def is_right(found: dict[str, Any] | None) -> bool:
    """Everything that was acknowledged, each row once; what was under way may be there as a whole."""
    return (
        found is not None
        and not found["left_out"]
        and found["rows"] == found["names"]
        and found["rows"] in (found["said"], found["said"] + ROWS)
    )
