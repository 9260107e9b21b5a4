"""`lensd incidents ls|show|ack|close`: what is wrong now, and what was."""

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from lensd.cli import options as o
from lensd.cli.table import Columns, clock, print_table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lensd.api.client import Client
    from lensd.records import Incident, PostMortem

Id = Annotated[str, typer.Argument(metavar="ID", help="Incident id, as `lensd incidents ls` prints it.")]
State = StrEnum("State", ["open", "acknowledged", "resolved"])


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Incidents: causes that stand on an engine, model, GPU or key.")
    group.command("ls", help="List incidents: those that still stand first, then the newest.")(ls)
    group.command("show", help="Show one incident.")(show)
    group.command("ack", help="Say that somebody works on it.")(ack)
    group.command("close", help="Close it by hand.")(close)
    app.add_typer(group, name="incidents")


def ls(
    state: Annotated[State | None, typer.Option("--state", help="In this state.")] = None,
    json_flag: o.JsonFlag = False,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    with o.open_reader(o.load_config(config), server, store) as reader:
        items = reader.incidents(state.value if state is not None else None)
    if json_flag:
        o.print_json({"items": items, "next": None})
        return 0
    shown: Columns = {
        "incident": "incident_id",
        "state": "state",
        "severity": "severity",
        "label": "label",
        "on": _subject,
        "requests": "requests_hit",
        "opened (UTC)": lambda i: clock(i.opened_at),
        "resolved (UTC)": lambda i: clock(i.resolved_at),
    }
    print_table(items, shown, empty="no incidents" if state is None else f"no incidents that are {state}")
    return 0


def show(ident: Id, json_flag: o.JsonFlag = False, server: o.Server = None, store: o.StorePath = None, config: o.ConfigPath = None) -> int:
    with o.open_reader(o.load_config(config), server, store) as reader:
        incident = reader.incident(ident)
        memory = _post_mortem(reader, ident)
    if json_flag:
        o.print_json(msgspec.to_builtins(incident) | ({"post_mortem": memory} if memory is not None else {}))
        return 0
    print(f"{incident.label}  {incident.severity}, {incident.confidence}, {incident.state}")
    print(incident.cause)
    print(f"fix: {incident.fix}\n")
    ended = incident.resolved_at
    until = f"last seen {clock(incident.last_seen_at)}" if ended is None else f"resolved {clock(ended)}"
    print(f"on {_subject(incident)}, {incident.requests_hit} request{'' if incident.requests_hit == 1 else 's'} hit")
    print(f"since {clock(incident.opened_at)}, {until} (UTC)")
    if incident.evidence:
        print("\nevidence")
    for evidence in incident.evidence:
        print(f"  - {evidence.text}")
    if memory is not None:
        from lensd.memory.post_mortem import post_mortem_lines

        print("\nout of memory")
        for line in post_mortem_lines(memory):
            print(f"  {line}")
    if incident.typical_requests:
        print("\nlook at")
    for request in incident.typical_requests:
        print(f"  lensd diagnose {request}")
    return 0


def _post_mortem(reader: Any, ident: str) -> "PostMortem | None":
    """None for an incident that is no out-of-memory."""
    from lensd.errors import EvidenceError

    with suppress(EvidenceError):
        return cast("PostMortem", reader.post_mortem(ident))
    return None


def ack(ident: Id, json_flag: o.JsonFlag = False, server: o.Server = None, config: o.ConfigPath = None) -> int:
    with _daemon(server, config) as daemon:
        return _told(daemon.ack(ident), json_flag)


def close(ident: Id, json_flag: o.JsonFlag = False, server: o.Server = None, config: o.ConfigPath = None) -> int:
    with _daemon(server, config) as daemon:
        return _told(daemon.close(ident), json_flag)


def _daemon(server: str | None, config: str | None) -> "AbstractContextManager[Client]":
    """Only a running daemon can change an incident."""
    from lensd.api.reader import open_daemon

    return open_daemon(o.load_config(config), server)


def _told(incident: "Incident", json_flag: bool) -> int:
    if json_flag:
        o.print_json(incident)
    else:
        print(f"{incident.incident_id} is {incident.state}")
    return 0


def _subject(incident: "Incident") -> str:
    named = (("engine", incident.engine), ("model", incident.model), ("gpu", incident.gpu), ("key", incident.key_id))
    return ", ".join(f"{kind} {name}" for kind, name in named if name) or "the whole system"
