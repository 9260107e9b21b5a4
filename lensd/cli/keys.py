"""`lensd keys add|ls`: the keys that the gateway knows."""

from typing import Annotated

import typer

from lensd.cli import options as o

File = Annotated[str | None, typer.Option("--file", metavar="FILE", help="Keys file.", show_default="gateway.keys_file")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys of the gateway; stored hashed, shown once.")
    group.command("add", help="Make a key and print it, this once.")(add)
    group.command("ls", help="List keys: id, last four characters, models.")(ls)
    app.add_typer(group, name="keys")


def add(
    ident: Annotated[str, typer.Argument(metavar="ID", help="Name of the key, shown wherever the key is meant.")],
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="Model it may use, * and ? allowed; repeatable. [default: all]")
    ] = None,
    file: File = None,
    config: o.ConfigPath = None,
) -> int:
    from pathlib import Path

    from lensd_collectors.gateway import keys

    from lensd.errors import UsageError

    place = Path(file or o.load_config(config).gateway.keys_file)
    try:
        secret, entry = keys.new_key(ident, tuple(model or ("*",)))
        keys.append(place, entry)
    except (keys.KeysError, UnicodeDecodeError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror}") from None
    print(secret)
    return 0


def ls(
    file: File = None,
    json_flag: o.JsonFlag = False,
    config: o.ConfigPath = None,
) -> int:
    from pathlib import Path

    from lensd_collectors.gateway import keys

    from lensd.cli.table import Columns, print_table
    from lensd.errors import UsageError

    place = Path(file or o.load_config(config).gateway.keys_file)
    try:
        entries = keys.read_keys(place)
    except keys.KeysError as error:
        raise UsageError(str(error)) from None
    if json_flag:
        shown = ("id", "last4", "models", "disabled")
        o.print_json({"items": [{name: getattr(entry, name) for name in shown} for entry in entries], "next": None})
        return 0
    columns: Columns = {
        "id": "id",
        "key": lambda entry: f"...{entry.last4}",
        "models": lambda entry: ", ".join(entry.models),
        "state": lambda entry: "disabled" if entry.disabled else "in use",
    }
    print_table(entries, columns, empty=f"no keys in {place}")
    return 0
