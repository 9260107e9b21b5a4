"""What people and their scripts write beside a call: when the first piece came, how many, the longest gap → columns of its exchange."""

import re
from typing import Any, Final

_REMARKS: Final = (
    (
        re.compile(
            r"\btime to first (?:content |token|byte|chunk|event)+(?: event)?[ :=]+(?P<v>\d+(?:\.\d+)?) ?(?P<unit>ms|s)\b", re.IGNORECASE
        ),
        "ttfb_ms",
    ),
    (re.compile(r"\bTTFT[ :=]+(?P<v>\d+(?:\.\d+)?) ?(?P<unit>ms|s)\b"), "ttfb_ms"),
    (
        re.compile(
            r"\blast (?:chunk|token|byte|event|delta)\w* (?P<v>\d+(?:\.\d+)?) ?(?P<unit>ms|s) (?:before|earlier|ago)\b", re.IGNORECASE
        ),
        "max_gap_ms",
    ),
)
_DONE: Final = re.compile(r"\[DONE\](?: seen| received)?[:= ]+(?P<said>yes|no|true|false)\b", re.IGNORECASE)
_REASON: Final = re.compile(r"\bfinish_reason[\"']?[:= ]+[\"']?(?P<reason>[a-z_]+)")
_CHUNKS: Final = re.compile(
    r"\b(?P<n>\d{1,3}(?:,\d{3})+|\d+) (?:SSE |stream )?(?:chunks|events|deltas) (?:received|seen|read|in total)\b", re.IGNORECASE
)
_FIRST_AT: Final = re.compile(
    r"\b(?:first (?:chunk|token|byte|content|event|piece)|ttft|ttfb)\b\W*(?:came |arrived )?(?:after |at |in )?"
    r"(?P<v>\d+(?:\.\d+)?) ?(?P<unit>ms|s)\b",
    re.IGNORECASE,
)
_IN_ALL: Final = re.compile(
    r"\b(?:total|in all|last (?:chunk|token|byte)|done|complete|whole|end)\b\W*(?:time |after |at |in )?"
    r"(?P<v>\d+(?:\.\d+)?) ?(?P<unit>ms|s)\b"
    r"|\((?P<last>\d+(?:\.\d+)?) ?s\)\s*$",
    re.IGNORECASE,
)
_PIECES: Final = re.compile(r"\b(?P<n>\d{1,3}(?:,\d{3})+|\d+) (?:SSE |stream )?(?:chunks|reads|events|deltas|pieces)\b", re.IGNORECASE)
_SILENCE: Final = re.compile(
    r"\b(?:longest|max(?:imum)?|biggest|largest) (?:gap|pause|silence)\W*(?:of |was )?(?P<v>\d+(?:\.\d+)?) ?(?P<unit>ms|s)\b", re.IGNORECASE
)
_TOKENS: Final = re.compile(r"\b(?P<n>\d{1,3}(?:,\d{3})+|\d+) (?:completion |output )?tokens\b")


def remarks(line: str) -> dict[str, Any]:
    """Columns that a remark on an answer gives: when the first piece came, how many, how long before the end the last."""
    found: dict[str, Any] = {}
    for pattern, column in _REMARKS:
        if match := pattern.search(line):
            found.setdefault(column, float(match["v"]) * (1 if match["unit"] == "ms" else 1000))
    if match := _DONE.search(line):
        found["done_seen"] = match["said"].lower() in ("yes", "true")
    if found and (match := _REASON.search(line)):
        found["finish_reason"] = match["reason"]
    if match := _CHUNKS.search(line):
        found["chunks"] = int(match["n"].replace(",", ""))
    return found


def streamed_call(line: str) -> dict[str, Any]:
    """Columns of a stream of which one line says when it began and how it went on; empty for a line that does not."""
    first = _FIRST_AT.search(line)
    if first is None:
        return {}
    found: dict[str, Any] = {"ttfb_ms": _ms(first)}
    if whole := _IN_ALL.search(line):
        found["duration_ms"] = float(whole["last"]) * 1000 if whole["last"] else _ms(whole)
    if gap := _SILENCE.search(line):
        found["max_gap_ms"] = _ms(gap)
    for pattern, column in ((_PIECES, "chunks"), (_TOKENS, "completion_tokens")):
        if match := pattern.search(line):
            found[column] = int(match["n"].replace(",", ""))
    if match := _REASON.search(line):
        found["finish_reason"] = match["reason"]
    return found if len(found) > 2 and ("duration_ms" in found or "max_gap_ms" in found) else {}


def _ms(match: re.Match[str]) -> float:
    return round(float(match["v"]) * (1 if match["unit"].lower() == "ms" else 1000), 3)
