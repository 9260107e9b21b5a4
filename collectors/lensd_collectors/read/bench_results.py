"""Results that load generators keep as JSON (vLLM's and SGLang's bench_serving, GenAI-Perf, AIPerf) → the events of their sheets."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lensd_collectors.read.answer_body import decoded
from lensd_collectors.read.lines import rfc3339
from lensd_collectors.rows import Event, Row

MARKS: Final = ('"mean_tpot_ms"', '"mean_ttft_ms"', '"inter_token_latency"', '"output_throughput"')
_MEASURES: Final = (  # event, field, and the keys that mean it, the first of them best
    ("bench.load", "concurrency", ("max_concurrency",)),
    ("bench.ttft", "ttft_ms", ("mean_ttft_ms", "time_to_first_token")),
    ("bench.throughput", "output_tps", ("output_throughput", "output_token_throughput")),
    ("bench.latency", "latency_ms", ("mean_e2el_ms", "mean_e2e_latency_ms", "request_latency")),
    ("bench.result", "tpot_ms", ("mean_tpot_ms", "mean_itl_ms", "inter_token_latency")),
)
_VERSIONS: Final = ("vllm_version", "engine_version", "version", "server_version", "image")
_VERSION: Final = re.compile(r"\bv?(?P<version>\d+\.\d+\.\d+(?:\.?(?:post|rc|dev)\d+)?)\b")
_STAMP: Final = re.compile(r"(?P<y>\d{4})(?P<m>\d\d)(?P<d>\d\d)-(?P<h>\d\d)(?P<min>\d\d)(?P<s>\d\d)")


class BenchRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def is_results(text: str) -> bool:
    return text.lstrip()[:1] == "{" and any(mark in text for mark in MARKS)


def read_results(text: str, *, name: str, engine: str | None = None) -> BenchRows:
    """The measures of each document, one or one a line, on the lines of their keys; dated where it says when it was made."""
    rows: list[Row] = []
    unread = 0
    for document, first, lines in _documents(text):
        found = [] if document is None else _of_document(document, first, lines, name, engine)
        rows += found
        unread += 0 if found else len(lines)
    return BenchRows(rows=rows, unread_lines=unread)


def _documents(text: str) -> Iterator[tuple[dict[str, Any] | None, int, list[str]]]:
    whole = decoded(text)
    if whole is not None:
        yield whole, 1, text.split("\n")
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield decoded(line), number, [line]


def _of_document(document: Mapping[str, Any], first: int, lines: list[str], name: str, engine: str | None) -> list[Row]:
    said = " ".join(str(document[key]) for key in _VERSIONS if isinstance(document.get(key), str))
    version = _VERSION.search(said)
    stamp = _STAMP.fullmatch(str(document.get("date", "")))
    at = rfc3339(f"{stamp['y']}-{stamp['m']}-{stamp['d']}T{stamp['h']}:{stamp['min']}:{stamp['s']}Z") if stamp else None
    rows: list[Row] = []
    for event, field, keys in _MEASURES:
        key = next((key for key in keys if _mean(document.get(key)) is not None), None)
        if key is None:
            continue
        number = next((at for at, line in enumerate(lines, first) if f'"{key}"' in line), first)
        fields = {"sign": "json", field: _mean(document[key])} | ({"version": version["version"]} if version else {})
        rows.append(
            Event(
                seen_at=at,
                seq=number,
                engine=engine,
                name=event,
                severity="info",
                fields=msgspec.json.encode(fields).decode(),
                line=lines[number - first].strip()[:500],
                src=f"{name}:{number}",
            )
        )
    return rows


def _mean(value: object) -> float | None:
    """A number, or the average of a measure told with its spread."""
    value = value.get("avg") if isinstance(value, dict) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
