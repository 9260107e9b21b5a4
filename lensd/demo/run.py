"""The demo from start to end: engine, `lensd up`, tour, and then it stays until Ctrl-C."""

import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from lensd.api.client import Client
from lensd.demo import engine as engines
from lensd.demo import replay, tour
from lensd.demo.faults import HEALTHY
from lensd.demo.hook import Hook
from lensd.demo.place import Place, configure, held, prepare
from lensd.demo.traffic import Traffic
from lensd.supervise import ENDING, Part, Supervisor, answers

READY_S = 60.0
CRASH = "engine-crash"


def run(folder: Path, engine_dir: Path, engine_url: str | None, engine_key_file: str, *, once: bool) -> int:
    """Exit status: 0 every fault named right, 1 one was not, 5 no engine could be had. Ctrl-C ends it at any time."""
    for number in ENDING:
        signal.signal(number, _interrupt)
    stack = ExitStack()
    try:
        stack.enter_context(held(folder))
        place = prepare(folder)
        hook = Hook()
        stack.callback(hook.close)
        try:
            with ExitStack() as trial:  # what was started for an engine that did not come goes before the replay begins
                own = _target(trial, place, engine_dir, engine_url, engine_key_file, hook)
                stack.enter_context(trial.pop_all())
        except engines.NoEngineError as error:
            print(f"lensd: {error}", file=sys.stderr)
            return replay.run(place, hook, once=once)
        return _show(stack, place, own, hook, once=once)
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave an engine behind
        stack.close()


def _show(stack: ExitStack, place: Place, own: Any, hook: Hook, *, once: bool) -> int:
    """The tour and its outcome; then it stays, where it is not to end."""
    client, traffic = _ready(stack, place, own)
    stops = tour.run(traffic, client, place.dashboard_url)
    (place.folder / "tour.json").write_bytes(msgspec.json.encode(stops))
    right = all(s.right for s in stops if s.got is not None)
    if own is not None:
        told = tour.alerted(hook, CRASH)
        print(f"\nwebhook: {'1 alert for ' + CRASH if told else 'no alert came'}", flush=True)
        right = right and told and hook.alerts.count(("firing", CRASH)) == 1
    print(f"\n{tour.summary(stops)}\ndashboard  {place.dashboard_url}", flush=True)
    if not once:
        replay.stay()
    return 0 if right else 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _target(stack: ExitStack, place: Place, engine_dir: Path, engine_url: str | None, engine_key_file: str, hook: Hook) -> Any:
    """Start or find the engine and everything around it; the engine itself where it is ours, else None."""
    if engine_url:
        configure(place, engines.named_target(engine_url, engine_key_file), hook.url)
        _up(stack, place)
        return None
    engines.build(engine_dir)
    own = engines.start(engine_dir, place)
    stack.callback(own.stop)
    print(f"starting a real vLLM on {own.url} (25 s or more) ...", flush=True)
    configure(place, engines.own_target(own, place), hook.url)
    _up(stack, place)
    return engines.wait(own)


def _up(stack: ExitStack, place: Place) -> None:
    """`lensd up`, its output in a log of the demo's folder."""
    log = stack.enter_context((place.folder / "up.log").open("w"))
    supervisor = Supervisor(log)
    stack.callback(supervisor.stop)
    supervisor.start(Part("up", ("up", "--config", str(place.config)), answers(f"{place.dashboard_url}/_stcore/health")), READY_S)


def _ready(stack: ExitStack, place: Place, own: Any) -> tuple[Client, Traffic]:
    """Client and callers, once a request goes through."""
    kill = (lambda: engines.kill_core(own)) if own is not None else None
    target = own.model if own is not None else _model(place)
    traffic = Traffic(place.gateway_url, place.otlp_url, place.token, target, place.keys, kill)
    stack.callback(traffic.close)
    client = Client(place.api_url, place.token)
    until, said = time.monotonic() + READY_S, ""
    while time.monotonic() < until:
        if (said := HEALTHY.run(traffic).said) == "HTTP 200":
            return client, traffic
        time.sleep(1)
    print(f"lensd: no request went through in {READY_S:.0f} s, the last one said: {said}; {place.folder}/up.log has more", file=sys.stderr)
    return client, traffic


def _model(place: Place) -> str:
    import tomllib

    upstream = tomllib.loads(place.config.read_text())["gateway"]["upstreams"][0]
    return engines.named_target(upstream["url"], upstream.get("api_key_file", "")).model
