"""Options that several verbs share, and what they open."""

from typing import Annotated

import typer

from lensd.cli.reading import FailOn as FailOn
from lensd.cli.reading import Format as Format
from lensd.cli.reading import instant as instant
from lensd.cli.reading import load_config as load_config
from lensd.cli.reading import open_reader as open_reader
from lensd.cli.reading import print_diagnosis as print_diagnosis
from lensd.cli.reading import print_json as print_json
from lensd.cli.reading import with_folders as with_folders

ConfigPath = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Path of lensd.toml.", show_default="./, ~/.config/lensd/, /etc/lensd/")
]
Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", envvar="LENSD_URL", help="The daemon's API.", show_default="from lensd.toml")
]
StorePath = Annotated[str | None, typer.Option("--store", metavar="FOLDER", help="Read this store folder, without a daemon.")]
RunbookFolder = Annotated[
    list[str] | None, typer.Option("--folder", metavar="FOLDER", help="A folder of runbooks of your own; repeatable.")
]


FormatOption = Annotated[Format, typer.Option("--format", help="How to print the answer.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the label alone.")]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="Least severity that exits with 3.")]
