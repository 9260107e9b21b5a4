"""Tables of the pages: the list of requests and the six stages in figures. Pure: records in, table out."""

from collections.abc import Sequence

import pandas as pd
from pandas.io.formats.style import Styler

from lensd.api.items import RequestItem
from lensd.records import StageTime
from lensd_dashboards import wording

_BAD = ("failed", "timed_out", "cut", "lost")
_HELD = ("refused", "caller_gone")


def requests(items: Sequence[RequestItem], dark: bool = False) -> Styler:
    """Figures keep their value, so that a click on a column's head sorts them, and are written for people."""
    frame = pd.DataFrame(
        {
            "Started": pd.to_datetime([row.started_at for row in items], utc=True),
            "Request": [row.request_id or wording.UNKNOWN for row in items],
            "Model": [row.model or wording.UNKNOWN for row in items],
            "Key": [row.key_id or wording.UNKNOWN for row in items],
            "Outcome": [row.outcome or "" for row in items],
            "Status": pd.array([row.status for row in items], dtype="Int64"),
            "Total": pd.array([row.total_ms for row in items], dtype="Float64"),
            "TTFT": pd.array([row.ttft_ms for row in items], dtype="Float64"),
            "Verdict": [row.label or "" for row in items],
        }
    )
    red, amber, quiet, text = ("#ff8a91", "#f0b355", "#8f9aa7", "#e6e9ed") if dark else ("#b3242f", "#9a5b00", "#66727f", "#1f2933")

    def colour(outcome: str) -> str:
        return f"color: {red if outcome in _BAD else amber if outcome in _HELD else quiet if outcome == 'ok' else text}"

    style = frame.style.format(
        {
            "Total": lambda value: wording.UNKNOWN if pd.isna(value) else wording.duration(float(value)),
            "TTFT": lambda value: wording.UNKNOWN if pd.isna(value) else wording.duration(float(value)),
            "Status": lambda value: wording.UNKNOWN if pd.isna(value) else str(int(value)),
            "Outcome": wording.words,
            "Verdict": lambda value: value or "not judged yet",
        }
    )
    return style.map(colour, subset=["Outcome"])


def stages(stages: Sequence[StageTime], total_ms: float | None) -> dict[str, list[str]]:
    """One column a list, one row a stage, all of it text."""
    return {
        "Stage": [wording.stage(entry.stage) for entry in stages],
        "State": [wording.words(entry.state) for entry in stages],
        "Begins": [wording.duration(entry.start_ms) for entry in stages],
        "Took": [wording.duration(entry.duration_ms) for entry in stages],
        "Alone": [wording.duration(entry.exclusive_ms) for entry in stages],
        "Share": [wording.share(entry.exclusive_ms, total_ms) for entry in stages],
        "Seen by": [(entry.source or wording.UNKNOWN) + (" (estimated)" if entry.estimated else "") for entry in stages],
    }
