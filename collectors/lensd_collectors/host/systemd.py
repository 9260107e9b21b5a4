"""How a systemd unit does, from `systemctl show`: running, its last exit status, restarts, killed for its memory limit."""

import os
import subprocess
import time
from collections.abc import Callable
from typing import Final

from lensd_collectors.host.lifecycle import TIMEOUT_S, Ask, End, Run, UnavailableError
from lensd_collectors.host.line import Standing, State, why

PROPERTIES: Final = (
    "LoadState,ActiveState,SubState,MainPID,NRestarts,Result,ExecMainCode,ExecMainStatus,"
    "ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic"
)
EXITED: Final = 1  # CLD_EXITED; other codes: by a signal


def asking(
    unit: str,
    *,
    command: str = "systemctl",
    wall_ns: Callable[[], int] = time.time_ns,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
) -> Ask:
    """Asks systemd for a unit; read-only."""

    def ask() -> Run:
        shown = _show(command, unit)
        if shown.get("LoadState") == "not-found":
            raise UnavailableError(Standing(State.MISSING, f"systemd knows no unit {unit}"))
        offset_ns = wall_ns() - monotonic_ns()
        began, ended = _number(shown, "ExecMainStartTimestampMonotonic"), _number(shown, "ExecMainExitTimestampMonotonic")
        running = bool(_number(shown, "MainPID"))
        return Run(
            running=running,
            began=str(began),
            began_ns=began * 1000 + offset_ns if began else 0,
            pid=_number(shown, "MainPID") or None,
            restarts=_number(shown, "NRestarts"),
            end=_end(shown, ended, offset_ns) if ended and not running else None,
        )

    return ask


def _show(command: str, unit: str) -> dict[str, str]:
    arguments = [command, "show", f"--property={PROPERTIES}", "--", unit]
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except OSError as error:
        raise UnavailableError(why(error)._replace(reason=f"{command}: {why(error).reason}")) from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(Standing(State.MISSING, f"{command} gave no answer in {TIMEOUT_S:.0f} s")) from None
    if done.returncode:
        said = (done.stderr.strip() or "no reason given").splitlines()[0][:200]
        state = State.DENIED if "denied" in said.lower() else State.MISSING
        raise UnavailableError(Standing(state, f"{command}: {said}"))
    return {name: value for name, _, value in (line.partition("=") for line in done.stdout.splitlines())}


def _end(shown: dict[str, str], ended_us: int, offset_ns: int) -> End:
    code, status = _number(shown, "ExecMainCode"), _number(shown, "ExecMainStatus")
    return End(
        at_ns=ended_us * 1000 + offset_ns,
        mark=str(ended_us),
        exit_code=None if not code else status if code == EXITED else -status,
        oom_killed=shown.get("Result") == "oom-kill",
    )


def _number(shown: dict[str, str], name: str) -> int:
    value = shown.get(name, "")
    return int(value) if value.isdigit() else 0
