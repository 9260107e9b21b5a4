"""`lensd config check|show`: what the configuration says, before anything starts."""

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The configuration as it counts.")
    group.command("check", help="Say whether lensd.toml and the environment hold.")(check)
    group.command("show", help="Print every value as it counts, defaults included.")(show)
    app.add_typer(group, name="config")


def check(config: o.ConfigPath = None) -> int:
    from lensd.config import find, load

    load(config)
    print(f"ok: {find(config) or 'no lensd.toml, defaults and environment only'}")
    return 0


def show(config: o.ConfigPath = None, json_flag: o.JsonFlag = False) -> int:
    import msgspec

    from lensd.alerts.delivery import shown_url

    data = msgspec.to_builtins(o.load_config(config))
    for webhook in data["alerts"]["webhooks"]:
        webhook["url"] = shown_url(webhook["url"]) if webhook["url"] else ""  # its path is a secret
    if json_flag:
        print(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())
        return 0
    for table, values in data.items():
        print(f"[{table}]")
        for key, value in values.items():
            print(f"{key} = {msgspec.json.encode(value).decode()}")
        print()
    return 0
