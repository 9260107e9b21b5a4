"""`lensd diagnose`: the verdict on one request."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lensd.cli import options as o

if TYPE_CHECKING:
    from lensd.api.items import RequestItem
    from lensd.records import Diagnosis

MAX_WAIT_S: Final = 30.0
AUTO_WAIT_S: Final = 12.0
PATIENCE_S: Final = 1.0  # so long nobody wonders


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
    _check(ident, last, filters)
    wait_s = _seconds(wait)
    wanted = {"key": key, "model": model, "status": status, "until": _including(o.instant(at)), "since": o.instant(since)}
    with o.open_reader(o.with_folders(o.load_config(config), folder), server, store) as reader:
        _check_folder(reader, folder)
        name = _last(reader, wanted) if ident is None else ident.strip()
        with _told_of_waiting(wait_s):
            diagnosis = reader.diagnosis(name, wait_s)
        others = [] if last else _others(reader.request(name), diagnosis)
    exit_status = o.print_diagnosis(diagnosis, o.Format.JSON if json_flag else form, quiet, fail_on)
    if others:
        _print_others(name, others)
    return exit_status


def _check(ident: str | None, last: bool, filters: dict[str, Any]) -> None:
    if (ident is None) == (not last) or (ident is not None and not ident.strip()):
        raise typer.BadParameter("give a request id or --last", param_hint="ID")
    given = [f"--{name}" for name, value in filters.items() if value is not None]
    if given and not last:
        raise typer.BadParameter("it picks the newest request that fits, so it goes with --last, not with an id", param_hint=given[0])


def _check_folder(reader: Any, folder: list[str] | None) -> None:
    """A daemon judges with its own runbooks."""
    from lensd.api.client import Client
    from lensd.errors import UsageError

    if folder and isinstance(reader, Client):
        raise UsageError(
            f"the daemon at {reader.url} judges with its own runbooks: name --folder there, as runbooks.folders in its lensd.toml"
        )


def _last(reader: Any, wanted: dict[str, Any]) -> str:
    from lensd.errors import IdsNotRecordedError, RequestNotFoundError

    found = reader.requests(limit=1, **wanted).items
    if not found and not reader.coverage().ids_recorded:
        raise IdsNotRecordedError("no request is known: no source here records request ids; lensd attach URL prints the line that adds one")
    if not found:
        raise RequestNotFoundError("no request that these filters let through")
    newest = found[0]
    return str(newest.span_id or newest.trace_id or newest.request_id)  # a trace may hold several requests, a span is one


def _including(at: int | None) -> int | None:
    """`--at` means at or before, a request filter's `until` means before."""
    return at + 1 if at is not None else None


def _seconds(wait: str) -> float:
    if wait == "auto":
        return AUTO_WAIT_S if sys.stdout.isatty() else 0.0
    try:
        seconds = float(wait.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= MAX_WAIT_S:
        raise typer.BadParameter(f"{wait!r} is neither auto nor a number of seconds from 0 to {MAX_WAIT_S:.0f}", param_hint="--wait")
    return seconds


@contextlib.contextmanager
def _told_of_waiting(wait_s: float) -> Iterator[None]:
    """At a terminal, say what is being waited for once it takes longer than people expect."""
    said = f"lensd: waiting up to {wait_s:g} s for the request to settle; --wait 0 asks at once"
    timer = threading.Timer(PATIENCE_S, lambda: print(said, file=sys.stderr))
    timer.daemon = True
    if wait_s > PATIENCE_S and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _others(found: "Sequence[RequestItem]", diagnosis: "Diagnosis") -> "list[RequestItem]":
    """The further requests of the name; the newest one was diagnosed, unless a newer one has come since."""
    from datetime import datetime

    subject = diagnosis.subject

    def same(item: "RequestItem") -> bool:
        started = datetime.fromisoformat(item.started_at).isoformat(timespec="milliseconds")
        return item.trace_id == subject.trace_id and started.replace("+00:00", "Z") == subject.started_at

    return [item for item in found if not same(item)]


def _print_others(name: str, others: "Sequence[RequestItem]") -> None:
    """Not part of the one answer: to stderr, newest first."""
    from lensd.cli.requests import columns
    from lensd.cli.table import print_table

    print(f"\nlensd: {name} means {len(others) + 1} requests; the newest is the one diagnosed, these are the others:", file=sys.stderr)
    with contextlib.redirect_stdout(sys.stderr):
        print_table(others, columns(), empty="")
