"""Engine logs → events, samples, exchanges and facts, line by line: live from the agent's tail, or offline from a file of any size."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from lensd_collectors.dialects import Dialect, EventPattern
from lensd_collectors.read import life, settings
from lensd_collectors.read.access_lines import AccessLines
from lensd_collectors.read.lines import Clock, Pieces, Whole, dated, unwrap, written_by_journald
from lensd_collectors.read.served import BUFFER, LARGE, Served
from lensd_collectors.read.settings import Origin
from lensd_collectors.read.tracebacks import Loose, Part, Tracebacks, loose
from lensd_collectors.rows import ConfigFact, EngineSample, Event, HttpExchange, Instant, Point, Row
from lensd_collectors.scrub import scrub

LONGEST_LINE: Final = 2000  # characters of a line that are kept
LONGEST_READ: Final = 1 << 20  # bytes of a line that are looked at
ASKED: Final = "args"  # the sign of a start that prints what it was asked for, which may be more than it takes
ARGUMENTS: Final = "engine.args"  # the pattern whose facts are the whole of what an engine was given
_REPEATED: Final = {
    "engine.oom": 64,
    "engine.load_oom": 64,
    "engine.kv_too_small": 16,
    "engine.memory_short": 16,
    "engine.memory_profiling_error": 16,
    "engine.loading": 16,
    "engine.capturing": 16,
    "engine.kv_pool_leak": 16,
    "request.aborted": 256,
}
"""Events of which the same words are told once a start: how many of the last are remembered."""
_NOBODY: Final = "None/None"  # the process of a line that names none
_ERRORS: Final = frozenset(("ERROR", "CRITICAL"))
_ZONE: Final = re.compile(r"(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)$")
_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_IDS: Final = re.compile(r"(?P<name>\bprompt[ _]token[ _]ids: )\[(?P<ids>\d+(?:, ?\d+)*)\]")


def _counted(match: re.Match[str]) -> str:
    """How many tokens a prompt has, in place of the tokens."""
    return f"{match['name']}<{match['ids'].count(',') + 1} ids>"


class LineReader:
    """Turns the lines of one engine's log into rows; remembers only where the engine stands and what it said last.

    `feed` never raises on any text. Live, `at_us` is when the line was received, where the line itself does not say when it was
    written, and `src` is `log:<engine>/<path>@<line>`;
    offline it is None, the line's own time counts (marked `seen_at_guessed`) and `src` is `<path>:<line>`.
    """

    def __init__(self, dialect: Dialect, *, engine: str | None, path: str, host: str | None = None, clock: Clock | None = None) -> None:
        self.unread = 0  # lines that neither a frame nor a pattern of the dialect knows
        self._dialect = dialect
        self._anchors = [(anchor, pattern) for pattern in dialect.events for anchor in pattern.anchors]
        self._engine = engine
        self._path = path
        self._host = host
        self._clock = clock or Clock(None)
        self._life = life.Life()
        self._facts: dict[tuple[Origin, str], str | None] = {}  # last value of each setting
        self._stated: set[tuple[Origin, str]] = set()  # settings told since the last start
        self._given: frozenset[str] | None = None  # names of the last arguments printed
        self._told = _nothing_told()
        self._pieces, self._tracebacks = Pieces(), Tracebacks()
        self._exact: Instant | None = None  # what the present line itself says with year and zone
        self._zone = 0  # microseconds ahead of UTC of what is written without one, as other lines of the program have it
        self._said: tuple[str, str] | None = None  # day and time that stand before the present line
        self._says = False  # the present line has a time
        self._when: Instant | tuple[str, str] | None = None  # of the last line that said: its instant, or date and time to be resolved

    @property
    def path(self) -> str:
        return self._path

    @property
    def instant(self) -> Instant | None:
        """What the last line that told a time told for sure: with year and zone, or as it was received."""
        return None if isinstance(self._when, tuple) else self._when

    @property
    def near(self) -> Instant | None:
        """When the present line was seen, if only by a guess at its zone and year; None for one that tells no time."""
        return self._time(None)[0] if self._says else None

    def feed(self, line: str, *, number: int, at_us: int | None) -> list[Row]:
        """The rows of one line, mostly none or one; `number` counts lines from 1. A line in pieces gives its rows with its last."""
        self._said = written_by_journald(line)
        whole = self._pieces.take(unwrap(line), number)
        return [] if whole is None else self._whole(whole, at_us)

    def recall(self, given: Mapping[str, str]) -> None:
        """Arguments of the start before this log is read, by name: those that the next start does not print have been taken away."""
        self._given = frozenset(given)
        self._facts.update({(Origin.FLAG, name): value for name, value in given.items()})

    def rest(self, at_us: int | None = None) -> list[Row]:
        """The rows of lines whose last piece never came."""
        return [row for whole in self._pieces.rest() for row in self._whole(whole, at_us)]

    def _whole(self, whole: Whole, at_us: int | None) -> list[Row]:
        if "\n" not in whole.text:
            return self._line(whole.text, whole, at_us)
        return [row for text in whole.text.split("\n") for row in self._line(text, whole, at_us)]

    def _line(self, text: str, whole: Whole, at_us: int | None) -> list[Row]:
        if not text or text.isspace():
            return []
        text = scrub(_IDS.sub(_counted, text) if "oken" in text else text)
        frame = next((match for pattern in self._dialect.frames if (match := pattern.match(text)) is not None), None)
        bare = loose(text) if frame is None else None
        parts: Mapping[str, str | None] = bare.parts if bare is not None else frame.groupdict() if frame is not None else {}
        body = bare.text if bare is not None else frame["text"] if frame is not None else text
        self._keep_time(whole, parts)
        if bare is None:
            self._tracebacks.framed(body, _NOBODY)
        for anchor, pattern in self._anchors:
            if anchor in body and (match := pattern.regex.search(body)):
                return self._rows(pattern, match, _Seen(self, whole.number, at_us, parts), text)
        if bare is not None and not bare.framed:
            return self._unframed(bare, _Seen(self, whole.number, at_us, parts), text)
        if parts.get("level") not in _ERRORS:
            return []
        return self._unknown(body, _Seen(self, whole.number, at_us, parts), text)

    def _rows(self, pattern: EventPattern, match: re.Match[str], seen: "_Seen", line: str) -> list[Row]:
        match pattern.into:
            case "engine_samples":
                return [self._sample(pattern, match, seen), *self._points(pattern, match, seen)]
            case "http_exchanges":
                return [self._exchange(pattern, match, seen)]
            case "config_facts":
                return self._config_facts(pattern, match, seen)
            case _:
                return [*self._events(pattern, match, seen, line), *self._config_facts(pattern, match, seen)]

    def _events(self, pattern: EventPattern, match: re.Match[str], seen: "_Seen", line: str) -> list[Row]:
        name = self._life.admit(pattern.name, pattern.sign)
        self._tracebacks.close(seen.process)
        stack = self._tracebacks.stack(seen.process) if pattern.severity in ("critical", "error") else {}
        if name == life.STARTED:
            self._stated.clear()
            self._told = _nothing_told()
        groups = match.groupdict()
        ids = (groups.get("request_ids") or groups.get("request_id") or "").split(",")
        ids = [one for one in ids if self._is_new(pattern.name, _SUFFIX.sub("", one) if one else match[0])]
        if name is None or not ids:
            return []
        fields: dict[str, object] = {"sign": pattern.sign} if pattern.sign else {}
        if name != pattern.name:
            fields["said"] = pattern.name
        declared = {field.name: field.read(match) for field in pattern.fields}
        rest = {} if declared else {key: groups[key] for key in ("version", "model", "process", "signal", "processes") if groups.get(key)}
        fields |= {key: value for key, value in (declared | rest).items() if value is not None}
        if pattern.numbers:
            fields |= settings.numbers(match[pattern.numbers])
        fields |= stack
        severity = pattern.severity if name == pattern.name or name == life.START_FAILED else None
        return [self._event(name, severity, fields, seen, line, one or None) for one in ids]

    def _unknown(self, body: str, seen: "_Seen", line: str) -> list[Row]:
        """An error whose frame is known but not its meaning: kept, apart from the inside of a traceback."""
        if self._tracebacks.inside(seen.process, body, seen.number):
            return []
        self._tracebacks.told(body)
        return [self._event(life.ERROR, None, self._tracebacks.stack(seen.process), seen, line, None)]

    def _unframed(self, bare: Loose, seen: "_Seen", line: str) -> list[Row]:
        """The end of a traceback that was printed without the log's frame is an error; any other such line is not understood."""
        part = self._tracebacks.unframed(seen.process, bare.text, seen.number)
        if part is Part.OUTSIDE:
            self.unread += 1
        if part is not Part.END:
            return []
        self._tracebacks.told(bare.text)
        return [self._event(life.ERROR, "error", self._tracebacks.stack(seen.process), seen, line, None)]

    def _event(self, name: str, severity: str | None, fields: dict[str, object], seen: "_Seen", line: str, request_id: str | None) -> Event:
        if seen.guessed:
            fields = {**fields, "seen_at_guessed": True}
        return Event(
            seen_at=seen.at,
            seq=seen.number,
            host=self._host,
            engine=self._engine,
            request_id=request_id,
            name=name,
            severity=severity or seen.severity,
            fields=msgspec.json.encode(fields).decode() if fields else None,
            line=line[:LONGEST_LINE],
            src=seen.src,
        )

    def _sample(self, pattern: EventPattern, match: re.Match[str], seen: "_Seen") -> EngineSample:
        values = {field.name: field.read(match) for field in pattern.fields}
        row = EngineSample(seen_at=seen.at, seq=seen.number, engine=ranked(self._engine, match.groupdict().get("rank")), src=seen.src)
        for column, value in values.items():
            setattr(row, column, float(value) if isinstance(value, int | float) else None)
        if row.running:
            self._life.serves()
        return row

    def _points(self, pattern: EventPattern, match: re.Match[str], seen: "_Seen") -> list[Row]:
        labels = {"engine": match["rank"]} if match.groupdict().get("rank") else {}
        text = msgspec.json.encode(labels).decode()
        engine = ranked(self._engine, match.groupdict().get("rank"))
        return [
            Point(seen_at=seen.at, name=name, labels=text, value=float(match[group]), src=seen.src, engine=engine)
            for name, group in pattern.points
            if match[group] is not None
        ]

    def _exchange(self, pattern: EventPattern, match: re.Match[str], seen: "_Seen") -> HttpExchange:
        values = {field.name: field.read(match) for field in pattern.fields}
        hop = pattern.sign or self._dialect.role.value
        row = HttpExchange(seen_at=seen.at if seen.is_dated else None, engine=self._engine, hop=hop, src=seen.src)
        began, at = values.pop("began", None), values.pop("at", None)
        if isinstance(at, str):
            row.seen_at = dated(at) or row.seen_at
        for column, value in values.items():
            if value is not None and column.endswith("_s"):
                column, value = f"{column.removesuffix('_s')}_ms", round(float(value) * 1000, 3)
            if value is not None:
                setattr(row, column, value)
        started = dated(began) if isinstance(began, str) else None
        if row.duration_ms is None:
            lasted = (row.seen_at - started) / 1000 if started is not None and row.seen_at is not None else None
            row.duration_ms = lasted or row.upstream_ms  # a log whose two instants are one does not say how long it took
        return row

    def _config_facts(self, pattern: EventPattern, match: re.Match[str], seen: "_Seen") -> list[Row]:
        values: dict[str, str | None] = {}
        for field in pattern.facts:
            name = settings.name_of(field.name)
            values[name] = settings.value_of(name, field.read(match))
        if pattern.facts_of:
            form, group = pattern.facts_of
            found = settings.READERS[form](match[group])
            values |= {name: value for name, value in found.items() if form == "dict" or name in self._dialect.settings}
        values = {name: value for name, value in values.items() if value is not None}
        if pattern.into == "config_facts" and (pattern.sign or self._dialect.recognise.anywhere):  # of what does not start with the engine
            return [
                ConfigFact(seen_at=None, subject=pattern.sign or self._engine, name=name, value=value, src=seen.src, origin=Origin.FLAG)
                for name, value in values.items()
            ]
        given = pattern.name == ARGUMENTS
        if given:
            names = frozenset(values)
            values |= dict.fromkeys((self._given or names) - names)  # not printed any more: back to the default
            self._given = names
        asked = given or pattern.sign == ASKED
        return [row for name, value in values.items() if (row := self._fact(settings.origin_of(name, given=asked), name, value, seen))]

    def _fact(self, origin: Origin, name: str, value: str | None, seen: "_Seen") -> ConfigFact | None:
        """A setting as it is told once a start."""
        was = self._facts.get((origin, name))
        if (origin, name) in self._stated and was == value:
            return None
        self._facts[origin, name] = value
        self._stated.add((origin, name))
        changed = was if was != value else None
        return ConfigFact(seen_at=seen.at, subject=self._engine, name=name, value=value, was=changed, src=seen.src, origin=origin)

    def _is_new(self, name: str, key: str) -> bool:
        """False for what a program prints two or three times: by logger, process and server, or by both of a request's ids."""
        told = self._told.get(name)
        if told is None:
            return True
        if key in told:
            return False
        told.append(key)
        return True

    def _keep_time(self, whole: Whole, parts: Mapping[str, str | None]) -> None:
        date, time, own = parts.get("date"), parts.get("time"), parts.get("instant")
        self._exact = (dated(own) if own else None) or whole.at
        if own and (zone := _ZONE.search(own)) is not None:
            self._zone = (-1 if zone["sign"] == "-" else 1) * (int(zone["hours"]) * 60 + int(zone["minutes"])) * 60_000_000
        self._says = self._exact is not None or bool(time) or self._said is not None
        if self._exact is not None:
            self._when = self._exact
        elif time:
            self._when = (date or "", time)
        elif self._said is not None:
            self._when = self._said

    def _time(self, at_us: int | None) -> tuple[Instant | None, bool]:
        """When the present line was seen, and whether that is a guess: by its zone and year, or from the line before it."""
        if at_us is not None:
            return self._exact or Instant(at_us), False
        if isinstance(self._when, tuple):
            at = self._clock.at(*self._when)
            return (Instant(at - self._zone), True) if at is not None else (None, False)
        return self._when, False

    def _source(self, number: int, live: bool) -> str:
        return f"log:{self._engine or '-'}/{self._path}@{number}" if live else f"{self._path}:{number}"


def _nothing_told() -> dict[str, deque[str]]:
    """What was told since the last start: one that fails like the one before it says the same words."""
    return {name: deque(maxlen=keep) for name, keep in _REPEATED.items()}


class _Seen:
    """Where and when a line was seen, worked out when a row asks."""

    __slots__ = ("at", "guessed", "is_dated", "number", "process", "severity", "src")

    def __init__(self, reader: LineReader, number: int, at_us: int | None, parts: Mapping[str, str | None]) -> None:
        self.number = number
        self.at, self.guessed = reader._time(at_us)
        self.is_dated = not self.guessed or reader._says  # the line itself says when, if not in which zone
        self.severity = (parts.get("level") or "info").lower()
        self.process = f"{parts.get('process')}/{parts.get('pid')}"
        self.src = reader._source(number, at_us is not None)


def ranked(engine: str | None, rank: str | None) -> str | None:
    """The engine's name for one data-parallel rank: rank 0 is the engine itself, others are `<engine>/dp<rank>`."""
    if not rank or not rank.isdigit() or int(rank) == 0:
        return engine
    return f"{engine}/dp{int(rank)}" if engine else f"dp{int(rank)}"


class LogRows(msgspec.Struct, frozen=True, kw_only=True):
    """What a log gave, and how many of its lines (blank ones aside) were not understood."""

    rows: list[Row]
    unread_lines: int


class Reader(Protocol):
    """Turns lines into rows, as `LineReader` does."""

    unread: int

    @property
    def path(self) -> str: ...

    @property
    def instant(self) -> Instant | None: ...
    @property
    def near(self) -> Instant | None: ...

    def feed(self, line: str, *, number: int, at_us: int | None) -> list[Row]: ...

    def rest(self, at_us: int | None = None) -> list[Row]: ...


_OF_YAML: Final = re.compile(r"[\s+-]*[\"']?[A-Za-z][\w./-]*[\"']?\s*:(?:\s|$)")  # a key and perhaps its value


class Others(Protocol):
    """Reads what the log's own dialect does not know."""

    @property
    def of_manifests(self) -> bool:
        """Whether lines that gave nothing may be settings all the same."""
        ...

    @property
    def of_gateways(self) -> bool:
        """Whether lines that gave nothing may say what any gateway says, in a frame that is known."""
        ...

    def read(self, line: str, number: int, at: Instant | None) -> list[Row] | None: ...


def iter_log(source: Path | BinaryIO, reader: Reader, others: Others | None = None) -> Iterator[list[Row]]:
    """The rows of each line that has some, in constant memory whatever the file's size."""
    access = AccessLines(reader.path)
    with source.open("rb", BUFFER) if isinstance(source, Path) else source as file:
        served = Served() if isinstance(source, Path) and source.stat().st_size >= LARGE else None
        number = 0
        while line := file.readline(LONGEST_READ):
            number += 1
            plain = access.parse(line)
            rows = access.again(plain, number, reader.instant) if plain is not None else None
            if rows is None:
                text, before = line.decode("utf-8", "replace"), reader.unread
                rows = reader.feed(text, number=number, at_us=None)
                unknown = reader.unread > before or (
                    not rows and others is not None and (others.of_gateways or (others.of_manifests and _OF_YAML.match(text) is not None))
                )
                if (
                    unknown
                    and others is not None
                    and (found := others.read(text, number, None if reader.unread > before else reader.near)) is not None
                ):
                    rows, reader.unread = found, before
                if plain is not None and access.learn(plain, rows) and served is not None:
                    served.learn(plain.kind)
                while not line.endswith(b"\n") and (line := file.readline(LONGEST_READ)):
                    pass  # the tail of an overlong line is no line of its own
            elif served is not None and isinstance(file, BufferedReader):
                number += served.skip(file)
            if rows:
                yield rows
    if last := [*reader.rest(), *access.rest()]:
        yield last


def clock_of(path: Path, reference_us: Instant | None) -> Clock:
    """By an instant of another, dated artefact of the same incident, else by the file's last change."""
    near = reference_us if reference_us is not None else Instant(path.stat().st_mtime_ns // 1000)
    return Clock(near, dated=reference_us is not None)


def read_log(
    path: Path,
    dialect: Dialect,
    *,
    name: str | None = None,
    engine: str | None = None,
    host: str | None = None,
    reference_us: Instant | None = None,
    others: Others | None = None,
    source: BinaryIO | None = None,
    by: Callable[[Callable[[str | None], LineReader]], Reader] | None = None,
) -> LogRows:
    """All rows of a log file, or of the part of it that `source` gives. `name` is what `src` calls it.

    `reference_us`: an instant of another, dated artefact of the same incident. `others` reads the lines that the dialect does not know.
    `by`: makes the reader out of one for each engine.
    """

    def of(service: str | None) -> LineReader:
        return LineReader(dialect, engine=service or engine, path=name or path.name, host=host, clock=clock_of(path, reference_us))

    reader = by(of) if by is not None else of(None)
    rows: list[Row] = []
    for some in iter_log(source or path, reader, others):
        rows += some
    return LogRows(rows=rows, unread_lines=reader.unread)
