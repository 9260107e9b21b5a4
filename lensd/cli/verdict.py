"""`lensd diagnose` once its call is read: asks, prints, says the exit status. Nothing here needs typer."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lensd.cli import reading
from lensd.cli.reading import FailOn, Format

if TYPE_CHECKING:
    from lensd.api.items import RequestItem
    from lensd.records import Diagnosis

MAX_WAIT_S: Final = 30.0
AUTO_WAIT_S: Final = 12.0
PATIENCE_S: Final = 1.0  # so long nobody wonders


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `ident` None: the newest request that `filters` (key, model, status, at, since) let through."""

    ident: str | None = None
    filters: dict[str, Any] = {}
    wait: str = "auto"
    folder: list[str] | None = None
    form: Format = Format.TEXT
    quiet: bool = False
    fail_on: FailOn = FailOn.WARNING
    server: str | None = None
    store: str | None = None
    config: str | None = None


def ask(asked: Asked) -> int:
    """Print the verdict; the exit status. Raises ValueError for a `wait` that is none, else LensdError's kinds."""
    wait_s = seconds(asked.wait)
    wanted = {name: value for name, value in asked.filters.items() if name != "at"}
    wanted |= {"until": _including(reading.instant(asked.filters.get("at"))), "since": reading.instant(asked.filters.get("since"))}
    with reading.open_reader(reading.with_folders(reading.load_config(asked.config), asked.folder), asked.server, asked.store) as reader:
        _check_folder(reader, asked.folder)
        name = _last(reader, wanted) if asked.ident is None else asked.ident.strip()
        with _told_of_waiting(wait_s):
            diagnosis = reader.diagnosis(name, wait_s)
        has_others = asked.ident is not None and diagnosis.matches is not msgspec.UNSET
        others = _others(reader.request(name), diagnosis) if has_others else []
    exit_status = reading.print_diagnosis(diagnosis, asked.form, asked.quiet, asked.fail_on)
    if others:
        _print_others(name, others)
    return exit_status


def seconds(wait: str) -> float:
    """How long to wait. Raises ValueError."""
    if wait == "auto":
        return AUTO_WAIT_S if sys.stdout.isatty() else 0.0
    given = float(wait.removesuffix("s"))
    if not 0.0 <= given <= MAX_WAIT_S:
        raise ValueError
    return given


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
