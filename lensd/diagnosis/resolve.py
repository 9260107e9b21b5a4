"""What a cite points at: the exact text behind `src#column`, and where that stands.

Offline a reader goes back to the file. Live nothing but the store is left: an event keeps its scrubbed line, a sample is
rendered as `name{labels} value` under the engine's own metric name where the store has it, a request or span as `column=value`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from lensd_collectors.rows import TABLES

from lensd.diagnosis.scope import instant
from lensd.records import Evidence, Finding
from lensd.store.catalog import HELD
from lensd.store.interface import Cursor

Resolver = Callable[[str, str], Evidence | None]
"""`src` and column to quote and place (the text is left empty); None where the source is not there."""

SAMPLES: Final = ("engine_samples", "gpu_samples")
LABELS: Final[Mapping[str, tuple[str, ...]]] = {"engine_samples": ("engine", "model"), "gpu_samples": ("host", "gpu", "pid", "process")}
ORDER: Final = ("engine_samples", "events", "gpu_samples", "config_facts", "http_exchanges", "points", "spans")
LABEL_OF: Final = {"model": "model_name"}


def resolve(findings: Iterable[Finding], resolver: Resolver) -> list[Finding]:
    """The findings with quotes: each `src#column` becomes the text and the place it stands for, or the place alone."""
    findings = list(findings)
    if isinstance(resolver, LiveCites):
        resolver.look_up(line.source for finding in findings for line in finding.evidence if line.source is not None)
    return [
        msgspec.structs.replace(finding, evidence=tuple(resolve_line(line, resolver) for line in finding.evidence)) for finding in findings
    ]


def resolve_line(line: Evidence, resolver: Resolver) -> Evidence:
    if line.source is None or "#" not in line.source:
        return line
    src, _, column = line.source.rpartition("#")
    found = resolver(src, column)
    if found is None:
        return msgspec.structs.replace(line, source=src)
    return msgspec.structs.replace(line, quote=found.quote, source=found.source or src)


class LiveCites:
    """Resolver over a store's cursor, looking within an extent (microseconds since the epoch) where it is given.

    `metric_names` says what an engine calls an `engine_samples` column, newest first; without them the column's name stands.
    """

    def __init__(
        self,
        cursor: Cursor,
        from_us: int | None = None,
        to_us: int | None = None,
        metric_names: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._cursor = cursor
        self._bounds = (instant(from_us), instant(to_us)) if from_us is not None and to_us is not None else None
        self._metric_names = metric_names or {}
        self._found: dict[tuple[str, str], tuple[str, dict[str, Any]] | None] = {}
        self._said: dict[tuple[str, str], Evidence | None] = {}

    def resolve(self, line: Evidence) -> Evidence:
        return resolve_line(line, self)

    def look_up(self, sources: Iterable[str]) -> None:
        """Finds what these cites (`src#column`) point at, one query a table however many they are."""
        cites = dict.fromkeys(source.rpartition("#") for source in sources if "#" in source)
        left = [(src, column) for src, _, column in cites if (src, column) not in self._found]
        for table in ("requests", *ORDER):
            here = [(src, column) for src, column in left if column in TABLES[table].__struct_fields__]
            if here:
                rows = self._rows(table, {src for src, _ in here}, columns=[column for _, column in here] if table == "requests" else ())
                self._found.update({(src, column): (table, rows[src]) for src, column in here if src in rows})
                left = [cite for cite in left if cite not in self._found]
        for name in dict.fromkeys(column for _, column in left):  # no column: the name of a fact, of which one line may tell many
            rows = self._rows("config_facts", {src for src, column in left if column == name}, "list_contains($names, name)", (name,))
            self._found.update({(src, name): ("config_facts", row) for src, row in rows.items()})
        self._found.update({cite: None for cite in left if cite not in self._found})

    def __call__(self, src: str, column: str) -> Evidence | None:
        if (src, column) not in self._said:
            self.look_up([f"{src}#{column}"])
            self._said[src, column] = self._say(src, column)
        return self._said[src, column]

    def _say(self, src: str, column: str) -> Evidence | None:
        found = self._found[src, column]
        if found is None:
            return None
        table, row = found
        value = row.get(column)
        if table == "events":
            quote = row["line"] or _event(row)
        elif table in SAMPLES:
            quote = self._point(src, column) or _sample(table, column, row, self._plain_name(src, column))
        elif table == "config_facts":
            quote = f"{row['name']}={row['value']}"
        else:
            quote = f"{column}={_value(value)}" if value is not None else None
        return Evidence(text="", quote=quote, source=src)

    def _rows(
        self, table: str, sources: Iterable[str], also: str = "true", names: tuple[str, ...] = (), columns: Collection[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """One row a source, by the source; with these columns, or with all."""
        at = "seen_at" if "seen_at" in TABLES[table].__struct_fields__ else "started_at"
        within = "true"
        parameters: dict[str, object] = {"sources": list(sources)}
        if self._bounds is not None and table != "config_facts":
            within = f"({at} is null or {at} between $from and $to)"
            parameters |= {"from": self._bounds[0], "to": self._bounds[1]}
        if names:
            parameters["names"] = list(names)
        place = f"{HELD}.every_requests" if table == "requests" else table  # the view looks for later revisions of all there are first
        last = "qualify row_number() over (partition by src order by revision desc, appended desc) = 1" if table == "requests" else ""
        wanted = ", ".join(dict.fromkeys(("src", *columns))) if columns else "*"
        chosen = f"src in (select unnest($sources)) and {within} and {also}"
        result = self._cursor.execute(f"select {wanted} from {place} where {chosen} {last}", parameters)
        told = [name for name, *_ in result.description]
        found: dict[str, dict[str, Any]] = {}
        for row in result.fetchall():
            values = dict(zip(told, row, strict=True))
            found.setdefault(values["src"], values)
        return found

    def _plain_name(self, src: str, column: str) -> str | None:
        """What the engine calls a column that is one metric as it stands: the newest name of the family its scrape is in."""
        names = [name for name in self._metric_names.get(column, ()) if "{" not in name and not name.startswith("sum:")]
        point = self._rows("points", [src]).get(src) if names else None
        family = point["name"].partition(":")[0] + ":" if point is not None else None
        return next((name for name in names if family is not None and name.startswith(family)), None)

    def _point(self, src: str, column: str) -> str | None:
        names = self._metric_names.get(column, ())
        row = self._rows("points", [src], "list_contains($names, name)", names).get(src) if names else None
        if row is None:
            return None
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(json.loads(row["labels"] or "{}").items()))
        return f"{row['name']}{{{labels}}} {_value(row['value'])}"


def _sample(table: str, column: str, row: Mapping[str, Any], metric: str | None) -> str:
    """Under the engine's name for it, with the engine's own labels; without one under ours, with all we know."""
    shown = [name for name in LABELS[table] if row.get(name) is not None and (metric is None or name != "engine")]
    labels = ",".join(f'{LABEL_OF.get(name, name)}="{row[name]}"' for name in shown)
    return f"{metric or column}{{{labels}}} {_value(row.get(column))}"


def _event(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {row['fields']}" if row.get("fields") else str(row["name"])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".") if abs(value) < 1e15 else f"{value:g}"
    if isinstance(value, datetime):
        return f"{value.isoformat(timespec='milliseconds')}Z"
    return "null" if value is None else str(value)
