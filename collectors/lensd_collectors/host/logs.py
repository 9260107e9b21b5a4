"""An engine's log lines as `lensd.engine.log` events, without keys, prompts and the noise of our own scrapes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.engine import Engine
from lensd_collectors.host.facts import ARGS_MARK, Facts
from lensd_collectors.host.tail import Line, Tail
from lensd_collectors.otlp import Value
from lensd_collectors.scrub import scrub

ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
NOISE: Final = re.compile(r'INFO:\s+\S+ - "[A-Z]+ /(?:health|metrics)/?(?:\?\S*)? HTTP/[\d.]+" 200\b')
LEVEL: Final = re.compile(r"(?:^|\) )(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
LOOK_BACK_BYTES: Final = 256 * 1024 * 1024
BLOCK_BYTES: Final = 1024 * 1024
LONGEST_LINE_BYTES: Final = 1024 * 1024


def last_line_with(path: Path, mark: bytes) -> str:
    """The last whole line of a file that holds `mark`, looked for backwards through at most 256 MiB; "" where there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            stop = max(0, end - LOOK_BACK_BYTES)
            after = b""
            while end > stop:
                start = max(stop, end - BLOCK_BYTES)
                file.seek(start)
                block = file.read(end - start) + after
                found = block.rfind(mark)
                line_start = block.rfind(b"\n", 0, found) + 1
                if found >= 0 and (line_start or start == 0):
                    line, newline, _ = block[line_start:].partition(b"\n")
                    return line.decode("utf-8", "replace") if newline else ""
                # the rest of a line that began further up, and no more of what was looked through
                newline_at = block.find(b"\n", max(0, found))
                after = (block if newline_at < 0 else block[: newline_at + 1])[:LONGEST_LINE_BYTES]
                end = start
    except OSError:
        pass
    return ""


class LogFollower:
    """Sends each new line of an engine's log once, and the facts that stand in it."""

    def __init__(self, engine: Engine, exporter: Exporter, facts: Facts, tail: Tail, clock_ns: Callable[[], int]) -> None:
        self._engine, self._exporter, self._facts, self._tail, self._clock_ns = engine, exporter, facts, tail, clock_ns

    def look_back(self) -> None:
        """Facts of a start that was logged before the agent ran; the lines themselves are not sent, their instant being unknown."""
        self._facts.line(last_line_with(Path(self._engine.log), ARGS_MARK.encode()))

    def follow(self) -> None:
        """Sends the lines that have come since the last call."""
        for line in self._tail.poll():
            self._send(line)

    def _send(self, line: Line) -> None:
        text = ANSI.sub("", line.text).rstrip()
        if not text or NOISE.search(text):
            return
        self._facts.line(text)
        level = LEVEL.search(text)
        attributes: dict[str, Value | None] = {
            **self._engine.attributes,
            conventions.LOG_FILE: self._engine.log,
            conventions.LOG_LINE: line.number,
        }
        self._exporter.event(
            conventions.EVENT_ENGINE_LOG,
            at_ns=self._clock_ns(),
            attributes=attributes,
            severity=level[1].lower() if level else "info",
            body=scrub(text),
        )
