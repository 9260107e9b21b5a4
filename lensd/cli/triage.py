"""`lensd triage`: the verdict on files."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from lensd.cli import options as o

PATIENCE_S: Final = 2.0  # so long nobody wonders
EVERY_S: Final = 0.5


def register(app: typer.Typer) -> None:
    app.command(
        "triage",
        short_help="Name the cause in logs and scrapes that were mailed in.",
        help="Name the cause in a folder of logs, scrapes, spans and HTTP exchanges, or in an archive of them; needs no server.",
    )(triage)


def triage(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files, folders, zip or tar archives, or - for standard input; content tells.")
    ],
    labels: Annotated[
        Path | None, typer.Option("--labels", metavar="FILE", help="Restrict verdicts to this vocabulary: JSON, or one label a line.")
    ] = None,
    max_bytes: Annotated[
        str, typer.Option("--max-bytes", metavar="SIZE", help="Read no more than this, unpacked: 500MiB, 8GiB or a number of bytes.")
    ] = "8GiB",
    folder: o.RunbookFolder = None,
    json_flag: o.JsonFlag = False,
    form: o.FormatOption = o.Format.TEXT,
    quiet: o.Quiet = False,
    fail_on: o.FailOnOption = o.FailOn.WARNING,
    config: o.ConfigPath = None,
) -> int:
    from lensd.diagnosis.find import Intake
    from lensd.diagnosis.runbook import load
    from lensd.diagnosis.triage import read_labels
    from lensd.diagnosis.triage import triage as run
    from lensd.memory.units import size

    loaded = o.load_config(config)
    vocabulary = read_labels(labels) if labels is not None else None
    most = int(max_bytes) if max_bytes.isdecimal() and int(max_bytes) else size(max_bytes)
    books = load([*loaded.runbooks.folders, *(folder or ())])
    with _progress() as told:
        found = run(paths, books, loaded.runbooks.params, loaded.timeline, vocabulary, Intake(most, told))
    return o.print_diagnosis(found, o.Format.JSON if json_flag else form, quiet, fail_on)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """At a terminal, one line that says what is being done once it takes longer than people expect."""
    doing = [""]
    done = threading.Event()

    def show() -> None:
        waited = PATIENCE_S
        while not done.wait(PATIENCE_S if waited == PATIENCE_S else EVERY_S):
            line = "".join(ch if ch.isprintable() else "?" for ch in doing[0])[:90]
            print(f"\rlensd: {line}, {waited:.0f} s\x1b[K", end="", file=sys.stderr, flush=True)
            waited += EVERY_S
        if waited > PATIENCE_S:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    if sys.stderr.isatty():
        thread.start()
    try:
        yield lambda what: doing.__setitem__(0, what)
    finally:
        done.set()
        if thread.is_alive():
            thread.join()
