"""`lensd sql`: one SELECT of your own over the public tables."""

import csv
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lensd.cli import options as o
from lensd.cli.table import Columns, print_table

if TYPE_CHECKING:
    from lensd.api.items import SqlAnswer

SqlFormat = StrEnum("SqlFormat", ["table", "json", "csv"])


def register(app: typer.Typer) -> None:
    app.command("sql", help="Run one SELECT over the public tables, which docs/schema.md lists.")(sql)


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help='Such as "select outcome, count(*) from requests group by all".')],
    form: Annotated[SqlFormat, typer.Option("--format", help="How to print the rows.")] = SqlFormat.table,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="At most this many rows, up to 10,000.")] = 1000,
    json_flag: o.JsonFlag = False,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    with o.open_reader(o.load_config(config), server, store) as reader:
        answer: SqlAnswer = reader.sql(query, limit)
    if json_flag or form.value == "json":
        o.print_json(answer)
        return 0
    if form.value == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(column.name for column in answer.columns)
        writer.writerows(answer.items)
    else:
        print_table(answer.items, _columns(answer), empty="no rows")
    if answer.more:
        print(f"lensd: these are the first {len(answer.items)} rows; --limit shows more, up to 10,000", file=sys.stderr)
    return 0


def _columns(answer: "SqlAnswer") -> Columns:
    def value(place: int) -> Callable[[Any], Any]:
        return lambda row: row[place]

    named: Columns = {}
    for place, column in enumerate(answer.columns):
        name = column.name if column.name not in named else f"{column.name} ({place + 1})"
        named = {**named, name: value(place)}
    return named
