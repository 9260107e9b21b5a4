"""Every quote stands in the file at the line it names, for every finding of every incident there is here."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from incidents import NAMED
from look_alikes import UNNAMED
from triage_folder import run, write

from lensd.records import Diagnosis

TESTS = Path(__file__).parents[1]
CORPUS = sorted(path.parent for path in (TESTS / "corpus").glob("*/case.json"))
CAPTURES = TESTS / "captures" / "vllm-0.32.0"
OWN = {incident.name: incident.files for incident in (*NAMED, *UNNAMED)}


def misplaced(found: Diagnosis, root: Path) -> Iterator[str]:
    for finding in found.findings:
        for line in finding.evidence:
            if line.quote is None:
                continue
            name, _, number = (line.source or "").rpartition(":")
            lines = (root / name).read_bytes().decode("utf-8", "replace").split("\n")
            at = "\n".join(lines[int(number) - 1 :]).find(line.quote)
            if not line.quote or len(line.quote) > 500 or not 0 <= at <= len(lines[int(number) - 1]):
                yield f"{finding.label}: {line.quote!r} is not at {line.source}"


def quoted(found: Diagnosis) -> int:
    return sum(1 for finding in found.findings for line in finding.evidence if line.quote)


@pytest.mark.parametrize("case", CORPUS, ids=lambda path: path.name)
def test_quotes_of_the_corpus(case: Path, tmp_path: Path) -> None:
    shutil.copytree(case, tmp_path / "f", ignore=shutil.ignore_patterns("case.json"))
    found = run(tmp_path / "f")
    assert list(misplaced(found, tmp_path / "f")) == []
    assert not found.findings or quoted(found)


@pytest.mark.parametrize("name", OWN)
def test_quotes_of_our_own_incidents(name: str, tmp_path: Path) -> None:
    found = run(write(tmp_path, OWN[name]))
    assert list(misplaced(found, tmp_path)) == []
    assert not found.findings or quoted(found)


@pytest.mark.parametrize("name", OWN)
def test_quotes_of_files_with_odd_names_and_line_ends(name: str, tmp_path: Path) -> None:
    """The same incident written under Windows, under names with spaces, in a folder below another."""
    odd = {
        f"Bündel (2)/ü {number}: {file.replace('/', ' ')}": text.replace("\n", "\r\n")
        for number, (file, text) in enumerate(OWN[name].items())
    }
    root = tmp_path / "f"
    for file, text in odd.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    found = run(root)
    assert list(misplaced(found, root)) == []
    plain = run(write(tmp_path / "g", OWN[name]))
    assert (found.verdict.label, found.verdict.stage, quoted(found)) == (plain.verdict.label, plain.verdict.stage, quoted(plain))


@pytest.mark.parametrize(
    "names", [("killworker-nonstream.json", "killworker-raw-stream.bin", "killworker-server-log.txt"), ("kill9-server-log.txt",)]
)
def test_quotes_of_a_real_death(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        shutil.copyfile(CAPTURES / name, tmp_path / name)
    found = run(tmp_path)
    assert found.verdict.label == "engine-crash"
    assert list(misplaced(found, tmp_path)) == []
    assert quoted(found) > 0
