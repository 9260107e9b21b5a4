"""A log of several starts, and a folder of several problems: the verdict says of which it is, and the others are listed."""

from pathlib import Path

import incident_texts as t
import msgspec
from triage_folder import run, write

from lensd.records import Window
from lensd.report import as_json, as_markdown, as_text


def test_the_verdict_says_of_which_start_it_is(tmp_path: Path) -> None:
    first = [t.started("08:00:00"), t.ready(), t.stats("08:05:00", running=1, waiting=0)]
    last = [t.started("10:00:00"), t.ready(), t.stats("10:31:00", running=5, waiting=0), *t.TRACEBACK]
    write(tmp_path, {"engine.log": t.lines(*first, *last)})
    found = run(tmp_path)
    assert found.verdict.label == "engine-crash"
    assert isinstance(found.window, Window)
    assert (found.window.start, found.window.starts) == (2, 2)
    assert found.window.source is not None
    assert found.window.source.startswith(f"engine.log:{len(first) + 1}-")
    assert found.window.from_at is not None
    assert "this is of start 2 of 2, from " in as_text(found)
    assert "This is of start 2 of 2, from " in as_markdown(found)
    assert msgspec.json.decode(as_json(found))["window"]["start"] == 2


def test_the_same_problem_of_an_earlier_start_is_listed(tmp_path: Path) -> None:
    one = [t.started("08:00:00"), t.ready(), t.stats("08:31:00", running=5, waiting=0), *t.TRACEBACK]
    two = [t.started("10:00:00"), t.ready(), t.stats("10:31:00", running=5, waiting=0), *t.TRACEBACK]
    write(tmp_path, {"engine.log": t.lines(*one, *two)})
    found = run(tmp_path)
    assert found.verdict.label == "engine-crash"
    assert not isinstance(found.others, msgspec.UnsetType)
    told = {found.window.start} | {o.window.start for o in found.others if o.window and o.label == "engine-crash"}  # type: ignore[union-attr]
    assert told == {1, 2}
    assert "besides\n  engine-crash, start " in as_text(found)


def test_one_start_and_one_problem_need_no_window(tmp_path: Path) -> None:
    write(tmp_path, {"engine.log": t.lines(t.started("10:00:00"), t.ready(), t.stats("10:31:00", running=5, waiting=0), *t.TRACEBACK)})
    found = run(tmp_path)
    assert found.window is msgspec.UNSET
    assert found.others is msgspec.UNSET
    assert "this is of" not in as_text(found)
