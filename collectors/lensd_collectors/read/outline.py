"""Where a line of YAML, JSON or a block configuration stands: its keys joined with dots, so that a setting can be told by its parents."""

import re
from typing import Final

_KEY: Final = re.compile(
    r"^(?P<indent>\s*)(?P<item>(?:- +)*)[\"']?(?P<key>[A-Za-z_$][\w.$/-]*)[\"']?\s*(?P<mark>:|=)(?:\s+(?P<value>\S.*?))?,?\s*$"
)
_FLOW: Final = re.compile(
    r"(?:(?<![\"'\w.-])(?P<q>[\"']?)(?P<key>[A-Za-z_][\w.-]*)(?P=q))\s*:\s*(?P<value>\"[^\"]*\"|'[^']*'|[^,{}\[\]\s]+)"
)
_BLOCK: Final = re.compile(r"^\s*(?P<name>[A-Za-z_][\w-]*)(?: (?P<rest>[^{};#]*?))?\s*\{\s*$")
_SECTION: Final = re.compile(r"^\s*\[+(?P<name>[\w.\"-]+)\]+\s*$")
_DIFF: Final = re.compile(r"^[-+<>](?=[ \t]|[A-Za-z_][\w-]*:(?:\s|$))")
_DEEPEST: Final = 24
_LONGEST: Final = 4096


class Outline:
    """Follows the indentation of one file; what a line is below is forgotten where the indentation ends."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []  # indentation and key
        self._section = ""

    def of(self, line: str) -> list[str]:
        """The line as `parent.key: value`, each pair of a `{a: 1, b: 2}` for itself; empty for what is no such line."""
        if len(line) > _LONGEST:
            return []
        text = _DIFF.sub(" ", line)
        if section := _SECTION.match(text):
            self._section, self._open = section["name"].strip('"'), []
            return []
        if text.strip() in ("}", "};", "},", "]", "],"):
            self._close(len(text) - len(text.lstrip()))
            return []
        if block := _BLOCK.match(text):
            self._down(len(text) - len(text.lstrip()), block["name"])
            return []
        match = _KEY.match(text)
        if match is None:
            return self._flow(text) if "{" in text else []
        indent = len(match["indent"]) + len(match["item"])
        self._close(indent)
        path = self._path(match["key"])
        value = (match["value"] or "").split(" #")[0].strip()
        if not value or value in ("{", "[", "|", ">", "|-", ">-"):
            self._down(indent, match["key"])
            return [f"{path}:"]
        if value[:1] == "{":
            return [f"{path}.{one['key']}: {_bare(one['value'])}" for one in _FLOW.finditer(value)]
        return [f"{path}: {_bare(value)}"]

    def _flow(self, text: str) -> list[str]:
        return [f"{self._path(one['key'])}: {_bare(one['value'])}" for one in _FLOW.finditer(text)][:64]

    def _path(self, key: str) -> str:
        parents = [name for _, name in self._open]
        return ".".join([self._section, *parents, key] if self._section else [*parents, key])

    def _close(self, indent: int) -> None:
        while self._open and self._open[-1][0] >= indent:
            self._open.pop()

    def _down(self, indent: int, key: str) -> None:
        self._close(indent)
        if len(self._open) < _DEEPEST:
            self._open.append((indent, key))


def _bare(value: str) -> str:
    return value.strip().strip("\"'")
