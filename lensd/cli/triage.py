"""`lensd triage`: the verdict on files."""

from pathlib import Path
from typing import Annotated

import typer

from lensd.cli import options as o
from lensd.cli.progress import progress


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
    with progress() as told:
        found = run(paths, books, loaded.runbooks.params, loaded.timeline, vocabulary, Intake(most, told))
    return o.print_diagnosis(found, o.Format.JSON if json_flag else form, quiet, fail_on)
