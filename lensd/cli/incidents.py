"""`lensd incidents ls|show|ack|close`: what is wrong now, and what was."""

from typing import Annotated

import typer

from lensd.cli import options as o
from lensd.cli.table import print_table

Id = Annotated[str, typer.Argument(help="Incident id, as `lensd incidents ls` prints it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Incidents: causes that stand on an engine, model, GPU or key.")
    group.command("ls", help="List incidents, open ones first.")(ls)
    group.command("show", help="Show one incident.")(show)
    group.command("ack", help="Say that somebody works on it.")(ack)
    group.command("close", help="Close it by hand.")(close)
    app.add_typer(group, name="incidents")


def ls(
    state: Annotated[str | None, typer.Option("--state", help="open, acknowledged or resolved.")] = None,
    json_flag: o.JsonFlag = False,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    with o.open_reader(o.load_config(config), server, store) as reader:
        items = reader.incidents(state)
    columns = ("incident_id", "state", "severity", "label", "engine", "model", "requests_hit", "opened_at", "resolved_at")
    print_table(items, columns, as_json=json_flag, empty="no incidents")
    return 0


def show(ident: Id, json_flag: o.JsonFlag = False, server: o.Server = None, store: o.StorePath = None, config: o.ConfigPath = None) -> int:
    with o.open_reader(o.load_config(config), server, store) as reader:
        incident = reader.incident(ident)
    if json_flag:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(incident), indent=2).decode())
        return 0
    print(f"{incident.label}  {incident.state}, {incident.severity}, {incident.confidence}")
    print(incident.cause)
    print(f"fix: {incident.fix}\n")
    print(f"on {incident.engine or incident.model or incident.key_id or 'the whole system'}, {incident.requests_hit} requests hit")
    for evidence in incident.evidence:
        print(f"  - {evidence.text}")
    for request in incident.typical_requests:
        print(f"  lensd diagnose {request}")
    return 0


def ack(ident: Id, server: o.Server = None, config: o.ConfigPath = None) -> int:
    with o.open_reader(o.load_config(config), server) as reader:
        print(f"{ident} is {reader.ack(ident).state}")
    return 0


def close(ident: Id, server: o.Server = None, config: o.ConfigPath = None) -> int:
    with o.open_reader(o.load_config(config), server) as reader:
        print(f"{ident} is {reader.close(ident).state}")
    return 0
