"""The reference pages say what the code says, and what the map names exists."""

import re
import shutil
from enum import EnumType, StrEnum
from pathlib import Path

import pytest
from checkout import ROOT, load_by_path
from lensd_collectors import conventions
from lensd_collectors.rows import TABLES

docs = load_by_path("tools_docs", ROOT / "tools" / "docs.py")


def test_no_page_is_stale() -> None:
    assert docs.stale(ROOT) == []


def test_a_stale_page_is_named(tmp_path: Path) -> None:
    for source in {docs.CONVENTIONS, docs.GATEWAY_METRICS, docs.SCHEMA, docs.RUNGS, *(path for _, path, _ in docs.STRUCTS)}:
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / source).write_text((ROOT / source).read_text())
    shutil.copytree(ROOT / "runbooks", tmp_path / "runbooks")
    (tmp_path / "docs").mkdir()
    for path, text in docs.pages(tmp_path).items():
        path.write_text(text)
    assert docs.stale(tmp_path) == []
    (tmp_path / docs.SCHEMA).write_text((ROOT / docs.SCHEMA).read_text().replace("revision BIGINT", "revision UINTEGER"))
    assert docs.stale(tmp_path) == ["docs/schema.md"]


def test_every_attribute_has_a_row_with_type_unit_and_meaning() -> None:
    page = (ROOT / "docs/conventions.md").read_text()
    assert len(conventions.ATTRIBUTES) > 40
    for name, attribute in conventions.ATTRIBUTES.items():
        assert docs.row(f"`{name}`", attribute.kind, attribute.unit, attribute.meaning) in page, name


def test_every_value_and_other_name_has_a_row() -> None:
    page = (ROOT / "docs/conventions.md").read_text()
    values = [value for enum in vars(conventions).values() if isinstance(enum, EnumType) and enum is not StrEnum for value in enum]
    names = [value for name, value in vars(conventions).items() if name.startswith(("SPAN_", "EVENT_", "METRIC_", "SCOPE_"))]
    assert len(values) > 30
    assert len(names) > 10
    for name in [*values, *names, *conventions.GPU_METRICS]:
        assert f"| `{name}` |" in page, name


def test_every_column_of_every_table_has_a_row() -> None:
    sections = re.split(r"^## ", (ROOT / "docs/schema.md").read_text(), flags=re.M)[1:]
    written = {section.split("\n", 1)[0]: re.findall(r"^\| `(\w+)` \|", section, re.M) for section in sections}
    assert written == {table: list(struct.__struct_fields__) for table, struct in TABLES.items()}


def named_paths(text: str) -> list[str]:
    """What a document's code spans name that looks like a place in this checkout."""
    places = "lensd|collectors|dashboards|runbooks|tests|tools|bench|docs|deploy|requirements"
    return re.findall(rf"`((?:{places})/[\w./-]*|Makefile|Dockerfile|[\w-]+\.(?:md|yml|toml)|\.ci/run)`", text)


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "README.md"])
def test_what_a_document_names_exists(document: str) -> None:
    made_later = {"lensd.toml", "keys.toml"}
    named = set(named_paths((ROOT / document).read_text())) - made_later
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_map_names_every_room() -> None:
    named = " ".join(named_paths((ROOT / "ARCHITECTURE.md").read_text()))
    rooms = [path for top in ("lensd", "collectors/lensd_collectors") for path in (ROOT / top).iterdir() if (path / "__init__.py").exists()]
    assert [str(room.relative_to(ROOT)) for room in rooms if str(room.relative_to(ROOT)) not in named] == []


def test_decisions_are_in_the_index() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    written = sorted(path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert re.findall(r"\((\d[\w-]*\.md)\)", index) == written
    for name in written:
        text = (ROOT / "docs/adr" / name).read_text()
        headings = re.findall(r"^## (.+)$", text, re.M)
        assert headings == ["Status", "Context", "Decision", "Consequences", "Alternatives"], name
