"""`lensd runbooks ls|show|check|test`: what can be named, and whether the rules hold."""

from typing import TYPE_CHECKING, Annotated

import typer

from lensd.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lensd.diagnosis.runbook import Runbook

Folder = Annotated[list[str] | None, typer.Option("--folder", metavar="FOLDER", help="A folder of runbooks of your own; repeatable.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Runbooks: rule, evidence and guide of each cause.")
    group.command("ls", help="List the causes lensd can name.")(ls)
    group.command("show", help="Print one runbook.")(show)
    group.command("check", help="Find what is wrong in the runbooks, with file and line.")(check)
    group.command("test", help="Run every runbook's cases.")(run_cases)
    app.add_typer(group, name="runbooks")


def ls(folder: Folder = None, config: o.ConfigPath = None, json_flag: o.JsonFlag = False) -> int:
    from lensd.cli.table import print_table

    books = sorted(_load(folder, config).values(), key=lambda b: b.id)
    columns = ("id", "label", "kind", "severity", "stage", "scope", "status", "title")
    if json_flag:
        o.print_json({"items": [{name: getattr(book, name) for name in columns} for book in books], "next": None})
        return 0
    print_table(books, {name: name for name in columns if name != "label"}, empty="no runbooks")
    return 0


def show(
    ident: Annotated[str, typer.Argument(metavar="ID", help="Id of the runbook.")],
    folder: Folder = None,
    config: o.ConfigPath = None,
) -> int:
    import difflib

    from lensd.errors import UsageError

    books = _load(folder, config)
    if ident not in books:
        near = difflib.get_close_matches(ident, books, 1)
        raise UsageError(f"no runbook {ident}" + (f"; did you mean {near[0]}?" if near else "; `lensd runbooks ls` lists them"))
    book = books[ident]
    print(f"# {book.title}\n\n{book.id}: {book.kind}, {book.severity}, stage {book.stage}\nfix: {book.fix}")
    for name, text in book.sections.items():
        print(f"\n## {name}\n{text.strip()}")
    return 0


def check(folder: Folder = None, config: o.ConfigPath = None) -> int:
    from lensd.diagnosis.check import check_folders

    problems = check_folders(_folders(folder, config))
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problem(s)")
    return 2 if problems else 0


def run_cases(folder: Folder = None, config: o.ConfigPath = None) -> int:
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
