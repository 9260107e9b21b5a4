"""What a cite points at: the exact text behind `src#column`, and where that stands.

Offline a reader goes back to the file. Live nothing but the store is left: an event keeps its scrubbed line, a sample is
rendered as `name{labels} value` under the engine's own metric name where the store has it, a request or span as `column=value`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from lensd_collectors.rows import TABLES

from lensd.diagnosis.scope import instant
from lensd.records import Evidence, Finding
from lensd.store.interface import Cursor

Resolver = Callable[[str, str], Evidence | None]
"""`src` and column to quote and place (the text is left empty); None where the source is not there."""

SAMPLES: Final = ("engine_samples", "gpu_samples")
LABELS: Final[Mapping[str, tuple[str, ...]]] = {"engine_samples": ("engine", "model"), "gpu_samples": ("host", "gpu")}
ORDER: Final = ("engine_samples", "events", "gpu_samples", "config_facts", "http_exchanges", "points", "spans")
LABEL_OF: Final = {"model": "model_name"}


def resolve(findings: Iterable[Finding], resolver: Resolver) -> list[Finding]:
    """The findings with quotes: each `src#column` becomes the text and the place it stands for, or the place alone."""
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

    def resolve(self, line: Evidence) -> Evidence:
        return resolve_line(line, self)

    def __call__(self, src: str, column: str) -> Evidence | None:
        found = self._row(src, column)
        if found is None:
            return None
        table, row = found
        value = row.get(column)
        if table == "events":
            quote = row["line"] or _event(row)
        elif table in SAMPLES:
            quote = self._point(src, column) or _sample(table, column, row, self._plain_name(column))
        elif table == "config_facts":
            quote = f"{row['name']}={row['value']}"
        else:
            quote = f"{column}={_value(value)}"
        return Evidence(text="", quote=quote, source=src)

    def _row(self, src: str, column: str) -> tuple[str, dict[str, Any]] | None:
        if (src, column) not in self._found:
            tables = [table for table in ("requests", *ORDER) if column in TABLES[table].__struct_fields__]
            rows = ((table, self._one(table, src)) for table in tables)
            self._found[src, column] = next(((table, row) for table, row in rows if row is not None), None)
        return self._found[src, column]

    def _one(self, table: str, src: str, also: str = "true", names: tuple[str, ...] = ()) -> dict[str, Any] | None:
        at = "seen_at" if "seen_at" in TABLES[table].__struct_fields__ else "started_at"
        within = "true"
        parameters: dict[str, object] = {"src": src}
        if self._bounds is not None and table != "config_facts":
            within = f"({at} is null or {at} between $from and $to)"
            parameters |= {"from": self._bounds[0], "to": self._bounds[1]}
        if names:
            parameters["names"] = list(names)
        result = self._cursor.execute(f"select * from {table} where src = $src and {within} and {also} limit 1", parameters)
        columns = [name for name, *_ in result.description]
        row = result.fetchone()
        return None if row is None else dict(zip(columns, row, strict=True))

    def _plain_name(self, column: str) -> str | None:
        """What the engine calls a column that is one metric as it stands, by its newest name."""
        return next((name for name in self._metric_names.get(column, ()) if "{" not in name and not name.startswith("sum:")), None)

    def _point(self, src: str, column: str) -> str | None:
        names = self._metric_names.get(column, ())
        row = self._one("points", src, "list_contains($names, name)", names) if names else None
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
