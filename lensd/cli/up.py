"""`lensd up`: daemon, gateway, agent and dashboard on one machine."""

import sys
from typing import Annotated

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command(
        "up",
        short_help="Run daemon, gateway, agent and dashboard until Ctrl-C.",
        help="Run daemon, gateway, agent and dashboard here until Ctrl-C.",
    )(up)


def up(
    config: o.ConfigPath = None,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Leave the dashboard out.")] = False,
) -> int:
    from lensd.config import find
    from lensd.supervise import GRACE_S, Supervisor, answers, parts, until_signal

    loaded, place = o.load_config(config), find(config)
    ready = {
        "serve": answers(f"{loaded.api_url}/healthz"),
        "gateway": answers(f"http://{loaded.gateway.listen}/health"),
        "dashboard": answers(f"http://{loaded.dashboard.listen}/_stcore/health"),
    }
    supervisor = Supervisor(sys.stderr)
    with until_signal() as stop:
        try:
            for part in parts(str(place) if place is not None else None, ready):
                if part.name == "gateway":  # which lets open requests run on
                    part = part._replace(grace_s=loaded.gateway.drain_timeout_s + GRACE_S)
                if not stop.is_set() and not (part.name == "dashboard" and no_dashboard):
                    supervisor.start(part, stop=stop)
            if not stop.is_set():
                pages = "" if no_dashboard else f"dashboard  {loaded.serve.public_url}\n"
                print(f"gateway    http://{loaded.gateway.listen}/v1\n{pages}api        {loaded.api_url}", flush=True)
            supervisor.wait(stop)
        finally:
            supervisor.stop()
    return 0
