"""One request or incident as a zip that can be mailed: the rows around it, log lines, settings, and nothing that must not leave.

`manifest.json` says what it is about, of which versions, over which time, how many rows each table has and how often what was taken
out. `tables/<table>.jsonl` holds rows as `lensd_collectors.rows` has them (instants in microseconds), `logs/<engine>.log` the lines of
its events, `settings.txt` what the engine was set to. `lensd triage` reads it and judges it as the daemon did.
"""

import io
import json
import platform
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal

import duckdb
import msgspec
from lensd_collectors.rows import TABLES, ConfigFact, Event, HttpExchange, RequestRow, Row
from lensd_collectors.scrub import CONTENT, KEY, scrub

from lensd.diagnosis.scope import AFTER, BEFORE, BY_ENGINE, DECIDED, instant, microseconds
from lensd.receive.scrub import carries_content, is_content
from lensd.records import Incident, Record
from lensd.store.interface import Cursor
from lensd.store.queries import structs
from lensd.timeline.limits import Limits

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
MOST_ROWS: Final = 200_000  # of a table, the newest
LOOKS_BACK: Final[Mapping[str, timedelta]] = {
    # how much earlier than the scope rules may look, or trends must be seen from
    "events": timedelta(days=1),
    "engine_samples": timedelta(hours=6),
    "gpu_samples": timedelta(hours=6),
    "requests": timedelta(hours=1),
    "spans": timedelta(hours=1),
}
_JSON_COLUMNS: Final = frozenset({"attributes", "fields", "labels", "resource"})
_PEER: Final = "peer"
_PLACES: Final = frozenset({_PEER, "src", "trace_id", "span_id", "parent_span_id"})
"""Columns of which the first has a name of its own, and the others are made by us or are digits."""
_REMEMBERED: Final = 100_000


class About(Record, frozen=True, kw_only=True):
    """What a bundle is of. `request_key` or `incident`; instants in microseconds since the epoch."""

    kind: Literal["request", "incident"]
    request_key: int | None = None
    request_id: str | None = None
    incident: Incident | None = None
    engine: str | None = None
    models: tuple[str, ...] = ()
    gpu: str | None = None
    from_at: int
    to_at: int


class Manifest(Record, frozen=True, kw_only=True):
    lensd_bundle: int = FORMAT
    about: About
    made_at: int
    versions: dict[str, str]
    tables: dict[str, int]
    scrubbed: dict[str, int]
    params: dict[str, dict[str, Any]]
    limits: Limits


def of_request(cursor: Cursor, row: Mapping[str, Any], params: Mapping[str, Mapping[str, Any]], limits: Limits, now: int) -> bytes:
    """The zip of a row of `requests`, as known at `now`."""
    start = microseconds(row["started_at"])
    end = microseconds(row["ended_at"]) if row["ended_at"] is not None else now
    about = About(
        kind="request",
        request_key=row["request_key"],
        request_id=row["request_id"],
        engine=row["engine"],
        models=tuple(m for m in dict.fromkeys((row["served_model"], row["model"])) if m),
        from_at=start - _us(BEFORE),
        to_at=min(now, end + _us(AFTER)),
    )
    return _packed(cursor, about, row["trace_id"], params, limits, now)


def of_incident(cursor: Cursor, incident: Incident, params: Mapping[str, Mapping[str, Any]], limits: Limits, now: int) -> bytes:
    """The zip of an incident, from ten minutes before it opened to when it was last seen."""
    about = About(
        kind="incident",
        incident=incident,
        engine=incident.engine,
        models=(incident.model,) if incident.model is not None else (),
        gpu=incident.gpu,
        from_at=incident.opened_at - _us(BEFORE),
        to_at=min(now, incident.last_seen_at + _us(AFTER)),
    )
    return _packed(cursor, about, None, params, limits, now)


def _packed(cursor: Cursor, about: About, trace: str | None, params: Mapping[str, Mapping[str, Any]], limits: Limits, now: int) -> bytes:
    clean = _Clean()
    rows = {table: [clean.row(row) for row in _rows(cursor, table, about, trace)] for table in _packed_tables()}
    about = clean.about(about)
    manifest = Manifest(
        about=about,
        made_at=now,
        versions={"lensd": _version(), "python": platform.python_version(), "duckdb": duckdb.__version__},
        tables={table: len(some) for table, some in rows.items() if some},
        scrubbed=dict(clean.counts),
        params={name: dict(given) for name, given in params.items()},
        limits=limits,
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        for table, some in rows.items():
            if some:
                archive.writestr(f"tables/{table}.jsonl", b"".join(msgspec.json.encode(_known(row)) + b"\n" for row in some))
        for name, lines in _logs(rows["events"]).items():
            archive.writestr(f"logs/{name}.log", "".join(f"{line}\n" for line in lines))
        archive.writestr("settings.txt", "".join(_settings(rows["config_facts"])))
    return out.getvalue()


def _packed_tables() -> list[str]:
    """Those that know callers by their addresses come first, so that no line that names one is looked at before."""
    first = ["requests", "http_exchanges"]
    return [*first, *(table for table in TABLES if table not in (*DECIDED, *first))]


def _rows(cursor: Cursor, table: str, about: About, trace: str | None) -> list[Row]:
    """The newest rows that a rule judging it may look at, oldest first."""
    at = "started_at" if table in ("requests", "spans") else "seen_at"
    values: dict[str, Any] = {"to": instant(about.to_at)}
    conditions = [f"({at} is null or {at} <= $to)"]
    if table != "config_facts":  # a setting holds until it is set anew
        values["from"] = instant(about.from_at) - LOOKS_BACK.get(table, timedelta())
        conditions.append(f"({at} is null or {at} >= $from)")
    if about.engine is not None and table in (*BY_ENGINE, "requests"):
        values["engine"] = about.engine
        conditions.append("(engine is null or engine = $engine)")
    chosen = " and ".join(conditions)
    if table == "requests" and about.request_key is not None:
        values["key"] = about.request_key
        chosen = f"({chosen}) or request_key = $key"
    if table == "spans" and trace is not None:
        values["trace"] = trace
        chosen = f"({chosen}) or trace_id = $trace"
    found = structs(cursor, TABLES[table], f"select * from {table} where {chosen} order by {at} desc limit {MOST_ROWS}", values)
    return found[::-1]


class _Clean:
    """Takes keys, prompts and the addresses of callers out of rows, and counts what it took."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(keys=0, content=0, peers=0)
        self._peers: dict[str, str] = {}
        self._known: dict[tuple[bool, str], tuple[str, Counter[str]]] = {}  # of the texts seen, which most rows share

    def row(self, row: Row) -> Row:
        if isinstance(row, HttpExchange | RequestRow) and row.peer is not None:
            row.peer = self._named(row.peer)
        for name in row.__struct_fields__:
            value = getattr(row, name)
            if isinstance(value, str) and name not in _PLACES:
                setattr(row, name, self._once(name in _JSON_COLUMNS, value))
        if isinstance(row, Event) and carries_content(row.name or ""):
            self.counts["content"] += 1
            row.line = row.fields = None
        return row

    def about(self, about: About) -> About:
        """Ids are what callers chose, and stay the same text as in the rows."""
        cleaned: About = msgspec.convert(self._value(msgspec.to_builtins(about)), About)
        return cleaned

    def _named(self, peer: str) -> str:
        """A caller keeps one name throughout, so that what it did again is still seen to be the same one's."""
        if peer not in self._peers:
            self._peers[peer] = f"peer-{len(self._peers) + 1}"
            self.counts["peers"] += 1
        return self._peers[peer]

    def _once(self, is_json: bool, text: str) -> str:
        """Looked at once a distinct text, counted each time."""
        known = self._known.get((is_json, text))
        if known is None:
            before = self.counts.copy()
            cleaned = self._json(text) if is_json else self._text(text)
            if len(self._known) < _REMEMBERED:
                self._known[is_json, text] = (cleaned, self.counts - before)
            return cleaned
        self.counts.update({name: count for name, count in known[1].items() if name != "peers"})
        return known[0]

    def _text(self, text: str) -> str:
        cleaned = scrub(text)
        self.counts["keys"] += cleaned.count(KEY) - text.count(KEY)
        self.counts["content"] += cleaned.count(CONTENT) - text.count(CONTENT)
        for address in re.findall(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])", cleaned) if self._peers else ():
            if address in self._peers:
                cleaned = cleaned.replace(address, self._peers[address])
        return cleaned

    def _json(self, text: str) -> str:
        try:
            value = json.loads(text)
        except ValueError:
            return self._text(text)
        cleaned = self._value(value)
        return text if cleaned == value else json.dumps(cleaned, ensure_ascii=False)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if not isinstance(value, dict):
            return value
        gone = {name for name in value if is_content(name)}
        self.counts["content"] += len(gone)
        return {name: self._member(name, inner) for name, inner in value.items() if name not in gone}

    def _member(self, name: str, value: Any) -> Any:
        return self._named(value) if name == _PEER and isinstance(value, str) else self._value(value)


def _logs(events: Sequence[Row]) -> dict[str, list[str]]:
    """The lines that the events were read from, by engine."""
    logs: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, Event) and event.line:
            at = f"{instant(event.seen_at).isoformat(timespec='milliseconds')}Z " if event.seen_at is not None else ""
            logs.setdefault(re.sub(r"[^\w.-]", "-", event.engine or "unnamed"), []).append(f"{at}{event.line}")
    return logs


def _settings(facts: Iterable[Row]) -> Iterator[str]:
    for fact in facts:
        if isinstance(fact, ConfigFact):
            was = f" (was {fact.was})" if fact.was is not None else ""
            yield f"{fact.subject or '-'} {fact.name}={fact.value}{was}\n"


def _known(row: Row) -> dict[str, Any]:
    return {name: value for name in row.__struct_fields__ if (value := getattr(row, name)) is not None}


def _us(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def _version() -> str:
    import importlib.metadata

    return importlib.metadata.version("lensd")
