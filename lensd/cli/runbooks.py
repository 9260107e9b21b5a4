"""`lensd runbooks ls|show|check|test|new`: what can be named, and whether the rules hold."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lensd.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lensd.diagnosis.runbook import Runbook


class Scope(StrEnum):
    REQUEST = "request"
    WINDOW = "window"


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Runbooks: rule, evidence and guide of each cause.")
    group.command("ls", help="List the causes lensd can name.")(ls)
    group.command("show", help="Print one runbook.")(show)
    group.command("check", help="Find what is wrong in the runbooks, with file and line.")(check)
    group.command("test", help="Run every runbook's cases.")(run_cases)
    group.command("new", help="Write the two files of a runbook of your own, to be filled in.")(new)
    app.add_typer(group, name="runbooks")


def ls(folder: o.RunbookFolder = None, config: o.ConfigPath = None, json_flag: o.JsonFlag = False) -> int:
    from lensd.cli.table import print_table

    books = sorted(_load(folder, config).values(), key=lambda b: b.id)
    rungs = _rungs(books)
    plain = ("id", "label", "kind", "severity", "stage", "scope", "status", "title")
    if json_flag:
        items = [{name: getattr(book, name) for name in plain} | {"live": book.live, "rung": rungs[book.id]} for book in books]
        o.print_json({"items": items, "next": None})
        return 0
    columns: dict[str, Any] = {name: name for name in plain if name not in ("label", "title")}
    columns |= {"live": lambda b: "yes" if b.live else "files only", "rung": lambda b: rungs[b.id] or "-", "title": "title"}
    print_table(books, columns, empty="no runbooks")
    return 0


def _rungs(books: "Iterable[Runbook]") -> dict[str, str | None]:
    """The rung of attaching from which on each can be told live, as `docs/coverage.md` says it."""
    from lensd import rungs

    needs = {book.id: rungs.Claim(book.needs, book.needs_any, book.live, book.rung) for book in books}
    return {name: rungs.first_in_words(name, needs) or None for name in needs}


def show(
    ident: Annotated[str, typer.Argument(metavar="ID", help="Id of the runbook.")],
    json_flag: o.JsonFlag = False,
    folder: o.RunbookFolder = None,
    config: o.ConfigPath = None,
) -> int:
    import difflib

    import msgspec

    from lensd.errors import UsageError

    books = _load(folder, config)
    if ident not in books:
        near = difflib.get_close_matches(ident, books, 1)
        raise UsageError(f"no runbook {ident}" + (f"; did you mean {near[0]}?" if near else "; `lensd runbooks ls` lists them"))
    book = books[ident]
    rung = _rungs(books.values())[ident]
    if json_flag:
        params = {name: _said(value) for name, value in book.params.items()}
        o.print_json({**msgspec.to_builtins(msgspec.structs.replace(book, params={})), "params": params, "claimed_from": rung})
        return 0
    print(f"# {book.title}\n\n{book.id}: {book.kind}, {book.severity}, stage {book.stage}\nfix: {book.fix}")
    needs = [*book.needs, *([" or ".join(" with ".join(group) for group in book.needs_any)] if book.needs_any else [])]
    print(f"needs: {' and '.join(needs) or 'nothing'}")
    print(f"live: {f'from rung {rung} on' if rung else 'no, files alone tell it'}{f' ({book.rung_because})' if book.rung_because else ''}")
    for name, value in book.params.items():
        print(f"param {name}: {_said(value)}")
    for line in book.evidence:
        print(f"evidence: {line}")
    for name, text in book.sections.items():
        print(f"\n## {name}\n{text.strip()}")
    return 0


def _said(value: object) -> object:
    """A param as people write it."""
    from datetime import timedelta

    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        unit, size = next((u, n) for u, n in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)) if seconds % n == 0 or u == "s")
        return f"{seconds / size:g}{unit}"
    return value


def new(
    ident: Annotated[str, typer.Argument(metavar="ID", help="The label it gives; LABEL@window for the same label seen without requests.")],
    scope: Annotated[
        Scope | None, typer.Option("--scope", help="What it judges.", show_default="window for LABEL@window, else request")
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option("--folder", metavar="FOLDER", help="Where to write it.", show_default="the first of runbooks.folders in lensd.toml"),
    ] = None,
    config: o.ConfigPath = None,
) -> int:
    from pathlib import Path

    from lensd.diagnosis.skeleton import write
    from lensd.errors import UsageError

    place = folder or next(iter(o.load_config(config).runbooks.folders), None)
    if place is None:
        raise UsageError("no folder of your own: give --folder, or name one as runbooks.folders in lensd.toml")
    chosen = scope or (Scope.WINDOW if ident.endswith("@window") else Scope.REQUEST)
    for path in write(ident, chosen.value, Path(place).expanduser()):
        print(path)
    print(f"fill them in, then: lensd runbooks check --folder {place} && lensd runbooks test --folder {place}")
    return 0


def check(folder: o.RunbookFolder = None, config: o.ConfigPath = None) -> int:
    from lensd.diagnosis.check import check_folders

    problems = check_folders(_folders(folder, config))
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problem(s)")
    return 2 if problems else 0


def run_cases(folder: o.RunbookFolder = None, config: o.ConfigPath = None) -> int:
    from lensd.diagnosis.cases import run_folders

    results = run_folders(_folders(folder, config))
    failed = [r for r in results if not r.ok]
    for result in failed:
        print(f"{result.runbook}: {result.case}: {result.why}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _folders(folder: list[str] | None, config: str | None) -> list[str]:
    return [*o.load_config(config).runbooks.folders, *(folder or ())]


def _load(folder: list[str] | None, config: str | None) -> "Mapping[str, Runbook]":
    from lensd.diagnosis.runbook import load

    return load(_folders(folder, config))
