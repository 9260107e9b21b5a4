"""`lensd diagnose`: the verdict on one request."""

from typing import Annotated, Any

import typer

from lensd.cli import options as o
from lensd.cli.verdict import MAX_WAIT_S, Asked, ask, seconds


def register(app: typer.Typer) -> None:
    app.command(
        "diagnose",
        short_help="Name the cause of one slow or failed request.",
        help="Say in which stage a request's time or failure sits, why, on what evidence, and what to do.",
    )(diagnose)


def diagnose(
    ident: Annotated[
        str | None, typer.Argument(metavar="ID", help="X-Request-Id, the engine's id (chatcmpl-...), trace id, or a unique prefix.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Instead of ID: the newest request that the filters below let through.")] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Of this key id.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Of this model.")] = None,
    status: Annotated[int | None, typer.Option("--status", metavar="CODE", help="Answered with this HTTP status.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="WHEN", help="Started at or before: 2026-01-31T09:00, 09:00 or 15m.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Started after.")] = None,
    wait: Annotated[
        str,
        typer.Option("--wait", metavar="SECONDS", help="Wait so long for it to settle, up to 30; auto: 12 at a terminal, else 0."),
    ] = "auto",
    folder: o.RunbookFolder = None,
    json_flag: o.JsonFlag = False,
    form: o.FormatOption = o.Format.TEXT,
    quiet: o.Quiet = False,
    fail_on: o.FailOnOption = o.FailOn.WARNING,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    filters = {"key": key, "model": model, "status": status, "at": at, "since": since}
    _check(ident, last, wait, filters)
    return ask(
        Asked(
            ident=ident,
            filters=filters,
            wait=wait,
            folder=folder,
            form=o.Format.JSON if json_flag else form,
            quiet=quiet,
            fail_on=fail_on,
            server=server,
            store=store,
            config=config,
        )
    )


def _check(ident: str | None, last: bool, wait: str, filters: dict[str, Any]) -> None:
    if (ident is None) == (not last) or (ident is not None and not ident.strip()):
        raise typer.BadParameter("give a request id or --last", param_hint="ID")
    given = [f"--{name}" for name, value in filters.items() if value is not None]
    if given and not last:
        raise typer.BadParameter("it picks the newest request that fits, so it goes with --last, not with an id", param_hint=given[0])
    try:
        seconds(wait)
    except ValueError:
        raise typer.BadParameter(
            f"{wait!r} is neither auto nor a number of seconds from 0 to {MAX_WAIT_S:.0f}", param_hint="--wait"
        ) from None
