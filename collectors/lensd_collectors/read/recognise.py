"""What a file is, told by its content alone, and all the rows it gives."""

import re
from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors.dialects import Dialect, Role, load
from lensd_collectors.read import engine_log, exchange, flags, gpu_table, http_exchange, json_lines, prometheus, spans
from lensd_collectors.read.lines import unwrap
from lensd_collectors.rows import TABLES, Instant, Row

HEAD_BYTES: Final = 64 * 1024
TABLE_LINES: Final = 200  # in which a table must show itself
LARGEST_DOCUMENT: Final = 256 << 20  # bytes of a file that must be held as a whole (scrapes, spans, exchanges)


class Kind(StrEnum):
    ENGINE_LOG = "engine_log"
    PROMETHEUS = "prometheus"
    HTTP_EXCHANGE = "http_exchange"
    SPANS = "spans"
    FLAGS = "flags"
    MODEL_CONFIG = "model_config"
    ACCESS_LOG = "access_log"
    GPU_CSV = "gpu_csv"
    PROCESS_TABLE = "process_table"
    NOTES = "notes"
    UNKNOWN = "unknown"


TABULAR: Final = (Kind.GPU_CSV, Kind.PROCESS_TABLE)


class FileRows(msgspec.Struct, frozen=True, kw_only=True):
    """What a file gave. `rows` by table name; `dialect` None where the kind needs none or it is not known."""

    kind: Kind
    dialect: str | None = None
    rows: Mapping[str, list[Row]]
    records: int
    unread_lines: int


_GPU: Final = re.compile(r"^(?=.*\b(?:index|timestamp|name|uuid)\b)(?=.*\bmemory\.(?:used|free|total)|.*\butilization\.gpu)", re.IGNORECASE)
_UVICORN: Final = re.compile(r'^(?:INFO|WARNING|ERROR): +\S+:\d+ - "[A-Z]+ \S+ HTTP/[\d.]+" \d{3}')
_ACCESS: Final = re.compile(
    r'^\[\d{4}-\d\d-\d\dT[^\]]+\] "[A-Z]+ '  # Envoy
    r"|^(?:https?|h2|wss?|grpcs?) \d{4}-\d\d-\d\dT\S+ \S+ \S+:\d+ "  # AWS ALB
    r'|^\S+ \S+ \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:[^\]]+\] "'  # nginx, Apache
    r"|client closed request \(499\)"
)
_JSON: Final = re.compile(r'\s*(?:\{\s*["}]|\[\s*[\[{"\]])')
_CONTAINER: Final = re.compile(r'"(?:OOMKilled|[Ee]xitCode)"\s*:')  # docker inspect, kubectl get -o json
_DATED: Final = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
_FLAGS: Final = re.compile(
    r"\bvllm serve\b|\bvllm\.entrypoints\.|\bsglang\.launch_server\b|\blaunch_server\b"
    r"|(?:^|\s)--(?:model|max-model-len|served-model-name|max-num-seqs|tensor-parallel-size|gpu-memory-utilization)\b"
    r"|^(?:export )?VLLM_\w+=",
    re.MULTILINE,
)


def recognise(path: Path, head: bytes) -> Kind:
    """The kind of the file whose first bytes are `head`. The name says nothing: people mail `log (2).txt`."""
    return judge(head)[0]


def read(path: Path, *, name: str | None = None, engine: str | None = None, reference_us: Instant | None = None) -> FileRows:
    """All rows of a file, whatever it is; `name` is what `src` calls it. Raises OSError only.

    `reference_us`: an instant of a dated artefact of the same incident, for logs that write no year.
    """
    label = name or path.name
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    kind, dialect = judge(head)
    if kind in (Kind.ENGINE_LOG, Kind.ACCESS_LOG) and dialect is not None:
        log = engine_log.read_log(path, dialect, name=label, engine=engine, reference_us=reference_us)
        return _file_rows(kind, log.rows, log.unread_lines, dialect.name)
    if kind in TABULAR:
        with path.open(encoding="utf-8", errors="replace") as lines:
            table = gpu_table.read_gpu_table(lines, name=label, engine=engine)
        return _file_rows(kind, table.rows, table.unread_lines, None)
    if kind in (Kind.NOTES, Kind.UNKNOWN, Kind.ACCESS_LOG):
        return _file_rows(kind, [], _count_lines(path), None)
    with path.open("rb") as file:
        text = file.read(LARGEST_DOCUMENT).decode("utf-8", "replace")
    found = _read_document(kind, text, label, engine)
    return _file_rows(kind, found.rows, found.unread_lines, None)


def _read_document(
    kind: Kind, text: str, name: str, engine: str | None
) -> prometheus.PrometheusRows | spans.SpanRows | flags.FlagRows | exchange.HttpRows:
    match kind:
        case Kind.PROMETHEUS:
            return prometheus.read_prometheus(text, name=name, engine=engine)
        case Kind.SPANS:
            return spans.read_spans(text, name=name, engine=engine)
        case Kind.FLAGS:
            return flags.read_flags(text, name=name, engine=engine)
        case Kind.MODEL_CONFIG:
            return flags.read_model_config(text, name=name, engine=engine)
        case _:
            return http_exchange.read_http(text, name=name, engine=engine)


def _file_rows(kind: Kind, rows: list[Row], unread: int, dialect: str | None) -> FileRows:
    table_of = {struct: table for table, struct in TABLES.items()}
    tables: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tables[table_of[type(row)]].append(row)
    return FileRows(kind=kind, dialect=dialect, rows=dict(tables), records=len(rows), unread_lines=unread)


def judge(head: bytes) -> tuple[Kind, Dialect | None]:
    """Kind, and for a log the dialect it is in."""
    if not head.strip() or b"\0" in head:
        return Kind.UNKNOWN, None
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    if text.lstrip()[:1] in ("{", "[") and json_lines.read(text.lstrip().partition("\n")[0]) is None:
        kind = _json_kind(text)
        if kind is not None:
            return kind, None
        if _JSON.match(text):
            return (Kind.ENGINE_LOG, load()["supervisor"]) if _CONTAINER.search(text) else (Kind.UNKNOWN, None)
    lines = [line for raw in text.split("\n") for line in unwrap(raw).text.split("\n") if line.strip()]
    if any(_GPU.search(line) and "," in line for line in lines[:5]):
        return Kind.GPU_CSV, None
    if _is_prometheus(lines):
        return Kind.PROMETHEUS, None
    subject = gpu_table.subject_of(lines[:TABLE_LINES])
    if subject is not None:
        return (Kind.GPU_CSV if subject is gpu_table.Subject.CARDS else Kind.PROCESS_TABLE), None
    dialect = _log_dialect(lines)
    if dialect is not None:
        return (Kind.ENGINE_LOG if dialect.role is Role.ENGINE else Kind.ACCESS_LOG), dialect
    if _is_exchange(lines):
        return Kind.HTTP_EXCHANGE, None
    if any(_ACCESS.search(line) for line in lines[:50]):
        return Kind.ACCESS_LOG, None
    if any(_UVICORN.match(line) for line in lines[:50]):
        return Kind.ENGINE_LOG, load()["vllm"]
    if _FLAGS.search(text):
        return Kind.FLAGS, None
    return (Kind.UNKNOWN if any(_DATED.match(line) for line in lines[:20]) or "\ufffd" in text else Kind.NOTES), None


def _json_kind(text: str) -> Kind | None:

    def has(*keys: str) -> bool:
        return all(re.search(rf'"{key}"\s*:', text) for key in keys)

    if has("resourceSpans") or has("trace_id", "span_id"):
        return Kind.SPANS
    if has("request", "method") and (has("status") or has("path")):
        return Kind.HTTP_EXCHANGE
    if any(has(key) for key in ("max_position_embeddings", "model_type", "num_hidden_layers", "architectures")):
        return Kind.MODEL_CONFIG
    if re.match(r'\s*\{\s*"(?:error|detail)"\s*:|\s*\{\s*"object"\s*:\s*"error"', text):
        return Kind.HTTP_EXCHANGE
    return None


def _is_prometheus(lines: list[str]) -> bool:
    samples = sum(1 for line in lines if prometheus.SAMPLE.match(line))
    typed = any(re.match(r"# (?:TYPE|HELP) [A-Za-z_:][\w:]* ", line) for line in lines)
    return samples > 0 and (typed or samples * 2 > len(lines))


def _log_dialect(lines: list[str]) -> Dialect | None:
    """The dialect whose marks most lines bear."""
    scores = {
        name: sum(1 for line in lines if any(mark.search(line) for mark in dialect.recognise.log))
        for name, dialect in load().items()
        if dialect.recognise.log
    }
    best = max(scores, key=lambda name: scores[name])
    return load()[best] if scores[best] else None


def _is_exchange(lines: list[str]) -> bool:
    if any(http_exchange.STATUS.match(line) or http_exchange.CURL.match(line) for line in lines):
        return True
    return any(one.regex.search(line) for line in lines if not line[:1].isspace() for one in load()["client"].failures)


def _count_lines(path: Path) -> int:
    """Lines that are not blank."""
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())
