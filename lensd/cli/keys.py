"""`lensd keys add|ls`: the keys that the gateway knows."""

from typing import Annotated

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys of the gateway; stored hashed, shown once.")
    group.command("add", help="Make a key and print it, this once.")(add)
    group.command("ls", help="List keys: id, last four characters, models.")(ls)
    app.add_typer(group, name="keys")


def add(
    ident: Annotated[str, typer.Argument(metavar="ID", help="Name of the key, shown wherever the key is meant.")],
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Model it may use, * and ? allowed; repeatable. [default: all]")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", help="Keys file.", show_default="gateway.keys_file")] = None,
    config: o.ConfigPath = None,
) -> int:
    from pathlib import Path

    from lensd_collectors.gateway import keys

    from lensd.errors import UsageError

    place = Path(file or o.load_config(config).gateway.keys_file)
    secret, entry = keys.new_key(ident, tuple(model or ("*",)))
    try:
        keys.append(place, entry)
    except keys.KeysError as error:
        raise UsageError(str(error)) from None
    print(secret)
    return 0


def ls(
    file: Annotated[str | None, typer.Option("--file", help="Keys file.", show_default="gateway.keys_file")] = None,
    config: o.ConfigPath = None,
) -> int:
    from pathlib import Path

    from lensd_collectors.gateway import keys

    from lensd.errors import UsageError

    place = Path(file or o.load_config(config).gateway.keys_file)
    try:
        entries = keys.read_keys(place)
    except keys.KeysError as error:
        raise UsageError(str(error)) from None
    for entry in entries:
        print(f"{entry.id}  ...{entry.last4}  {', '.join(entry.models)}{'  disabled' if entry.disabled else ''}")
    return 0
