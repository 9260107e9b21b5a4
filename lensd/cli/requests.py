"""`lensd requests ls`: what came through, newest first."""

from typing import Annotated

import typer

from lensd.cli import options as o
from lensd.cli.table import print_table


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Requests as they were seen.")
    group.command("ls", help="List requests, newest first.")(ls)
    app.add_typer(group, name="requests")


def ls(
    key: Annotated[str | None, typer.Option("--key", help="Of this key id.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Of this model.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="On this engine.")] = None,
    status: Annotated[int | None, typer.Option("--status", help="Answered with this HTTP status.")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="ok, refused, failed, timed_out, caller_gone, cut, open, lost.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Started after: 2026-01-31T09:00, 09:00 or 15m.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Started before.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="At most this many.")] = 50,
    json_flag: o.JsonFlag = False,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    with o.open_reader(o.load_config(config), server, store) as reader:
        items = reader.requests(
            key=key, model=model, engine=engine, status=status, outcome=outcome, since=o.instant(since), until=o.instant(until), limit=limit
        ).items
    columns = ("started_at", "request_id", "model", "key_id", "outcome", "status", "total_ms", "ttft_ms", "label")
    print_table(items, columns, as_json=json_flag, empty="no requests yet")
    return 0
