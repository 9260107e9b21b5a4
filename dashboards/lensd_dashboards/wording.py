"""How durations, instants, shares and names are written on every page."""

from datetime import UTC, datetime

from lensd.records import Stage

UNKNOWN = "–"

STAGE_TITLES: dict[str, str] = {
    Stage.CLIENT: "Client",
    Stage.AUTH_ROUTING: "Auth & routing",
    Stage.QUEUE: "Queue",
    Stage.PREFILL: "Prefill",
    Stage.DECODE: "Decode",
    Stage.STREAMING: "Streaming",
    "engine": "Engine",
    "gpu": "GPU",
    "none": "No stage",
    "start": "the start",
    "end": "the end",
}

_MARKDOWN = str.maketrans({character: "\\" + character for character in "\\`*_{}[]()#+-.!|<>~$:&"})


def duration(milliseconds: float | None) -> str:
    """`0.4 ms`, `412 ms`, `12.3 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`: at most three figures that matter."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms" if milliseconds else "0 ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def share(part: float | None, whole: float | None) -> str:
    """Percentage of the whole; `< 0.1 %` for what is there but too small to write."""
    if part is None or not whole:
        return UNKNOWN
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.0f} %" if percent in (0, 100) else f"{percent:.1f} %"


def instant(microseconds: int | None) -> str:
    """Microseconds since the epoch as `2026-11-30 14:03:22 UTC`."""
    if microseconds is None:
        return UNKNOWN
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def instant_of(text: str | None) -> str:
    """An RFC 3339 instant in the same form as `instant`; a text that is none is shown as it came."""
    if not text:
        return UNKNOWN
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def stage(name: str) -> str:
    return STAGE_TITLES.get(name, name)


def words(code: str | None) -> str:
    """A code such as `timed_out` as words; a missing one as a dash."""
    return code.replace("_", " ") if code else UNKNOWN


def plain(text: str) -> str:
    """Text from outside, safe inside Markdown: nothing in it is read as formatting, colour, HTML or a link that hides its target.

    A bare URL still becomes a link to itself: Streamlit finds those after the escapes are gone.
    """
    return text.translate(_MARKDOWN).replace("\n", " ")


def count(number: int, singular: str) -> str:
    return f"{number:,} {singular}" if number == 1 else f"{number:,} {singular}s"
