"""`lensd agent`: scrapes, log lines, processes and GPU memory of a host."""

import signal
import threading

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command(
        "agent",
        short_help="Watch the engines and GPUs of this host.",
        help="Watch the engines and GPUs of this host and send what they say to the daemon.",
    )(agent)


def agent(config: o.ConfigPath = None) -> int:
    from lensd_collectors.host.agent import AgentError, run

    from lensd.config import read_token
    from lensd.errors import UsageError

    loaded = o.load_config(config)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        run(loaded.agent, read_token(loaded.token_for(loaded.agent.token_file)), stop=stop)
    except AgentError as error:
        raise UsageError(str(error)) from None
    return 0
