"""`lensd serve`: the daemon."""

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command(
        "serve",
        short_help="Run the daemon: receive, keep, judge, alert.",
        help="Take in telemetry, keep it, judge it, answer the API, send alerts.",
    )(serve)


def serve(config: o.ConfigPath = None) -> int:
    from lensd.daemon import serve as run

    run(o.load_config(config))
    return 0
