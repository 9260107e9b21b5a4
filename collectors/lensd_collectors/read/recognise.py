"""What a file is, told by its content alone, and all the rows it gives."""

import io
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

import msgspec

from lensd_collectors.dialects import Dialect, Role, load
from lensd_collectors.read import (
    bench_results,
    calls,
    config_files,
    engine_log,
    flags,
    gpu_table,
    http_exchange,
    json_lines,
    perf_metrics,
    prometheus,
    range_query,
    spans,
)
from lensd_collectors.read.alarming import alarming
from lensd_collectors.read.http_lines import ACCESS, ADDRESS, CAUSE, STAMP, TITLE, as_curl
from lensd_collectors.read.lines import Clock, dated, rfc3339, unwrap
from lensd_collectors.read.services import Services, several
from lensd_collectors.read.strays import Strays
from lensd_collectors.read.stream import CHUNK, EVENT, HEADER, TIMED
from lensd_collectors.rows import TABLES, EngineSample, Event, GpuSample, HttpExchange, Instant, Point, Row

HEAD_BYTES: Final = 64 * 1024
LARGEST_TRANSCRIPT: Final = 4 << 20
LARGEST_NOTES: Final = 1 << 20  # bytes; nobody writes more by hand
LONGEST_SEEN: Final = 4000  # characters of a line by which it is told what it is
TABLE_LINES: Final = 200  # in which a table must show itself
LARGEST_DOCUMENT: Final = 64 << 20  # bytes of a file that must be held as a whole (scrapes, spans, exchanges)


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
    CALLS = "calls"
    RANGE_QUERY = "range_query"
    TIMINGS = "timings"
    BENCHMARK = "benchmark"
    NOTES = "notes"
    UNKNOWN = "unknown"


BENCHES: Final = "bench"  # the dialect of load generators
TABULAR: Final = (Kind.GPU_CSV, Kind.PROCESS_TABLE)
_SEEN: Final = (EngineSample, Event, GpuSample, HttpExchange, Point)  # rows of one instant
_LONGEST_DATE: Final = 40  # characters
_HOUR: Final = re.compile(
    r"(?:#+|-{2,}|={2,}|>+|@)? *\[?(?P<at>\d\d:\d\d:\d\d(?:\.\d+)?)Z?\]? *(?:-{2,}|={2,}|:)?"
    r"|#+ *\[?(?P<headed>\d\d:\d\d:\d\d(?:\.\d+)?)Z?\]?[,;:]? [^=]{1,60}"
)


class FileRows(msgspec.Struct, frozen=True, kw_only=True):
    """What a file gave. `rows` by table name; `dialect` None where the kind needs none or it is not known."""

    kind: Kind
    dialect: str | None = None
    rows: Mapping[str, list[Row]]
    records: int
    unread_lines: int


_GPU: Final = re.compile(r"^(?=.*\b(?:index|timestamp|name|uuid)\b)(?=.*\bmemory\.(?:used|free|total)|.*\butilization\.gpu)", re.IGNORECASE)
_UVICORN: Final = re.compile(r'^(?:INFO|WARNING|ERROR): +\S+:\d+ - "[A-Z]+ \S+ HTTP/[\d.]+" \d{3}')
PROMPT: Final = re.compile(rb"^(?:\$|\S+@\S+[#$%]|\[\S+@\S+ [^\]]*\][#$]) +\S", re.MULTILINE)
_PAPERS: Final = frozenset({Kind.HTTP_EXCHANGE, Kind.NOTES, Kind.UNKNOWN, Kind.FLAGS})
_JSON: Final = re.compile(r'\s*(?:\{\s*["}]|\[\s*[\[{"\]])')
_CONTAINER: Final = re.compile(r'"(?:OOMKilled|[Ee]xitCode)"\s*:')  # docker inspect, kubectl get -o json
_ALERT: Final = re.compile(r'"alerts?"\s*:|"alertname"|"commonLabels"|"incident"\s*:')  # of a pager: what it says is measured elsewhere
_CGROUP: Final = re.compile(r"^(?:anon|file|inactive_file|active_file|oom|oom_kill) \d+$")  # memory.stat, memory.events
_DATED: Final = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
_FLAGS: Final = re.compile(
    r"\bvllm serve\b|\bvllm\.entrypoints\.|\bsglang\.launch_server\b|\blaunch_server\b"
    r"|\btrtllm-serve\b.*\s--|\btext-generation-launcher\b.*\s--"
    r"|(?:^|\s)--(?:model|max-model-len|served-model-name|max-num-seqs|tensor-parallel-size|gpu-memory-utilization|tp[_-]size|mem-fraction-static)\b"
    r"|(?:^|\s|\")-(?:ngl|np)\b|\bllama-server\b.*\s-m\s|\"--[a-z][\w-]+\",\s*\""
    r"|^\s*(?:\+/-|[~!])\s+\"?[\w.-]+(?:\[\d+\])?\"?\s*[:=]\s*\"?[^\"\n]*\"?\s*(?:=>|->)"
    r"|^[+-]?(?:export |Environment=[\"']?|\[\")?(?:VLLM|OLLAMA|SGLANG|LLAMA_ARG)_\w+=",
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
    if b"\0" in head or (kind in (Kind.NOTES, Kind.UNKNOWN) and path.stat().st_size > LARGEST_NOTES):
        return _file_rows(kind, [], _count_lines(path), None)
    parts = parts_of(path, head)
    if not parts:
        found = _read_as(kind, dialect, path, None, label, engine, reference_us)
        if kind is Kind.PROMETHEUS or (dialect is None and PROMPT.search(head) is not None):
            _date(found.rows, path, engine_log.clock_of(path, reference_us))
        if kind is Kind.ENGINE_LOG:
            found.rows.extend(alarming(path, found.rows, label, engine))
        return _file_rows(kind, found.rows, found.unread_lines, dialect.name if dialect is not None else None)
    rows: list[Row] = []
    unread = 0
    for part in parts:
        found = _read_as(part.kind, part.dialect, path, part.text, label, engine, reference_us)
        rows += found.rows
        unread += found.unread_lines
    _date(rows, path, engine_log.clock_of(path, reference_us))
    return _file_rows(kind, rows, unread, dialect.name if dialect is not None else None)


def _date(rows: list[Row], path: Path, clock: Clock) -> None:
    """Gives what a shell printed the instant that was written above its command."""
    with path.open("rb") as file:
        lines = file.read(LARGEST_TRANSCRIPT).decode("utf-8", "replace").split("\n")
    told = [(at, number) for number, line in enumerate(lines, 1) if (at := _written(line, clock)) is not None]
    for row in rows if told else ():
        number = (getattr(row, "src", None) or "").rpartition(":")[2]
        if isinstance(row, _SEEN) and row.seen_at is None and number.isdigit():
            row.seen_at = next((at for at, above in reversed(told) if above <= int(number)), None)


def _written(line: str, clock: Clock) -> Instant | None:
    """The instant in a heading, or of a line that is nothing but a date or an hour."""
    if (hour := _HOUR.fullmatch(line.strip())) is not None:
        return clock.at("", hour["at"] or hour["headed"])
    if (title := TITLE.match(line)) is not None:
        return rfc3339(title["at"].replace(",", "."))
    return dated(line.strip()) if len(line) < _LONGEST_DATE else None


def _several(path: Path, dialect: Dialect) -> bool:
    with path.open("rb") as file:
        return dialect.role is Role.ENGINE and several(file.read(HEAD_BYTES).decode("utf-8", "replace"), dialect)


class Found(Protocol):
    @property
    def rows(self) -> list[Row]: ...
    @property
    def unread_lines(self) -> int: ...


def _read_as(
    kind: Kind, dialect: Dialect | None, path: Path, part: str | None, name: str, engine: str | None, reference_us: Instant | None
) -> Found:
    """The rows of a file, or of a part of it, whose lines stand where they stand in the file."""
    if kind in (Kind.ENGINE_LOG, Kind.ACCESS_LOG, Kind.BENCHMARK) and dialect is not None:
        strays = Strays(name, engine, but=dialect.name, clock=engine_log.clock_of(path, reference_us))
        source = io.BytesIO(part.encode()) if part is not None else None
        by = Services if _several(path, dialect) else None
        return engine_log.read_log(path, dialect, name=name, engine=engine, reference_us=reference_us, others=strays, source=source, by=by)
    if kind in TABULAR:
        if part is not None:
            return gpu_table.read_gpu_table(part.split("\n"), name=name, engine=engine)
        with path.open("rb") as file:
            return gpu_table.read_gpu_table(text_lines(file), name=name, engine=engine)
    clock = engine_log.clock_of(path, reference_us)
    if part is None:
        with path.open("rb") as file:
            part = file.read(LARGEST_DOCUMENT).decode("utf-8", "replace")
    return _read_document(kind, part, name, engine, clock)


def _read_document(kind: Kind, text: str, name: str, engine: str | None, clock: Clock) -> Found:
    match kind:
        case Kind.PROMETHEUS:
            return prometheus.read_prometheus(text, name=name, engine=engine, clock=clock)
        case Kind.SPANS:
            return spans.read_spans(text, name=name, engine=engine, clock=clock)
        case Kind.MODEL_CONFIG:
            return flags.read_model_config(text, name=name, engine=engine)
        case Kind.RANGE_QUERY:
            return range_query.read_range(text, name=name, engine=engine)
        case Kind.TIMINGS:
            return perf_metrics.read_perf_metrics(text, name=name, engine=engine)
        case Kind.BENCHMARK:
            return bench_results.read_results(text, name=name, engine=engine)
        case Kind.CALLS:
            return calls.read_calls(text, name=name, engine=engine, clock=clock)
        case Kind.FLAGS:
            return config_files.read_settings(text, name=name, engine=engine, clock=clock)
        case _:
            return http_exchange.read_http(text, name=name, engine=engine, clock=clock)


def text_lines(file: BinaryIO) -> Iterator[str]:
    """Lines, of an overlong one its beginning."""
    while line := file.readline(engine_log.LONGEST_READ):
        yield line.decode("utf-8", "replace")
        while not line.endswith(b"\n") and (line := file.readline(engine_log.LONGEST_READ)):
            pass


def _file_rows(kind: Kind, rows: list[Row], unread: int, dialect: str | None) -> FileRows:
    table_of = {struct: table for table, struct in TABLES.items()}
    tables: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tables[table_of[type(row)]].append(row)
    return FileRows(kind=kind, dialect=dialect, rows=dict(tables), records=len(rows), unread_lines=unread)


class Part(NamedTuple):
    """A part of a file that is of another kind than the rest; `text` begins with as many empty lines as stand before it."""

    kind: Kind
    dialect: Dialect | None
    first: int
    last: int
    text: str


def parts_of(path: Path, head: bytes) -> list[Part]:
    """The parts of a shell transcript whose commands print different things; empty for a file that is of one piece."""
    if PROMPT.search(head) is None:
        return []
    with path.open("rb") as file:
        whole = file.read(LARGEST_TRANSCRIPT + 1)
    if len(whole) > LARGEST_TRANSCRIPT or b"\0" in whole:
        return []
    lines = whole.decode("utf-8", "replace").split("\n")
    starts = [0, *(at for at, line in enumerate(lines) if at and PROMPT.match(line.encode()))]
    texts = ["\n".join(lines[at:end]) for at, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    kinds = [judge(text.encode()) for text in texts]
    kinds = [
        (Kind.HTTP_EXCHANGE, None) if kind in _PAPERS and not (kind is Kind.FLAGS and config_files.is_diff(text)) else (kind, dialect)
        for (kind, dialect), text in zip(kinds, texts, strict=True)
    ]
    joined: list[tuple[Kind, Dialect | None, int, int]] = []
    for (kind, dialect), first, end in zip(kinds, starts, [*starts[1:], len(lines)], strict=True):
        if joined and joined[-1][:2] == (kind, dialect):
            joined[-1] = (kind, dialect, joined[-1][2], end)
        else:
            joined.append((kind, dialect, first, end))
    if len(joined) < 2 and (not joined or joined[0][0] is Kind.HTTP_EXCHANGE or joined[0][:2] == judge(head)):
        return []
    return [Part(kind, dialect, first + 1, end, "\n" * first + "\n".join(lines[first:end]) + "\n") for kind, dialect, first, end in joined]


def judge(head: bytes) -> tuple[Kind, Dialect | None]:
    """Kind, and for a log the dialect it is in."""
    if not head.strip() or b"\0" in head:
        return Kind.UNKNOWN, None
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    if text.lstrip()[:1] == "{" and range_query.MARK.search(text):
        return Kind.RANGE_QUERY, None
    if bench_results.is_results(text):
        return Kind.BENCHMARK, None
    first = next(
        (line for line in text.split("\n") if line.strip() and not line.startswith(("#", "//")) and not PROMPT.match(line.encode())), ""
    )
    first = first if json_lines.read(first.strip()) is not None else unwrap(first).text
    if (
        first.lstrip()[:1] in ("{", "[")
        and (json_lines.read(first.strip()) is None or calls.is_call(first))
        and (kind := _json_kind(text, first)) is not None
    ):
        copied = kind is Kind.CALLS and any(
            http_exchange.CURL.match(line) and not line.startswith("#") for line in text.split("\n", TABLE_LINES)[:TABLE_LINES]
        )
        return (Kind.HTTP_EXCHANGE if copied else kind), None
    lines = [line[:LONGEST_SEEN] for raw in text.split("\n") for line in unwrap(raw).text.split("\n") if line.strip()]
    if any(_GPU.search(line) and "," in line for line in lines[:5]):
        return Kind.GPU_CSV, None
    if sum(1 for line in lines if _CGROUP.match(line)) > 1:
        return Kind.NOTES, None
    if _is_prometheus(lines):
        return Kind.PROMETHEUS, None
    subject = gpu_table.subject_of(lines[:TABLE_LINES])
    if subject is not None:
        return (Kind.GPU_CSV if subject is gpu_table.Subject.CARDS else Kind.PROCESS_TABLE), None
    if calls.is_table(lines):
        return Kind.CALLS, None
    dialect = load()["supervisor"] if _JSON.match(text) and _CONTAINER.search(text) else _log_dialect(lines)
    if dialect is not None:
        if dialect.name == BENCHES:
            return Kind.BENCHMARK, dialect
        return (Kind.ENGINE_LOG if dialect.role is Role.ENGINE else Kind.ACCESS_LOG), dialect
    if lines and 2 * sum(_UVICORN.match(line) is not None for line in lines) > len(lines):  # nothing but an access log
        return Kind.ENGINE_LOG, load()["vllm"]
    if _are_calls(text):
        return Kind.CALLS, None
    if _is_exchange(lines):
        return Kind.HTTP_EXCHANGE, None
    if any(_UVICORN.match(line) for line in lines[:50]):
        return Kind.ENGINE_LOG, load()["vllm"]
    is_json = _JSON.match(text) is not None
    is_settings = config_files.is_settings(lines)
    if not is_json and (is_settings or _FLAGS.search(text)):
        return Kind.FLAGS, None
    if is_json and is_settings:
        return Kind.FLAGS, None
    if is_json and any(
        calls.is_call(line) for line in text.split("\n", TABLE_LINES)[:TABLE_LINES]
    ):  # a log that begins with something else
        return Kind.CALLS, None
    if is_json:
        return (Kind.NOTES if _ALERT.search(text) else Kind.UNKNOWN), None
    return (Kind.UNKNOWN if any(_DATED.match(line) for line in lines[:20]) or "\ufffd" in text else Kind.NOTES), None


def _json_kind(text: str, first: str) -> Kind | None:

    def has(*keys: str) -> bool:
        return all(re.search(rf'"{key}"\s*:', text) for key in keys)

    if (
        has("resourceSpans")
        or has("trace_id", "span_id")
        or has("traceID", "spanID")
        or has("traceId", "spanId")
        or has("traceId", "localEndpoint")
    ):
        return Kind.SPANS
    if has("request", "method", "status", "body") and not has("msg"):  # which Caddy's log lines have
        return Kind.HTTP_EXCHANGE
    if calls.is_call(first):
        return Kind.CALLS
    if has("request", "method") and (has("status") or has("path")):
        return Kind.HTTP_EXCHANGE
    if any(has(key) for key in ("max_position_embeddings", "model_type", "num_hidden_layers", "architectures")):
        return Kind.MODEL_CONFIG
    if has("perf_metrics", "timing_metrics"):
        return Kind.TIMINGS
    if has("n_ctx", "is_processing"):
        return Kind.HTTP_EXCHANGE
    if has("choices", "finish_reason") or has("done_reason", "eval_count") or has("generated_text", "details"):
        return Kind.HTTP_EXCHANGE  # an answer alone
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
    if any(http_exchange.STATUS.match(as_curl(line)) or http_exchange.CURL.match(line) for line in lines):
        return True
    if any((stamp := STAMP.match(line)) and http_exchange.STATUS.match(stamp["rest"]) for line in lines):
        return True
    if any(ADDRESS.match(line) for line in lines) and any(CAUSE.match(line) for line in lines):  # an error that Node printed
        return True
    client = load()["client"]
    told = (*client.failures, *client.statuses)
    return any(one.regex.search(line) for line in lines if not line[:1].isspace() for one in told) or _is_told(lines[:TABLE_LINES])


def _are_calls(text: str) -> bool:
    """Records, one a line, of which some tell of calls, whatever their errors say; nothing that somebody copied between them."""
    lines = [line for line in text.split("\n", TABLE_LINES)[:TABLE_LINES] if line.strip()]
    records = [line for line in lines if line.startswith("{")]
    return len(records) > 1 and len(records) >= len(lines) - 1 and any(calls.is_call(line) for line in records)


def _is_told(lines: list[str]) -> bool:
    """Lines that tell of calls in pairs, or pieces of a stream."""
    pieces = sum(1 for line in lines if CHUNK.match(line) or TIMED.match(line) or EVENT.match(line))
    return (
        pieces > 2
        or any((head := HEADER.match(line)) and (head["time"] or head["unit"]) for line in lines[:20])
        or any(calls.is_pairs(line) or ACCESS.search(line) for line in lines)
    )


def _count_lines(path: Path) -> int:
    """Line ends, by pieces: a file may have none."""
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b"")) + 1
