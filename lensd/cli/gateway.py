"""`lensd gateway`: the OpenAI-compatible reverse proxy."""

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command(
        "gateway",
        short_help="Proxy requests to the engines, recording each stage.",
        help="Proxy OpenAI-style requests to the engines, recording each stage.",
    )(gateway)


def gateway(config: o.ConfigPath = None) -> int:
    from lensd_collectors.gateway.keys import KeysError
    from lensd_collectors.gateway.routes import GatewayError
    from lensd_collectors.gateway.server import run

    from lensd.config import read_token
    from lensd.errors import UsageError

    loaded = o.load_config(config)
    try:
        run(loaded.gateway, read_token(loaded.token_for(loaded.gateway.token_file)))
    except (GatewayError, KeysError) as error:
        raise UsageError(str(error)) from None
    return 0
