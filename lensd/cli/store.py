"""`lensd store check|compact|export|restore`: the store's own files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lensd.cli import options as o
from lensd.cli.progress import progress

if TYPE_CHECKING:
    from lensd.config import Config
    from lensd.store.backups import Backup

FOUND = 3

Folder = Annotated[str | None, typer.Option("--store", metavar="FOLDER", help="The store's folder.", show_default="from lensd.toml")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The store's files: read them through, make them smaller, take data out, go back.")
    group.command(
        "check",
        short_help="Read everything and say what is damaged.",
        help="Read every file, the journal and every view; a line each, what is damaged and what of it can be saved. Changes nothing. "
        "Exits with 3 where something is damaged. While the daemon runs it alone can open the files: stop it first.",
    )(check)
    group.command(
        "compact",
        short_help="Make the files smaller.",
        help="Pack every day before today's and say what that saved. The daemon does this by itself once a day is over; stop it first.",
    )(compact)
    group.command(
        "export",
        short_help="Write the tables as Parquet files.",
        help="Write one Parquet file a table into a new folder, also of what the journal holds and the files do not yet. "
        "While the daemon runs it alone can open the files: stop it first.",
    )(export)
    group.command(
        "restore",
        short_help="List the backups, or put one back.",
        help="Without BACKUP list what migrations have kept; with it put that back. What is there now becomes a backup itself. "
        "Stop the daemon first.",
    )(restore)
    app.add_typer(group, name="store")


def check(json_flag: o.JsonFlag = False, store: Folder = None, config: o.ConfigPath = None) -> int:
    from lensd.store.check import check as check_store
    from lensd.store.check import lines

    with progress() as tell:
        found = check_store(_folder(config, store), tell)
    if json_flag:
        o.print_json(found)
    else:
        print("\n".join(map(_plain, lines(found))))
    return 0 if found.is_sound else FOUND


def compact(json_flag: o.JsonFlag = False, store: Folder = None, config: o.ConfigPath = None) -> int:
    from lensd.store.compact import compact as compact_store

    with progress() as tell:
        done = compact_store(_folder(config, store), tell=tell)
    if json_flag:
        o.print_json(done)
    else:
        for day in done.packed:
            print(f"packed {day}")
        print(f"{_size(done.bytes_before)} before, {_size(done.bytes_after)} after")
    return 0


def export(
    parquet: Annotated[Path, typer.Option("--parquet", metavar="DIR", help="A folder that is empty or not there yet.")],
    table: Annotated[list[str] | None, typer.Option("--table", metavar="TABLE", help="Only this table; repeatable.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From this instant on: 15m, 09:00, 2026-01-31T09:00.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to this instant.")] = None,
    json_flag: o.JsonFlag = False,
    store: Folder = None,
    config: o.ConfigPath = None,
) -> int:
    from lensd.api.local import LocalReader
    from lensd.store.export import Span, prepare

    loaded, span = o.load_config(config), Span(o.instant(since), o.instant(until))
    reader = LocalReader.open(_folder_of(loaded, store), loaded)
    try:
        tables = prepare(parquet, tuple(table or ()))
        with progress() as tell:
            written = list(reader.export(parquet, tables, span, lambda name, rows: tell(f"{name}: {rows} rows")))
    finally:
        reader.shut()
    if json_flag:
        o.print_json({"schema_version": 1, "folder": str(parquet), "tables": [each._asdict() for each in written]})
        return 0
    for each in written:
        print(f"{parquet / each.file}: {each.rows} rows, {_size(each.bytes)}")
    return 0


def restore(
    backup: Annotated[str | None, typer.Argument(metavar="BACKUP", help="A name that the list gives.")] = None,
    json_flag: o.JsonFlag = False,
    store: Folder = None,
    config: o.ConfigPath = None,
) -> int:
    from lensd.store import backups

    folder = _folder(config, store)
    if backup is None:
        found = backups.backups(folder)
        if json_flag:
            o.print_json({"items": found, "next": None})
        else:
            _list(found)
        return 0
    kept = backups.restore(folder, backup)
    if json_flag:
        o.print_json({"schema_version": 1, "restored": backup, "kept": kept})
    else:
        print(f"{backup} is back; what was there is kept as {kept}")
    return 0


def _list(found: "list[Backup]") -> None:
    from lensd.cli.table import Columns, print_table

    shown: Columns = {"backup": "name", "schema": "schema_version", "made (UTC)": "made_at", "size": lambda backup: _size(backup.bytes)}
    print_table(found, shown, empty="no backups: a migration makes them")


def _folder(config: str | None, store: str | None) -> Path:
    return _folder_of(o.load_config(config), store)


def _folder_of(config: "Config", store: str | None) -> Path:
    from lensd.config import expanded

    return expanded("--store", store) if store is not None else config.store_folder


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _plain(line: str) -> str:
    return "".join(ch if ch.isprintable() else "?" for ch in line)
