"""Which calls of `lensd diagnose` are read without typer, and that both ways of reading one mean the same."""

import pytest
import typer

from lensd.cli import diagnose, plain
from lensd.cli.reading import FailOn, Format
from lensd.cli.verdict import Asked

PLAIN = [
    ("r1", Asked(ident="r1")),
    ("r1 --json", Asked(ident="r1", form=Format.JSON)),
    ("--format md r1", Asked(ident="r1", form=Format.MD)),
    ("r1 --format=text -q", Asked(ident="r1", quiet=True)),
    ("r1 --quiet --fail-on critical --wait 0", Asked(ident="r1", quiet=True, fail_on=FailOn.CRITICAL, wait="0")),
    ("--last --wait=2.5s", Asked(wait="2.5s")),
    ("r1 --server http://h:1 --config a.toml --store s", Asked(ident="r1", server="http://h:1", config="a.toml", store="s")),
]


@pytest.fixture(autouse=True)
def no_url(monkeypatch):
    monkeypatch.delenv("LENSD_URL", raising=False)


@pytest.mark.parametrize(("words", "asked"), PLAIN)
def test_a_plain_call_means_what_typer_reads(monkeypatch, words, asked):
    read = []
    monkeypatch.setattr(diagnose, "ask", lambda given: read.append(given) or 0)
    app = typer.Typer()
    diagnose.register(app)
    typer.main.get_command(app).main(args=words.split(), standalone_mode=False)
    assert plain.diagnose(["diagnose", *words.split()]) == asked
    [by_typer] = read
    assert by_typer.filters == {"key": None, "model": None, "status": None, "at": None, "since": None}
    assert {name: getattr(by_typer, name) for name in Asked.__struct_fields__ if name != "filters"} == {
        name: getattr(asked, name) for name in Asked.__struct_fields__ if name != "filters"
    }


@pytest.mark.parametrize(
    "words",
    ["", "r1 r2", "r1 --last", "--help", "r1 --wait x", "r1 --wait 31", "r1 --wait", "r1 --format xml", "r1 --fail-on bad",
     "--last --model m",
     "r1 --folder f", "r1 -- x", "--json=1 r1", "r1 --wait 1 --wait 2", "r1 --server --json", "r1 --serve x"],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_typer(words):
    assert plain.diagnose(["diagnose", *words.split()]) is None


def test_the_daemon_may_be_named_by_the_environment(monkeypatch):
    monkeypatch.setenv("LENSD_URL", "http://h:2")
    assert plain.diagnose(["diagnose", "r1"]) == Asked(ident="r1", server="http://h:2")
    assert plain.diagnose(["diagnose", "r1", "--server", "http://h:3"]) == Asked(ident="r1", server="http://h:3")
