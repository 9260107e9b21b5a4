"""A new runbook holds its own check and cases as it is written, and the page on the format names every key."""

from pathlib import Path

import pytest
from checkout import ROOT

from lensd.cli.main import run
from lensd.diagnosis.cases import cases_path, load_cases, run_case
from lensd.diagnosis.check import check
from lensd.diagnosis.runbook import HEADINGS, Front, parse
from lensd.diagnosis.skeleton import write
from lensd.errors import RunbookError
from lensd.store.memory import MemoryStore


@pytest.mark.parametrize(("ident", "scope"), [("slow-disk", "request"), ("slow-disk", "window"), ("slow-disk@window", "window")])
def test_a_skeleton_passes_its_check_and_its_cases(ident: str, scope: str, tmp_path: Path) -> None:
    page, _ = write(ident, scope, tmp_path)
    store = MemoryStore(memory_limit="256MiB")
    with store.cursor() as cursor:
        assert [str(problem) for problem in check([page], cursor)] == []
    store.close()
    book = parse(page)
    assert (book.label, book.scope) == ("slow-disk", scope)
    assert [run_case(book, case).why for case in load_cases(cases_path(page))] == ["", "", ""]


@pytest.mark.parametrize("ident", ["Slow", "slow_disk", "../x", "slow-", "x@y", ""])
def test_an_id_that_is_none(ident: str, tmp_path: Path) -> None:
    with pytest.raises(RunbookError, match="is no id: write small letters, digits and hyphens"):
        write(ident, "window", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    write("slow-disk", "window", tmp_path)
    with pytest.raises(RunbookError, match=r"slow-disk.md is there already"):
        write("slow-disk", "window", tmp_path)
    with pytest.raises(RunbookError, match="does not exist; create it"):
        write("slow-disk", "window", tmp_path / "none")


def test_the_verb_writes_into_the_first_folder_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "lensd.toml").write_text(f'[runbooks]\nfolders = ["{tmp_path / "mine"}"]\n')
    assert run(["runbooks", "new", "slow-disk@window", "--config", str(tmp_path / "lensd.toml")]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path / 'mine'}/slow-disk@window.md" in said
    assert f"lensd runbooks check --folder {tmp_path / 'mine'}" in said
    assert run(["runbooks", "show", "slow-disk@window", "--config", str(tmp_path / "lensd.toml")]) == 0
    said = capsys.readouterr().out
    assert "needs: engine_samples.waiting" in said
    assert "param most_waiting: 100" in said
    assert "evidence: {waiting:.0f} requests waiting" in said
    assert "live: from rung 0 on" in said
    (tmp_path / "empty.toml").write_text("")
    assert run(["runbooks", "new", "slow-disk", "--config", str(tmp_path / "empty.toml")]) == 2
    assert "no folder of your own: give --folder" in capsys.readouterr().err


def test_the_page_on_the_format_names_every_key_and_heading() -> None:
    page = (ROOT / "docs" / "writing-runbooks.md").read_text()
    assert [name for name in Front.__struct_fields__ if f"| `{name}` |" not in page] == []
    assert [heading for heading in HEADINGS if f"`## {heading}`" not in page] == []
