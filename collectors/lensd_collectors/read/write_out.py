"""What `curl -w FORMAT` writes after an answer, by the format that stands on its command line."""

import re
from collections.abc import Sequence
from typing import Any, Final

_FORMAT: Final = re.compile(r"\s(?:-w|--write-out)[ =]?(?P<quote>['\"])(?P<format>(?:\\.|(?!(?P=quote)).)*)(?P=quote)")
_VARIABLE: Final = re.compile(r"%\{(?P<name>\w+)\}")
_SECONDS: Final = {"time_total": "duration_ms", "time_starttransfer": "ttfb_ms"}
_NUMBERS: Final = {"http_code": "status", "response_code": "status", "size_download": "bytes", "size_upload": "received_bytes"}
_LOOP: Final = re.compile(r"\b(?:for|while|until)\b.*\bdo\b|\bxargs\b|\bseq\b")
_END: Final = re.compile(r"\\n|\n")
_STATUS: Final = ("http_code", "response_code")
_FIGURE: Final = {True: r"(\d{3})", False: r"(\d[\d.]*)"}
_LONGEST: Final = 1000


class WriteOut:
    """Reads the lines of one format. Without a line's end in it, calls of a loop stand on one line."""

    def __init__(self, line: str) -> None:
        self._patterns: list[tuple[re.Pattern[str], list[str]]] = []
        self._again: tuple[re.Pattern[str], re.Pattern[str]] | None = None  # the whole line of a loop's, and one call in it
        match = _FORMAT.search(line)
        if match is None or len(match["format"]) > _LONGEST:
            return
        for part in re.split(r"\\n|\n", match["format"]):
            names = _VARIABLE.findall(part)
            if names:
                pieces = _VARIABLE.split(part)
                text = "".join(re.escape(_plain(piece)) if at % 2 == 0 else r"(\S*?)" for at, piece in enumerate(pieces))
                self._patterns.append((re.compile(rf"(?:^|(?<=[}}\]]))\s*{text.strip()}\s*$"), names))
        if len(self._patterns) == 1 and _LOOP.search(line) and _END.search(match["format"]) is None:
            pieces = _VARIABLE.split(match["format"])
            one = "".join(re.escape(_plain(piece)) if at % 2 == 0 else _FIGURE[piece in _STATUS] for at, piece in enumerate(pieces))
            self._again = re.compile(rf"(?:{one}\s*){{2,}}"), re.compile(one)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def read(self, line: str) -> list[dict[str, Any]]:
        """Columns of an exchange, or of each of a loop's; none for a line of something else."""
        for pattern, names in self._patterns:
            if (match := pattern.search(line)) is not None and (found := _columns(names, match.groups())):
                return [found]
        if self._again is not None and self._again[0].fullmatch(f"{line} "):
            names = self._patterns[0][1]
            return [_columns(names, match.groups()) for match in self._again[1].finditer(f"{line} ")]
        return []


def _columns(names: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in zip(names, texts, strict=True):
        if name in _SECONDS and re.fullmatch(r"\d+(?:\.\d+)?", text):
            found[_SECONDS[name]] = round(float(text) * 1000, 3)
        elif name in _NUMBERS and text.isdigit():
            found[_NUMBERS[name]] = int(text)
        elif name == "remote_ip" and text:
            found["upstream"] = text
    return found


def _plain(piece: str) -> str:
    return piece.replace("\\t", "\t").replace('\\"', '"').replace("%%", "%")
