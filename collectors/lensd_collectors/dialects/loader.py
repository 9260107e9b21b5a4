"""Dialects from the package's `*.toml` files. Format: the comments in `vllm.toml`.

A file that `extends` a dialect adds to it: its patterns are tried before the dialect's own, of several such files in the order of
their names. What one subject needs of a product's words lies in one file, `PRODUCT.SUBJECT.toml`.
"""

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from lensd_collectors.conventions import THROTTLE_REASONS, Decision
from lensd_collectors.dialects.model import (
    Dialect,
    DialectError,
    ErrorPattern,
    EventPattern,
    FailurePattern,
    Field,
    FieldKind,
    GpuSource,
    GpuTable,
    Metric,
    MetricKind,
    Recognise,
    Role,
    Selector,
)
from lensd_collectors.rows import EngineSample, GpuSample

_TABLES = ("events", "engine_samples", "config_facts", "http_exchanges")
_COLUMNS = frozenset(EngineSample.__struct_fields__)
_GPU_COLUMNS = frozenset(GpuSample.__struct_fields__)
_GPU_LABELS = frozenset({"gpu", "uuid", "pci", "host", "instance", "compute", "pid", "process", "at", "card"})
_GPU_SOURCE = re.compile(r"(?P<names>[\w.%]+(?:\+[\w.%]+)*)(?:\*(?P<factor>\d+(?:\.\d+)?))?")
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_SELECTOR = re.compile(r"(?P<sum>sum:)?(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?")
# Gateways first: they pass on what an engine says. vLLM last: its widest patterns would take what others say in the same form.
_ORDER = ("lensd", "litellm", "router", "sglang", "vllm")


@cache
def load() -> dict[str, Dialect]:
    """All dialects by name, in the order in which their error patterns are tried."""
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in files(__package__).iterdir() if entry.name.endswith(".toml")}
    wholes, parts = {}, []
    for file, text in sorted(texts.items(), reverse=True):
        raw = _parsed(text, file)
        if "extends" in raw:
            parts.append((file, raw))
        else:
            wholes[raw["name"]] = file, raw
    for file, part in parts:
        if part["extends"] not in wholes:
            raise DialectError(f"dialect {file}: it extends {part['extends']!r}, which is none")
        base_file, base = wholes[part["extends"]]
        wholes[part["extends"]] = f"{base_file} with {file}", _added({key: part[key] for key in part if key != "extends"}, base)
    found = {name: _read(raw, file) for name, (file, raw) in wholes.items()}
    rank = {name: place for place, name in enumerate(_ORDER)}
    return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))


def loads(text: str, file: str) -> Dialect:
    """One dialect from its TOML text. Raises DialectError, naming `file` and the entry."""
    return _read(_parsed(text, file), file)


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise DialectError(f"dialect {file}: {problem!r}") from problem


def _added(part: Any, base: Any) -> Any:
    """What a part says goes first, key by key; a single value stays the dialect's own."""
    if isinstance(part, dict) and isinstance(base, dict):
        return {**part, **{key: _added(part[key], value) if key in part else value for key, value in base.items()}}
    return [*part, *base] if isinstance(part, list) and isinstance(base, list) else base


def _read(raw: dict[str, Any], file: str) -> Dialect:
    try:
        return _dialect(raw)
    except (KeyError, ValueError, TypeError, re.error) as problem:
        raise DialectError(f"dialect {file}: {problem!r}") from problem


def _dialect(raw: dict[str, Any]) -> Dialect:
    metrics = {column: tuple(names) for column, names in raw.get("metrics", {}).items()}
    if unknown := set(metrics) - _COLUMNS:
        raise ValueError(f"[metrics] names no column of engine_samples: {', '.join(sorted(unknown))}")
    selectors = {column: tuple(_selector(name) for name in names) for column, names in metrics.items()}
    infos = _lists(raw, "infos")
    names = {name: _metric(name, **entry) for name, entry in raw.get("names", {}).items()}
    columns = {selector.name for wanted in selectors.values() for selector in wanted}
    recognise = raw.get("recognise", {})
    frames = raw.get("frames", [])
    return Dialect(
        name=raw["name"],
        role=Role(raw["role"]),
        recognise=Recognise(
            recognise.get("metric_prefix"), tuple(re.compile(text) for text in recognise.get("log", [])), recognise.get("anywhere", False)
        ),
        frames=tuple(re.compile(frame["pattern"], re.DOTALL) for frame in frames),
        frame_like=tuple(tuple(frame.get("like", [])) for frame in frames),
        metrics=metrics,
        selectors=selectors,
        labels=_lists(raw, "labels"),
        spans=_lists(raw, "spans"),
        infos=infos,
        names=names,
        points=frozenset(raw.get("points", {}).get("names", [])) | (names.keys() - columns - infos.keys()),
        starts=frozenset(raw.get("starts", {}).get("names", [])),
        settings=frozenset(raw.get("settings", {}).get("names", [])),
        events=tuple(_event(entry) for entry in raw.get("events", [])),
        errors=tuple(_error(entry) for entry in raw.get("errors", [])),
        failures=tuple(_failure(entry) for entry in raw.get("failures", [])),
        limits=tuple(_failure(entry) for entry in raw.get("limits", [])),
        statuses=tuple(_failure(entry) for entry in raw.get("statuses", [])),
        gpu=_gpu(raw) if "gpu" in raw else None,
        columns={section: _lists(raw, section) for section in raw if section.startswith("columns")},
    )


def _gpu(raw: dict[str, Any]) -> GpuTable:
    columns = {column: tuple(_gpu_source(text) for text in sources) for column, sources in raw["gpu"].items()}
    table = GpuTable(columns, _lists(raw, "gpu_labels"), _lists(raw, "gpu_reasons"), raw.get("gpu_blank"))
    for name, found, known in (
        ("gpu", columns, _GPU_COLUMNS),
        ("gpu_labels", table.labels, _GPU_LABELS),
        ("gpu_reasons", table.reasons, frozenset(THROTTLE_REASONS.values())),
    ):
        if unknown := set(found) - known:
            raise ValueError(f"[{name}] names what is not known: {', '.join(sorted(unknown))}")
    return table


def _gpu_source(text: str) -> GpuSource:
    match = _GPU_SOURCE.fullmatch(text)
    if match is None:
        raise ValueError(f"GPU source {text!r} is not name, name*factor or one+other*factor")
    return GpuSource(tuple(match["names"].split("+")), float(match["factor"] or 1))


def _lists(raw: dict[str, Any], table: str) -> dict[str, tuple[str, ...]]:
    return {key: tuple(values) for key, values in raw.get(table, {}).items()}


def _selector(text: str) -> Selector:
    match = _SELECTOR.fullmatch(text)
    if match is None:
        raise ValueError(f"metric {text!r} is not name, name{{label=value}} or sum:name")
    pairs = [pair.split("=", 1) for pair in (match["labels"] or "").split(",") if pair]
    return Selector(match["name"], tuple((key.strip(), value.strip()) for key, value in pairs), bool(match["sum"]))


def _metric(name: str, kind: str, since: str | None = None, until: str | None = None, flag: str | None = None) -> Metric:
    for version in (since, until):
        if version is not None and not _VERSION.fullmatch(version):
            raise ValueError(f"[names] {name} has version {version!r}, which is no row of numbers")
    return Metric(name, MetricKind(kind), since, until, flag)


def _event(entry: dict[str, Any]) -> EventPattern:
    into = entry.get("into", "events")
    if into not in _TABLES:
        raise ValueError(f"event {entry['name']} goes into {into!r}, which is none of {', '.join(_TABLES)}")
    anchors = entry["anchor"]
    facts = entry.get("facts", {})
    form = facts.split(":", 1) if isinstance(facts, str) else None
    regex = re.compile(entry["pattern"], re.DOTALL)
    pattern = EventPattern(
        name=entry["name"],
        anchors=(anchors,) if isinstance(anchors, str) else tuple(anchors),
        regex=regex,
        into=into,
        sign=entry.get("sign"),
        severity=entry.get("severity"),
        fields=_fields(entry.get("fields", {}), regex),
        facts=() if form else _fields(facts, regex),
        facts_of=(form[0], form[1]) if form else None,
        numbers=entry.get("numbers"),
        points=tuple(entry.get("points", {}).items()),
        like=tuple(entry.get("like", [])),
    )
    for group in [pattern.numbers, *(group for _, group in pattern.points), *(form[1:] if form else [])]:
        if group is not None and group not in regex.groupindex:
            raise ValueError(f"event {pattern.name} uses group {group!r}, which its pattern lacks")
    return pattern


def _fields(spec: dict[str, str], regex: re.Pattern[str]) -> tuple[Field, ...]:
    fields = []
    for name, how in spec.items():
        kind, _, group = how.partition(":")
        if kind != FieldKind.CONST and (group or name) not in regex.groupindex:
            raise ValueError(f"field {name!r} reads group {group or name!r}, which the pattern lacks")
        fields.append(Field(name, FieldKind(kind), group or name))
    return tuple(fields)


def _error(entry: dict[str, Any]) -> ErrorPattern:
    path = entry.get("path")
    return ErrorPattern(
        means=Decision(entry["means"]),
        body=re.compile(entry["body"], re.DOTALL),
        status=entry.get("status"),
        path=re.compile(path) if path else None,
        like=tuple(entry.get("like", [])),
    )


def _failure(entry: dict[str, Any]) -> FailurePattern:
    return FailurePattern(re.compile(entry["pattern"]), entry.get("code"), tuple(entry.get("like", [])))
