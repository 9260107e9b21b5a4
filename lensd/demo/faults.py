"""The faults of the tour: each breaks one thing on purpose and says which cause must be named."""

from collections.abc import Callable
from typing import NamedTuple

from lensd.demo.traffic import Shown, Traffic


class Fault(NamedTuple):
    """`needs_own_engine`: it floods or kills the engine, which only an engine of ours may suffer."""

    name: str
    label: str
    run: Callable[[Traffic], Shown]
    needs_own_engine: bool = False


def healthy(traffic: Traffic) -> Shown:
    """A short streamed answer."""
    return traffic.chat("full", max_tokens=16)


def wrong_key(traffic: Traffic) -> Shown:
    return traffic.chat("none", max_tokens=8)


def key_without_this_model(traffic: Traffic) -> Shown:
    return traffic.chat("other", max_tokens=8)


def unknown_model(traffic: Traffic) -> Shown:
    return traffic.chat("full", model="tiny-lama-70b", max_tokens=8)


def client_gives_up(traffic: Traffic) -> Shown:
    """A long answer in one piece, and a caller who does not wait for it."""
    if traffic.own_engine:
        return traffic.chat("full", max_tokens=480, stream=False, timeout_s=0.4)
    return traffic.chat("full", max_tokens=16, stream=False, timeout_s=0.02)


def prompt_too_long(traffic: Traffic) -> Shown:
    """More than the server's limit, less than what the model can do."""
    return traffic.chat("full", words=700, max_tokens=8)


def queue_timeout(traffic: Traffic) -> Shown:
    """More callers than the engine has slots; the last one's limit runs out in the line."""
    with traffic.flood(callers=12, max_tokens=450):
        return traffic.chat("full", max_tokens=8, timeout_s=4.0)


def engine_killed(traffic: Traffic) -> Shown:
    """kill -9 to the engine's core while it streams."""
    return traffic.chat("full", max_tokens=480, at_first_chunk=traffic.kill_engine)


HEALTHY = Fault("healthy request", "no-incident", healthy)

TOUR = (
    Fault("wrong key", "auth-wrong-key", wrong_key),
    Fault("key without this model", "auth-key-scope-denied", key_without_this_model),
    Fault("unknown model", "route-wrong-model-name", unknown_model),
    Fault("client gives up", "client-read-timeout-too-short", client_gives_up),
    Fault("prompt too long", "context-length-server-limit-low", prompt_too_long, needs_own_engine=True),
    Fault("queue timeout", "queue-saturation", queue_timeout, needs_own_engine=True),
    Fault("engine killed", "engine-crash", engine_killed, needs_own_engine=True),
)
"""In this order; the engine dies last."""
