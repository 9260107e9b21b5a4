"""`lensd up`: daemon, gateway, agent and dashboard on one machine."""

import signal
import sys
import threading
from typing import Annotated

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command("up", help="Run daemon, gateway, agent and dashboard here until Ctrl-C.")(up)


def up(
    config: o.ConfigPath = None,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Leave the dashboard out.")] = False,
) -> int:
    from lensd.config import find
    from lensd.supervise import Supervisor, answers, parts

    loaded, place = o.load_config(config), find(config)
    ready = {
        "serve": answers(f"{loaded.api_url}/healthz"),
        "gateway": answers(f"http://{loaded.gateway.listen}/health"),
        "dashboard": answers(f"http://{loaded.dashboard.listen}/_stcore/health"),
    }
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    supervisor = Supervisor(sys.stderr)
    try:
        for part in parts(str(place) if place is not None else None, ready):
            if stop.is_set() or (part.name == "dashboard" and no_dashboard):
                continue
            supervisor.start(part)
        print(
            f"gateway    http://{loaded.gateway.listen}/v1\ndashboard  {loaded.serve.public_url}\napi        {loaded.api_url}", flush=True
        )
        ended = supervisor.wait(stop)
    except RuntimeError as error:
        print(f"lensd: {error}", file=sys.stderr)
        return 1
    finally:
        supervisor.stop()
    if ended is not None:
        print(f"lensd: {ended.name} ended by itself; the rest was stopped", file=sys.stderr)
        return 1
    return 0
