"""A dialect in memory: frozen, patterns compiled. `loader` makes them from the TOML files."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision


class DialectError(ValueError):
    """A dialect file says something that cannot be used; the text names file, entry and reason."""


class Role(StrEnum):
    """Which hop speaks this dialect; becomes `hop` of the exchanges it logs."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    CLIENT = "client"
    HOST = "host"  # the machine below: its GPUs


class FieldKind(StrEnum):
    INT = "int"  # thousands separators allowed
    FLOAT = "float"
    TEXT = "text"
    PERCENT = "percent"  # 58.2 -> 0.582
    GIB = "gib"  # number of GiB -> bytes
    SIZE = "size"  # "418.40 MiB" -> bytes
    PATH = "path"  # without query string
    CONST = "const"  # not a group: the value itself
    BOOL = "bool"  # true, false, yes, no, on, off
    DURATION = "duration"  # "90s", "1m30s", "250ms", bare seconds -> ms


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|μs|ms|s|m|h|d)?[a-z]*\s*")
_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7, "": 1e3}
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Field(msgspec.Struct, frozen=True):
    """One value a pattern gives: its name, how to read it, the group it stands in."""

    name: str
    kind: FieldKind
    group: str

    def read(self, match: re.Match[str]) -> int | float | str | None:
        """The value, or None where the group took no part or does not hold such a value."""
        if self.kind is FieldKind.CONST:
            return self.group
        text = match[self.group]
        if text is None:
            return None
        try:
            return _read(self.kind, text)
        except (ValueError, OverflowError, KeyError):
            return None


def _read(kind: FieldKind, text: str) -> int | float | str:
    match kind:
        case FieldKind.INT:
            return int(text.replace(",", ""))
        case FieldKind.FLOAT:
            return float(text)
        case FieldKind.PERCENT:
            return round(float(text) / 100, 6)
        case FieldKind.GIB:
            return round(float(text) * (1 << 30))
        case FieldKind.SIZE:
            number, unit = text.split()
            return round(float(number) * _UNITS[unit])
        case FieldKind.PATH:
            return text.partition("?")[0]
        case FieldKind.BOOL:
            return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}[text.lower()]
        case FieldKind.DURATION:
            return milliseconds(text)
        case FieldKind.TEXT | FieldKind.CONST:
            return text


def milliseconds(text: str) -> int | float:
    """A span of time as configurations write it, `1m30s`; without a unit it is seconds. Raises ValueError."""
    parts = _DURATION.findall(text.strip())
    if not parts or _DURATION.sub("", text.strip()):
        raise ValueError(f"{text!r} is no span of time")
    whole = sum(float(number) * _MS[unit] for number, unit in parts)
    return round(whole) if whole == round(whole) else round(whole, 6)


class Selector(msgspec.Struct, frozen=True):
    """One entry of `[metrics]`: `name`, `name{label=value}` or `sum:name`."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    total: bool = False  # add up all series of the group

    def picks(self, name: str, labels: Mapping[str, str]) -> bool:
        return name == self.name and all(labels.get(key) == value for key, value in self.labels)


class GpuSource(msgspec.Struct, frozen=True):
    """One entry of `[gpu]`: `name`, `name*factor`, or `one+other*factor` for a sum of which every part must be there."""

    names: tuple[str, ...]
    factor: float = 1.0


class GpuTable(msgspec.Struct, frozen=True):
    """What a tool or exporter calls the columns of `gpu_samples`, best name first, and what else its lines say."""

    columns: Mapping[str, tuple[GpuSource, ...]]
    labels: Mapping[str, tuple[str, ...]] = {}  # gpu, uuid, pci, host, instance, compute, pid, process, at, card -> names
    reasons: Mapping[str, tuple[str, ...]] = {}  # a clock event reason of its own -> names
    blank: float | None = None  # from here on a value means that there is none

    @property
    def names(self) -> frozenset[str]:
        """Every metric or column that is read."""
        sources = {name for wanted in self.columns.values() for source in wanted for name in source.names}
        return frozenset(sources | {name for names in self.reasons.values() for name in names})


class MetricKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class Metric(msgspec.Struct, frozen=True):
    """One name of a product's metrics, and which servers show it. A histogram's name is without `_bucket`, `_sum` and `_count`."""

    name: str
    kind: MetricKind
    since: str | None = None  # first version known to have it
    until: str | None = None  # last version that shows it unasked
    flag: str | None = None  # what brings it: a flag, a variable of the environment, a kind of model


class EventPattern(msgspec.Struct, frozen=True):
    """A line with a known meaning. A line without any of `anchors` is not tried."""

    name: str
    anchors: tuple[str, ...]
    regex: re.Pattern[str]
    into: str = "events"  # events, engine_samples, config_facts, http_exchanges
    sign: str | None = None  # tells apart the ways one thing shows itself; of an exchange its hop, of config facts their subject
    severity: str | None = None  # instead of the line's level
    fields: tuple[Field, ...] = ()
    facts: tuple[Field, ...] = ()
    facts_of: tuple[str, str] | None = None  # (form, group): dict, assignments
    numbers: str | None = None  # group whose name=number pairs become fields
    points: tuple[tuple[str, str], ...] = ()  # (metric name, group)
    like: tuple[Mapping[str, str], ...] = ()

    def search(self, text: str) -> re.Match[str] | None:
        return self.regex.search(text) if any(anchor in text for anchor in self.anchors) else None


class ErrorPattern(msgspec.Struct, frozen=True):
    """What an answer means; `status` or `path` None: whichever."""

    means: Decision
    body: re.Pattern[str]
    status: int | None = None
    path: re.Pattern[str] | None = None
    like: tuple[Mapping[str, str | int], ...] = ()

    def match(self, status: int | None, body: str, path: str | None) -> re.Match[str] | None:
        if self.status is not None and status not in (None, self.status):  # a body whose status nobody kept tells by its words alone
            return None
        if self.path is not None and not self.path.search(path or ""):
            return None
        return self.body.search(body)


class FailurePattern(msgspec.Struct, frozen=True):
    """How a client library says that it gave up (`code`), or names a limit (`code` None)."""

    regex: re.Pattern[str]
    code: str | None = None
    like: tuple[Mapping[str, str], ...] = ()


class Recognise(msgspec.Struct, frozen=True):
    """Marks by which a file of this product is known."""

    metric_prefix: str | None = None
    log: tuple[re.Pattern[str], ...] = ()
    anywhere: bool = False  # its lines stand in files of every kind: settings, notes


class Dialect(msgspec.Struct, frozen=True):
    """Everything known of one product's words. Lists are newest first; patterns are tried in order."""

    name: str
    role: Role
    recognise: Recognise
    frames: tuple[re.Pattern[str], ...] = ()
    frame_like: tuple[tuple[Mapping[str, str], ...], ...] = ()
    metrics: Mapping[str, tuple[str, ...]] = {}  # engine_samples column -> selectors, as written
    selectors: Mapping[str, tuple[Selector, ...]] = {}  # the same, read
    labels: Mapping[str, tuple[str, ...]] = {}  # model, rank -> label names
    spans: Mapping[str, tuple[str, ...]] = {}  # requests column -> span attributes
    infos: Mapping[str, tuple[str, ...]] = {}  # info gauge -> labels that are config facts
    names: Mapping[str, Metric] = {}  # every metric of the product's versions, by name
    points: frozenset[str] = frozenset()  # metric names kept as points: names of no column, and further ones worth keeping
    starts: frozenset[str] = frozenset()  # spans without a parent that stand for a start of the engine
    settings: frozenset[str] = frozenset()  # settings worth keeping out of a full dump of the configuration
    events: tuple[EventPattern, ...] = ()
    errors: tuple[ErrorPattern, ...] = ()
    failures: tuple[FailurePattern, ...] = ()
    limits: tuple[FailurePattern, ...] = ()
    statuses: tuple[FailurePattern, ...] = ()  # lines that name an answer's status: groups status, path, method, body, message
    gpu: GpuTable | None = None
    columns: Mapping[str, Mapping[str, tuple[str, ...]]] = {}  # sections of names of columns: what is measured -> names

    @property
    def frame(self) -> tuple[re.Pattern[str], ...]:
        return self.frames


class Meaning(msgspec.Struct, frozen=True):
    """What an error answer means, by which dialect, with what it names (model, limit, prompt_tokens ...) and the status it comes with."""

    decision: Decision
    dialect: str
    named: Mapping[str, str] = {}
    status: int | None = None


_WITH_FIGURES: Final = frozenset({Decision.CONTEXT_TOO_LONG, Decision.MODEL_UNKNOWN})


def classify(dialects: Iterable[Dialect], status: int | None, body: str, path: str | None = None) -> Meaning | None:
    """What a status and body mean; None where no dialect knows them. The first dialect's first match wins, but for one that says no
    more than that the body was not liked: it gives way to one that says what of it."""
    unliked: Meaning | None = None
    bare: Meaning | None = None
    for dialect in dialects:
        for pattern in dialect.errors:
            if unliked is not None and pattern.means not in _WITH_FIGURES:
                continue
            if bare is not None and pattern.means is not bare.decision:
                continue
            match = pattern.match(status, body, path)
            if match is None:
                continue
            named = {key: value for key, value in match.groupdict().items() if value is not None}
            found = Meaning(pattern.means, dialect.name, named, pattern.status)
            if bare is not None:
                if named:
                    return Meaning(bare.decision, bare.dialect, named, bare.status)
            elif pattern.means is Decision.BODY_MALFORMED:
                unliked = found
            elif named or pattern.means not in _WITH_FIGURES:
                return found
            else:  # another's pattern may read the figures in it
                bare = found
    return bare or unliked
