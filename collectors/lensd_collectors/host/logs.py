"""Log lines of engines and proxies as `lensd.engine.log` events, without keys, prompts and the noise of probes."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.config import AccessLog
from lensd_collectors.host.engine import Engine
from lensd_collectors.host.facts import ARGS_MARK, Facts
from lensd_collectors.host.line import Line, Source
from lensd_collectors.otlp import Value
from lensd_collectors.read.lines import Pieces, unwrap
from lensd_collectors.scrub import scrub

PROBE: Final = re.compile(r'"(?:GET|HEAD) (?P<path>/(?:healthz?|health/\w+|livez|readyz|metrics|ping))/?(?:\?\S*)? HTTP/[\d.]+" 200\b')
PROBE_EVERY_S: Final = 60.0
MOST_BODY_CHARS: Final = 16 * 1024
LEVEL: Final = re.compile(r"(?:^|\) )(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
LOOK_BACK_BYTES: Final = 256 * 1024 * 1024
BLOCK_BYTES: Final = 1024 * 1024
LONGEST_LINE_BYTES: Final = 1024 * 1024


def last_line_with(path: Path, mark: bytes) -> str:
    """The last whole line of a file that holds `mark`, looked for backwards through at most 256 MiB; "" where there is none."""
    if not path.is_file():  # to open a pipe is to wait for its writer
        return ""
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


class Probes:
    """Of health checks and scrapes that are answered as ever, the first is told and then one a minute; nothing else is a probe."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._told_at: dict[str, float] = {}

    def is_noise(self, text: str) -> bool:
        match = PROBE.search(text)
        if match is None:
            return False
        now, told_at = self._clock_s(), self._told_at.get(match["path"])
        if told_at is not None and abs(now - told_at) < PROBE_EVERY_S:
            return True
        self._told_at[match["path"]] = now
        return False


class LineSender:
    """Sends lines as their program wrote them, with their own instant where they have one: wrappers off, pieces joined, secrets out."""

    def __init__(self, exporter: Exporter, attributes: Mapping[str, str], name: str, clock_ns: Callable[[], int]) -> None:
        self._exporter, self._attributes, self._name, self._clock_ns = exporter, attributes, name, clock_ns
        self._pieces, self._probes = Pieces(), Probes(lambda: clock_ns() / 1e9)

    def send(self, line: Line) -> str:
        """Returns what the line said; "" where that is nothing, noise, or not whole yet."""
        whole = self._pieces.take(unwrap(line.text), line.number)
        text = whole.text.rstrip()[:MOST_BODY_CHARS] if whole is not None else ""
        if whole is None or not text or self._probes.is_noise(text):
            return ""
        level = LEVEL.search(text)
        attributes: dict[str, Value | None] = {
            **self._attributes,
            conventions.LOG_FILE: line.file or self._name,
            conventions.LOG_LINE: whole.number,
        }
        self._exporter.event(
            conventions.EVENT_ENGINE_LOG,
            at_ns=self._clock_ns() if whole.at is None else whole.at * 1000,
            attributes=attributes,
            severity=level[1].lower() if level else "info",
            body=scrub(text),
        )
        return text


class LogFollower:
    """Sends each new line of an engine's log once, and the facts that stand in it."""

    def __init__(self, engine: Engine, exporter: Exporter, facts: Facts, source: Source, clock_ns: Callable[[], int]) -> None:
        self._facts, self._source = facts, source
        self._sender = LineSender(exporter, engine.attributes, engine.log, clock_ns)

    def look_back(self) -> None:
        """Facts of a start that was logged before the agent ran; the lines themselves are not sent."""
        if self._source.file is not None:
            for text in unwrap(last_line_with(self._source.file, ARGS_MARK.encode())).text.split("\n"):
                self._facts.line(text)

    def follow(self) -> None:
        """Sends the lines that have come since the last call."""
        for line in self._source.poll():
            for text in self._sender.send(line).split("\n"):
                self._facts.line(text)


class AccessFollower:
    """Sends each new line of a proxy's access log once; `kind` is the dialect that reads it."""

    def __init__(self, access: AccessLog, exporter: Exporter, source: Source, clock_ns: Callable[[], int]) -> None:
        about = {str(conventions.ENGINE_KIND): access.kind}
        if access.engine:
            about[conventions.ENGINE] = access.engine
        self._source, self._sender = source, LineSender(exporter, about, access.log, clock_ns)

    def follow(self) -> None:
        for line in self._source.poll():
            self._sender.send(line)
