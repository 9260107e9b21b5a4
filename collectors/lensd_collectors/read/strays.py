"""Lines of a file that are not in the words of the rest: other products' log lines, settings, notes, pasted between tables or requests."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from lensd_collectors.dialects import Dialect, Role, load
from lensd_collectors.read.aligned import Aligned
from lensd_collectors.read.beginnings import Beginnings
from lensd_collectors.read.call_fields import instant_of
from lensd_collectors.read.counted import Counted
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.read.flags import read_flags
from lensd_collectors.read.lines import Clock, unwrap
from lensd_collectors.read.measured import Measured
from lensd_collectors.read.outline import Outline
from lensd_collectors.read.printed import Printed
from lensd_collectors.read.settings import Origin, value_of
from lensd_collectors.rows import ConfigFact, Event, Instant, Row
from lensd_collectors.scrub import scrub

_ENGINES: Final = ("kv_cache_config.", "build_config.", "engine_args.")  # settings of an engine that callers have names for too
_ARGUMENTS: Final = re.compile(
    r'^\s*\[\s*"(?:[^"]*",\s*"--|[A-Z][A-Z0-9_]*=|-m"|--|python3?")'
)  # as `docker inspect` and kubectl print them
_COMMAND: Final = re.compile(  # an engine's command line, or the flags of one without it
    r"^\s*(?:[\w .-]{1,40}: )?(?:--?[\w-]+[ =]\S.*)?(?:(?<!\S)--(?:model|model-path|max-model-len|served-model-name|max-num-seqs"
    r"|tensor-parallel-size|tp-size|gpu-memory-utilization|mem-fraction-static|context-length|ctx-size|max-running-requests"
    r"|max-concurrent-requests|parallel)[ =]"
    r"|.{0,80}\b(?:vllm serve|sglang\.launch_server|llama-server|trtllm-serve|text-generation-launcher|vllm\.entrypoints\S*)\s.*\s--?[a-z])"
)
_DIGITS: Final = re.compile(r"(?<!\d)(?:\d{1,2}|\d{4,})(?!\d)")  # three may be a status
_MOST_FORMS: Final = 4096
_LONGEST_FORM: Final = 1000
_SAID: Final = ("msg", "message", "event")
_WHEN: Final = ("time", "timestamp", "ts", "@timestamp")
_REQUESTS: Final = re.compile(r"request[-_]?timeout", re.IGNORECASE)  # what both call so
RUNNERS: Final = "supervisor"
CALLERS: Final = "callers"  # the dialect of callers' settings


class Strays:
    """Reads such lines of one file, each as the product that marks it would be read, or as one that stands anywhere.

    A log's own dialect is `but`, and is not asked again. `of_callers`: the file is a caller's, whose `timeout=` is its own.
    """

    def __init__(
        self, name: str, engine: str | None = None, *, but: str | None = None, clock: Clock | None = None, of_callers: bool = False
    ) -> None:
        self._name, self._engine, self._but, self._clock = name, engine, but, clock
        self._places = tuple(dialect for dialect in anywhere() if of_callers or dialect.name != CALLERS)
        self._readers: dict[str, LineReader] = {}
        self._outline = Outline()
        self._printed = Printed(name, engine, clock)
        self._noted = (Measured(name, engine), Beginnings(name, engine))
        self._aligned, self._counted = Aligned(name, engine, clock), Counted(name, engine)
        self._spoken: Dialect | None = None
        self._nothing: set[str] = set()  # forms of a log's lines that gave nothing: most of what a program says it says often

    @property
    def of_manifests(self) -> bool:
        """Whoever runs an engine prints its manifest between the lines of its state."""
        return self._but == RUNNERS

    @property
    def of_gateways(self) -> bool:
        """What a gateway logs of its calls is worded by whoever runs it."""
        return self._but is not None and load()[self._but].role is Role.GATEWAY

    def read(self, line: str, number: int, at: Instant | None, *, apart: bool = False) -> list[Row] | None:
        """The rows of a line, at `at` where it has no instant of its own; None for a line of no product.

        `apart`: its settings have been asked for before.
        """
        if ("|" in line or "--+--" in line) and (rows := self._printed.read(line, number)) is not None:
            return rows
        if self._but is None and (rows := self._aligned.read(line, number)) is not None:
            return rows
        if (rows := self._counted.read(line, number, at)) is not None:
            return rows
        for reader in self._noted if self._but is None else ():  # a program's log is nobody's notes
            if (rows := reader.read(line, number)) is not None:
                return rows
        form = _DIGITS.sub("0", line) if self._but is not None and len(line) < _LONGEST_FORM else ""
        if form and form in self._nothing:
            return None
        rows = self._read(line, number, apart=apart)
        if not rows and form and len(self._nothing) < _MOST_FORMS and not line[:1].isspace():
            self._nothing.add(form)
        for row in rows or ():
            if at is not None and getattr(row, "seen_at", at) is None:
                row.seen_at = at  # type: ignore[attr-defined]
        counted = self._counted.hear(line, number, at, rows or ())
        return [*rows, *counted] if rows and counted else rows

    def _read(self, line: str, number: int, *, apart: bool) -> list[Row] | None:
        text = unwrap(line).text
        rows = self._marked(line, text, number)
        if not rows and (_ARGUMENTS.match(text) or _COMMAND.match(text)) and (given := read_flags(text, name="", engine=self._engine).rows):
            for row in given:
                row.src = f"{self._name}:{number}"  # type: ignore[attr-defined]
            rows = [*given, *(row for row in self._anywhere(line, self._outline.of(text), number) if isinstance(row, Event))]
        if not rows and (found := self._anywhere(line, self._outline.of(text), number)):
            rows = [row for row in found if not (apart and isinstance(row, ConfigFact))]
        return rows

    def record(self, document: Mapping[str, Any], line: str, number: int) -> list[Row]:
        """The events of a program's record, read as its message and after that its other keys."""
        said = next((value for key in _SAID if isinstance(value := document.get(key), str)), None)
        if said is None:
            return []
        pairs = (f"{key}={value}" for key, value in document.items() if value != said and isinstance(value, str | int | float))
        text = " ".join((said, *pairs))[:_LONGEST_FORM]
        at = next((at for key in _WHEN if (at := instant_of(document.get(key), None)) is not None), None)
        rows: list[Row] = []
        for dialect in self._places:
            if dialect.name != CALLERS and any_anchor(dialect.name).search(text) is not None:
                rows += self._reader(dialect).feed(text, number=number, at_us=None)
        told = [row for row in rows if isinstance(row, Event)]
        for event in told:
            event.seen_at, event.line = at or event.seen_at, scrub(line.strip())[:_LONGEST_FORM]
        return list(told)

    def settings(self, line: str, number: int) -> list[Row]:
        """The settings that a line names, whatever else it says."""
        text = line if line[:1] == "{" else unwrap(line).text
        return [row for row in self._anywhere(line, self._outline.of(text), number) if isinstance(row, ConfigFact)]

    def _marked(self, line: str, text: str, number: int) -> list[Row] | None:
        if any_mark().search(text) is None:
            dialect = self._spoken if self._spoken is not None and text[:1].isspace() else None  # of a traceback, say
        else:
            dialect = next((one for one in load().values() if any(mark.search(text) for mark in one.recognise.log)), None)
            self._spoken = dialect
        if dialect is None or dialect.name == self._but:
            return None
        reader = self._reader(dialect)
        before = reader.unread
        rows = reader.feed(line, number=number, at_us=None)
        return None if reader.unread > before else rows

    def _anywhere(self, line: str, outlined: list[str], number: int) -> list[Row]:
        """Of each dialect that stands anywhere the first form of the line that it knows."""
        rows: list[Row] = []
        for dialect in self._places:
            if dialect.name == CALLERS and any(text.startswith(_ENGINES) for text in outlined):
                continue
            texts = [text for text in (line, *outlined) if any_anchor(dialect.name).search(text) is not None]
            found = next((some for text in texts if (some := self._reader(dialect).feed(text, number=number, at_us=None))), [])
            rows += [row for row in found if not isinstance(row, ConfigFact)]
            rows += self._facts(dialect, texts, number)
        of_hop = any(isinstance(row, ConfigFact) and row.subject == "gateway" and (row.name or "").endswith("timeout_ms") for row in rows)
        if of_hop and _REQUESTS.search(line) is None:  # a route's own `timeout:` is none of a caller's
            rows = [row for row in rows if not (isinstance(row, ConfigFact) and row.name == "client_read_timeout_ms")]
        return rows

    def _facts(self, dialect: Dialect, texts: list[str], number: int) -> list[Row]:
        """All settings that a line names, each as the first of its forms has it."""
        told: dict[tuple[str | None, str], Row] = {}
        for text in map(scrub, texts):
            for pattern in dialect.events:
                match = pattern.search(text) if pattern.into == "config_facts" else None
                for field in pattern.facts if match is not None else ():
                    value = value_of(field.name, field.read(match)) if match is not None else None
                    subject = pattern.sign or self._engine
                    if value is not None and (subject, field.name) not in told:
                        src = f"{self._name}:{number}"
                        told[subject, field.name] = ConfigFact(subject=subject, name=field.name, value=value, src=src, origin=Origin.FLAG)
        return list(told.values())

    def _reader(self, dialect: Dialect) -> LineReader:
        if dialect.name not in self._readers:
            self._readers[dialect.name] = LineReader(dialect, engine=self._engine, path=self._name, clock=self._clock)
        return self._readers[dialect.name]


@cache
def any_mark() -> re.Pattern[str]:
    """Found in each line that bears a product's mark."""
    return re.compile("|".join(f"(?:{mark.pattern})" for dialect in load().values() for mark in dialect.recognise.log))


@cache
def anywhere() -> tuple[Dialect, ...]:
    return tuple(dialect for dialect in load().values() if dialect.recognise.anywhere)


@cache
def any_anchor(name: str) -> re.Pattern[str]:
    """Found in each line that a pattern of the dialect may know."""
    anchors = {anchor for event in load()[name].events for anchor in event.anchors}
    return re.compile("|".join(map(re.escape, sorted(anchors))) or r"(?!)")
