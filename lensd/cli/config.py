"""`lensd config check|show`: what the configuration says, before anything starts."""

import re
from typing import Any

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The configuration as it counts.")
    group.command("check", help="Say whether lensd.toml and the environment hold.")(check)
    group.command("show", help="Print every value as it counts, defaults included and secrets left out.")(show)
    app.add_typer(group, name="config")


def check(config: o.ConfigPath = None) -> int:
    from lensd.alerts.registry import make_destinations
    from lensd.config import find, load

    loaded = load(config)
    make_destinations(loaded.alerts, loaded.serve.public_url)
    print(f"ok: {find(config) or 'no lensd.toml, defaults and environment only'}")
    return 0


def show(config: o.ConfigPath = None, json_flag: o.JsonFlag = False) -> int:
    import msgspec

    from lensd.alerts.delivery import shown_url
    from lensd.config import as_toml

    data = msgspec.to_builtins(o.load_config(config))
    for webhook in data["alerts"]["webhooks"]:
        webhook["url"] = shown_url(webhook["url"]) if webhook["url"] else ""  # its path is a secret
    shown = _without_credentials(data)
    if json_flag:
        o.print_json(shown)
    else:
        print(as_toml(shown), end="")
    return 0


def _without_credentials(value: Any) -> Any:
    """URLs without the user and password that one may hold."""
    if isinstance(value, dict):
        return {name: _without_credentials(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_credentials(inner) for inner in value]
    return re.sub(r"(?<=://)[^/@\s]*@", "", value) if isinstance(value, str) else value
