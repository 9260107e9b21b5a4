"""What `curl -w FORMAT` writes after an answer, by the format that stands on its command line."""

import re
from typing import Any, Final

_FORMAT: Final = re.compile(r"\s(?:-w|--write-out)[ =]?(?P<quote>['\"])(?P<format>(?:\\.|(?!(?P=quote)).)*)(?P=quote)")
_VARIABLE: Final = re.compile(r"%\{(?P<name>\w+)\}")
_SECONDS: Final = {"time_total": "duration_ms", "time_starttransfer": "ttfb_ms"}
_NUMBERS: Final = {"http_code": "status", "response_code": "status", "size_download": "bytes", "size_upload": "received_bytes"}
_LONGEST: Final = 1000


class WriteOut:
    """Reads the lines of one format."""

    def __init__(self, line: str) -> None:
        self._patterns: list[tuple[re.Pattern[str], list[str]]] = []
        match = _FORMAT.search(line)
        if match is None or len(match["format"]) > _LONGEST:
            return
        for part in re.split(r"\\n|\n", match["format"]):
            names = _VARIABLE.findall(part)
            if names:
                pieces = _VARIABLE.split(part)
                text = "".join(re.escape(_plain(piece)) if at % 2 == 0 else r"(\S*?)" for at, piece in enumerate(pieces))
                self._patterns.append((re.compile(rf"(?:^|(?<=[}}\]]))\s*{text.strip()}\s*$"), names))

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def read(self, line: str) -> dict[str, Any] | None:
        """Columns of an exchange; None for a line of something else."""
        for pattern, names in self._patterns:
            match = pattern.search(line)
            if match is None:
                continue
            found: dict[str, Any] = {}
            for name, text in zip(names, match.groups(), strict=True):
                if name in _SECONDS and re.fullmatch(r"\d+(?:\.\d+)?", text):
                    found[_SECONDS[name]] = round(float(text) * 1000, 3)
                elif name in _NUMBERS and text.isdigit():
                    found[_NUMBERS[name]] = int(text)
                elif name == "remote_ip" and text:
                    found["upstream"] = text
            if found:
                return found
        return None


def _plain(piece: str) -> str:
    return piece.replace("\\t", "\t").replace('\\"', '"').replace("%%", "%")
