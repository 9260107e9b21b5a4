"""What verbs share that ask for something and print it. Nothing here needs typer, so that `lensd diagnose` can do without it."""

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lensd.config import Config
    from lensd.records import Diagnosis


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    MD = "md"


class FailOn(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


def load_config(path: str | None) -> "Config":
    from lensd.config import load

    return load(path)


def with_folders(config: "Config", folders: list[str] | None) -> "Config":
    """The configuration with further runbook folders."""
    import msgspec

    runbooks = msgspec.structs.replace(config.runbooks, folders=(*config.runbooks.folders, *(folders or ())))
    return msgspec.structs.replace(config, runbooks=runbooks)


def open_reader(config: "Config", server: str | None, store: str | None = None) -> Any:
    """The daemon where it answers, else the store's folder itself.

    Raises NoStoreError, StoreBusyError (a daemon holds the store and does not answer) and ServerError (a named one does not).
    """
    from lensd.api.reader import open_reader as open_it

    return open_it(config, server, store)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_diagnosis(diagnosis: "Diagnosis", form: Format, quiet: bool, fail_on: FailOn) -> int:
    """Print the answer to stdout; the exit status."""
    import os

    from lensd import report
    from lensd.records import Severity

    if quiet:
        print(diagnosis.verdict.label)
    elif form is Format.JSON:
        print(report.as_json(diagnosis))
    elif form is Format.MD:
        print(report.as_markdown(diagnosis), end="")
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        print(report.as_text(diagnosis, colour=colour), end="")
    return report.exit_status(diagnosis, Severity(fail_on.value))


def instant(text: str | None) -> int | None:
    """Microseconds since the epoch of `2026-01-31T09:00`, `09:00` (the last one, UTC) or `15m` (that long ago)."""
    from datetime import UTC, datetime, timedelta

    from lensd.errors import UsageError

    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    try:
        if text[:-1].isdecimal() and text[-1] in units:
            at = datetime.fromtimestamp(time.time() - int(text[:-1]) * units[text[-1]], UTC)
        elif len(text) <= 8 and ":" in text:
            clock = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M").time()
            at = datetime.combine(datetime.now(UTC).date(), clock, UTC)
            at = at if at <= datetime.now(UTC) else at - timedelta(days=1)
        else:
            at = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is no instant: write 2026-01-31T09:00, 09:00 or 15m (times are UTC)") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e6)
