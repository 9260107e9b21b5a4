"""`lensd diagnose`: the verdict on one request."""

import sys
from typing import Annotated, Any

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command("diagnose", help="Say in which stage a request's time or failure sits, why, on what evidence, and what to do.")(diagnose)


def diagnose(
    ident: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="X-Request-Id, the engine's id (chatcmpl-...), trace id, or a unique prefix.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest request that the filters below let through.")] = False,
    key: Annotated[str | None, typer.Option("--key", help="Of this key id.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Of this model.")] = None,
    status: Annotated[int | None, typer.Option("--status", help="Answered with this HTTP status.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Started at or before: 2026-01-31T09:00, 09:00 or 15m.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Started after.")] = None,
    wait: Annotated[
        str, typer.Option("--wait", help="Seconds to wait until the request has settled; auto: up to 12 at a terminal.")
    ] = "auto",
    json_flag: o.JsonFlag = False,
    form: o.FormatOption = o.Format.TEXT,
    quiet: o.Quiet = False,
    fail_on: o.FailOnOption = o.FailOn.WARNING,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    if (ident is None) == (not last):
        raise typer.BadParameter("give a request id or --last", param_hint="ID")
    with o.open_reader(o.load_config(config), server, store) as reader:
        others = []
        if last:
            ident = _last(reader, key=key, model=model, status=status, until=o.instant(at), since=o.instant(since))
        diagnosis = reader.diagnosis(ident, _seconds(wait))
        if not last:
            others = reader.request(ident)[1:]
    exit_status = o.print_diagnosis(diagnosis, o.Format.JSON if json_flag else form, quiet, fail_on)
    for other in others:
        print(f"also of that id: trace {other.trace_id}, started {other.started_at}, {other.outcome}", file=sys.stderr)
    return exit_status


def _last(reader: Any, **filters: Any) -> str:
    from lensd.errors import RequestNotFoundError

    found = reader.requests(limit=1, **filters).items
    if not found:
        raise RequestNotFoundError("no request that these filters let through")
    return str(found[0].trace_id)


def _seconds(wait: str) -> float:
    if wait == "auto":
        return 12.0 if sys.stdout.isatty() else 0.0
    try:
        return max(0.0, float(wait.removesuffix("s")))
    except ValueError:
        raise typer.BadParameter(f"{wait!r} is neither auto nor a number of seconds", param_hint="--wait") from None
