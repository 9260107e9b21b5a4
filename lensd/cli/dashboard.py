"""`lensd dashboard`: the pages."""

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command(
        "dashboard",
        short_help="Serve requests, incidents and evidence as pages.",
        help="Serve requests, incidents and their evidence as pages.",
    )(dashboard)


def dashboard(server: o.Server = None, config: o.ConfigPath = None) -> int:
    from lensd_dashboards.server import run

    from lensd.config import read_token

    loaded = o.load_config(config)
    host, _, port = loaded.dashboard.listen.rpartition(":")
    run(
        server or loaded.api_url,
        read_token(loaded.token_file),
        host.strip("[]"),
        int(port),
        loaded.serve.public_url,
        allow_remote=loaded.dashboard.allow_remote,
    )
    return 0
