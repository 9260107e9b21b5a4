"""What a store knows of the memory of each card, in steps of time: the device, its processes, and what the engines on it have told."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lensd_collectors import conventions as c

from lensd.memory.composition import FACTS, Device, Holder, Known, holder
from lensd.store import queries
from lensd.store.cards import in_order
from lensd.store.interface import Cursor

S: Final = 1_000_000
LEAST_STEP_US: Final = 10 * S  # what agents tell of unchanged processes and what engines log comes no more often
MOST_STEPS: Final = 240
FRESH_US: Final = 60 * S  # for so long what was told last still holds
WORLD: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
MARKS: Final = {c.EVENT_CONFIG_CHANGED: "config", "engine.started": "start", "engine.oom": "oom"}
MOST_MARKS: Final = 200

_DEVICES = """
select epoch_us(time_bucket(to_microseconds($step), seen_at)) as at, host, gpu, max(used_bytes) as used_bytes,
       arg_max(free_bytes, used_bytes) as free_bytes, max(total_bytes) as total_bytes, arg_max(reserved_bytes, used_bytes) as reserved_bytes
from gpu_samples where seen_at between make_timestamp($since) and make_timestamp($until) and gpu is not null and pid is null
group by all order by 1
"""
_PROCESSES = """
select epoch_us(time_bucket(to_microseconds($step), seen_at)) as at, host, gpu, pid, max(pid_used_bytes) as used_bytes,
       arg_max(pid_engine, seen_at) as engine
from gpu_samples where seen_at between make_timestamp($since) and make_timestamp($until) and gpu is not null and pid is not null
group by all order by 1
"""
_ENGINES = """
select epoch_us(time_bucket(to_microseconds($step), seen_at)) as at, engine, max(kv_usage) as kv_usage
from engine_samples where seen_at between make_timestamp($since) and make_timestamp($until) and engine is not null and kv_usage is not null
group by all order by 1
"""
_FACTS = """
select coalesce(epoch_us(seen_at), 0) as at, subject, name, value, coalesce(origin, 'flag') as origin
from config_facts
where name in (select unnest($names)) and subject is not null and (seen_at is null or seen_at <= make_timestamp($until))
qualify seen_at > make_timestamp($since)
     or row_number() over (partition by subject, name, origin, seen_at > make_timestamp($since) order by seen_at desc nulls last) = 1
order by 1
"""
_MARKS = f"""
select epoch_us(seen_at) as at, host, engine, name, fields, line
from events
where name in (select unnest($names)) and seen_at between make_timestamp($since) and make_timestamp($until)
  and ($engine is null or engine = $engine)
order by seen_at desc, seq desc limit {MOST_MARKS}
"""
_BEST = ("measured", "effective", "derived", "flag", "model")


class Moment(NamedTuple):
    """A card in one step that begins at `at`, in microseconds since the epoch."""

    at: int
    known: Known


class Card(NamedTuple):
    """A card with the engines on it, or (`gpu` None) an engine whose card nobody watches.

    `assumed`: that the engines are on it is not seen by a process of theirs, but follows from there being no other engine and just as
    many cards as it has ranks.
    """

    host: str | None
    gpu: str | None
    engines: tuple[str, ...]
    assumed: bool
    moments: tuple[Moment, ...]


def step_us(since: int, until: int) -> int:
    """Length of a step, in microseconds: whole seconds, at most MOST_STEPS of them from `since` to `until`."""
    return max(LEAST_STEP_US, -(-(until - since) // (MOST_STEPS * S)) * S)


def cards(cursor: Cursor, engine: str | None, since: int, until: int) -> list[Card]:
    """Every card that was seen in that time and every engine on none, or those of one engine; by host and GPU.

    A step in which a card was not sampled is left out. Where an engine has not said how full its cache is for FRESH_US, because it
    does not answer or nobody asks, nothing of it is known.
    """
    told = _Told.read(cursor, since, until)
    found = [*(_card(told, *where) for where in sorted(told.devices, key=in_order)), *_cardless(told)]
    return [card for card in found if card.moments and (engine is None or engine in card.engines)]


def marks(cursor: Cursor, engine: str | None, since: int, until: int) -> list[dict[str, Any]]:
    """Changes of configuration, starts and out-of-memory errors in that time, oldest first, the last MOST_MARKS of them.

    `at` in microseconds since the epoch, `kind` config, start or oom; `fields` and `line` as the event has them.
    """
    found = queries.rows(cursor, _MARKS, {"names": list(MARKS), "since": since, "until": until, "engine": engine})
    return [row | {"kind": MARKS[row.pop("name")]} for row in reversed(found)]


_Place = tuple[str | None, str]


@dataclass(slots=True)
class _Told:
    """The rows of a time, by what they are of; each list in the order of time."""

    step: int
    devices: dict[_Place, list[tuple[int, Device]]] = field(default_factory=dict)
    processes: dict[_Place, list[tuple[int, int, int | None, str | None]]] = field(default_factory=dict)  # at, pid, bytes, engine
    usages: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # by engine
    facts: dict[str, list[tuple[int, str, str | None, str]]] = field(default_factory=dict)  # by engine: at, name, value, origin

    @classmethod
    def read(cls, cursor: Cursor, since: int, until: int) -> "_Told":
        told = cls(step_us(since, until))
        asked = {"step": told.step, "since": since, "until": until}
        for row in queries.rows(cursor, _DEVICES, asked):
            sizes = {name: row[name] for name in ("used_bytes", "free_bytes", "total_bytes", "reserved_bytes")}
            told.devices.setdefault((row["host"], row["gpu"]), []).append((row["at"], Device(**sizes)))
        for row in queries.rows(cursor, _PROCESSES, asked):
            process = (row["at"], row["pid"], row["used_bytes"], row["engine"])
            told.processes.setdefault((row["host"], row["gpu"]), []).append(process)
        for row in queries.rows(cursor, _ENGINES, asked):
            told.usages.setdefault(row["engine"], []).append((row["at"], row["kv_usage"]))
        for row in queries.rows(cursor, _FACTS, {"names": [*FACTS, *WORLD], "since": since, "until": until}):
            told.facts.setdefault(row["subject"], []).append((row["at"], row["name"], row["value"], row["origin"]))
        return told

    def engines_of(self, place: _Place) -> tuple[tuple[str, ...], bool]:
        """The engines with a process on that card, or the one engine there is where its ranks are as many as the cards; and whether so."""
        seen = {engine for _, _, _, engine in self.processes.get(place, ()) if engine is not None}
        if seen:
            return tuple(sorted(seen)), False
        anywhere = any(engine for rows in self.processes.values() for _, _, _, engine in rows)
        if anywhere or len(self.usages) != 1:
            return (), False
        [only] = self.usages
        return ((only,), True) if self._ranks(only) == len(self.devices) else ((), False)

    def _ranks(self, engine: str) -> int:
        facts = _in_force(self.facts.get(engine, []))
        ranks = 1
        for name in WORLD:
            text = facts.get(name, "1")
            ranks *= int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1
        return ranks


def _card(told: _Told, host: str | None, gpu: str) -> Card:
    engines, assumed = told.engines_of((host, gpu))
    holders = {name: _Holders(told, name) for name in engines}
    processes = _Processes(told.processes.get((host, gpu), []), fresh_us=2 * told.step)
    moments = []
    for at, device in told.devices[host, gpu]:
        end = at + told.step
        held = tuple(of.until(end) for of in holders.values())
        moments.append(Moment(at, Known(device=device, holders=held, others_bytes=processes.others(end, engines))))
    return Card(host, gpu, engines, assumed, tuple(moments))


def _cardless(told: _Told) -> Iterator[Card]:
    """The engines that are on no card which anybody watches."""
    placed = {engine for place in told.devices for engine in told.engines_of(place)[0]}
    for name in sorted(set(told.usages) - placed):
        holders = _Holders(told, name)
        moments = (Moment(at, Known(holders=(holders.until(at + told.step),))) for at, _ in told.usages[name])
        yield Card(None, None, (name,), False, tuple(moments))


class _Holders:
    """What an engine holds from step to step; to be asked in the order of time."""

    def __init__(self, told: _Told, engine: str) -> None:
        self._engine = engine
        self._usages, self._facts = told.usages.get(engine, []), told.facts.get(engine, [])
        self._usage: tuple[int, float] | None = None
        self._read, self._known = 0, 0

    def until(self, end: int) -> Holder:
        """What was told by then."""
        while self._read < len(self._usages) and self._usages[self._read][0] < end:
            self._usage = self._usages[self._read]
            self._read += 1
        while self._known < len(self._facts) and self._facts[self._known][0] < end:
            self._known += 1
        if self._usage is None or end - self._usage[0] > FRESH_US:
            return Holder(engine=self._engine)
        return holder(self._engine, _in_force(self._facts[: self._known]), self._usage[1])


class _Processes:
    """The processes on a card from step to step; to be asked in the order of time."""

    def __init__(self, rows: list[tuple[int, int, int | None, str | None]], fresh_us: int) -> None:
        self._rows, self._read, self._fresh_us = rows, 0, fresh_us
        self._last: dict[int, tuple[int, int | None, str | None]] = {}

    def others(self, end: int, engines: tuple[str, ...]) -> int | None:
        """Bytes of processes of none of these engines; None where no processes are told, or not which are the engines'."""
        while self._read < len(self._rows) and self._rows[self._read][0] < end:
            at, pid, used, engine = self._rows[self._read]
            self._last[pid] = (at, used, engine)
            self._read += 1
        self._last = {pid: last for pid, last in self._last.items() if end - last[0] <= self._fresh_us}
        if not self._last or (engines and not any(engine in engines for _, _, engine in self._last.values())):
            return None
        sizes = [used for _, used, engine in self._last.values() if engine not in engines]
        return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)


def _in_force(facts: list[tuple[int, str, str | None, str]]) -> Mapping[str, str]:
    """The last value of each name, of the origin that comes nearest to what the engine has."""
    best: dict[str, tuple[int, str | None]] = {}
    for _, name, value, origin in facts:
        rank = _BEST.index(origin) if origin in _BEST else len(_BEST)
        if name not in best or rank <= best[name][0]:
            best[name] = (rank, value)
    return {name: value for name, (_, value) in best.items() if value is not None}
