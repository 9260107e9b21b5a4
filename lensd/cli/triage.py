"""`lensd triage`: the verdict on files."""

from pathlib import Path
from typing import Annotated

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command(
        "triage",
        short_help="Name the cause in logs and scrapes that were mailed in.",
        help="Name the cause in a folder of logs, scrapes, spans and HTTP exchanges; needs no server.",
    )(triage)


def triage(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files or folders; what each is, is told by its content.")],
    labels: Annotated[
        Path | None, typer.Option("--labels", metavar="FILE", help="Restrict verdicts to this vocabulary: JSON, or one label a line.")
    ] = None,
    json_flag: o.JsonFlag = False,
    form: o.FormatOption = o.Format.TEXT,
    quiet: o.Quiet = False,
    fail_on: o.FailOnOption = o.FailOn.WARNING,
    config: o.ConfigPath = None,
) -> int:
    from lensd.diagnosis.runbook import load
    from lensd.diagnosis.triage import read_labels
    from lensd.diagnosis.triage import triage as run

    loaded = o.load_config(config)
    vocabulary = read_labels(labels) if labels is not None else None
    found = run(paths, load(loaded.runbooks.folders), loaded.runbooks.params, loaded.timeline, vocabulary)
    return o.print_diagnosis(found, o.Format.JSON if json_flag else form, quiet, fail_on)
