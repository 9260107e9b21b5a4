"""The tour: healthy traffic, then one fault after another, each diagnosed and shown."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from lensd.api.client import Client
from lensd.demo.faults import HEALTHY, TOUR, Fault
from lensd.demo.hook import Hook
from lensd.demo.traffic import Traffic
from lensd.errors import LensdError

SETTLE_S = 14.0  # ten to settle, the rest for its way through journal and rules
ALERT_S = 15.0


class Stop(NamedTuple):
    """One stop of the tour. `got` None: not run, and `note` says why."""

    name: str
    wanted: str
    got: str | None
    note: str
    request_id: str | None = None

    @property
    def right(self) -> bool:
        return self.got == self.wanted


def run(traffic: Traffic, client: Client, dashboard_url: str) -> list[Stop]:
    """Every stop in order, printed as it is reached."""
    stops = []
    for fault in (HEALTHY, HEALTHY, *TOUR):
        stop = _one(fault, traffic, client)
        stops.append(stop)
        _print(stop, dashboard_url)
    return stops


def _one(fault: Fault, traffic: Traffic, client: Client) -> Stop:
    if fault.needs_own_engine and not traffic.own_engine:
        return Stop(fault.name, fault.label, None, "not run: not our engine")
    shown = fault.run(traffic)
    try:
        diagnosis = client.diagnosis(shown.request_id, SETTLE_S)
    except LensdError as error:
        return Stop(fault.name, fault.label, "(none)", f"{shown.said}; {error}", shown.request_id)
    return Stop(fault.name, fault.label, diagnosis.verdict.label, f"{shown.said}; {diagnosis.verdict.cause}", shown.request_id)


def _print(stop: Stop, dashboard_url: str) -> None:
    if stop.got is None:
        print(f"\n{stop.name}: {stop.note}", flush=True)
        return
    mark = "ok" if stop.right else f"WRONG, wanted {stop.wanted}"
    print(
        f"\n{stop.name}: {stop.got} ({mark})\n  {stop.note}\n  {dashboard_url}/r/{stop.request_id}   lensd diagnose {stop.request_id}",
        flush=True,
    )


def alerted(hook: Hook, label: str) -> bool:
    """The webhook told of this incident's opening, within a few seconds."""
    until = time.monotonic() + ALERT_S
    while time.monotonic() < until:
        if ("firing", label) in hook.alerts:
            return True
        time.sleep(0.2)
    return False


def summary(stops: Sequence[Stop]) -> str:
    ran = [s for s in stops if s.got is not None]
    faults = [s for s in ran if s.wanted != HEALTHY.label]
    right = sum(s.right for s in faults)
    healthy = sum(s.right for s in ran if s.wanted == HEALTHY.label)
    return (
        f"{right} of {len(faults)} faults named right, {healthy} healthy requests called {HEALTHY.label}, {len(stops) - len(ran)} not run"
    )
