"""Log lines that are JSON records, of docker, journald, vLLM's JSON formatter or Rust's tracing, back in the form of plain lines."""

import re
from typing import Final, NamedTuple

import msgspec

_LONGEST: Final = 1 << 20  # characters of a record that is looked at
_DATE: Final = re.compile(r"(?:\d{4}-)?(\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_PINO: Final = {10: "DEBUG", 20: "DEBUG", 30: "INFO", 40: "WARNING", 50: "ERROR", 60: "CRITICAL"}
_CALL: Final = re.compile(r'"(?:status|status_?code|http_?code|response_code|DownstreamStatus)"\s*:\s*"?\d{3}\b', re.IGNORECASE)
_NOT_NAME: Final = re.compile(r"\W+")


class Inner(NamedTuple):
    """What a record holds: `text` may have several lines; `at_us` or `time` (RFC 3339) where it says when."""

    text: str
    at_us: int | None = None
    time: str = ""
    more: bool = False
    stream: str = ""


class _Fields(msgspec.Struct):
    message: str | None = None


class _Record(msgspec.Struct):
    # docker's json-file
    log: str | None = None
    stream: str = ""
    time: str = ""
    # journalctl -o json; bytes that are no text come as a list, what is too long as null
    said: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)
    real_us: str = msgspec.field(name="__REALTIME_TIMESTAMP", default="")
    cut: str = msgspec.field(name="_LINE_BREAK", default="")
    # vLLM's JSON formatter
    asctime: str = ""
    levelname: str = ""
    name: str = ""
    process_name: str = msgspec.field(name="processName", default="")
    process: int | None = None
    message: str | None = None
    exc_info: str | None = None
    # Rust's tracing, as text-generation-inference writes it
    timestamp: str = ""
    level: str | int = ""
    target: str = ""
    fields: _Fields | None = None
    filename: str = ""
    line_number: int | None = None
    span: dict[str, object] | None = None
    spans: list[dict[str, object]] | None = None
    # structured loggers: LiteLLM's, structlog's, pino's, zap's
    msg: str | None = None
    event: str | None = None
    severity: str = ""
    ts: str | float = ""
    at: str = ""
    instant: str = msgspec.field(name="@timestamp", default="")
    logger: str = ""
    caller: str = ""
    source: str = ""
    stacktrace: str | None = None


_decoder: Final = msgspec.json.Decoder(_Record)


def read(text: str) -> Inner | None:
    """The record's line or lines; None for JSON of another kind, and for what is none."""
    if len(text) > _LONGEST:
        return None
    try:
        record = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return None
    if record.log is not None and record.time:
        return Inner(record.log.rstrip("\r\n"), time=record.time, more=not record.log.endswith("\n"), stream=record.stream)
    written = next((one for one in (record.ts, record.timestamp, record.at, record.instant) if isinstance(one, str) and one), "")
    if record.log is not None and written:  # a shipper of logs: whole lines, without their ends
        return Inner(record.log.rstrip("\r\n"), time=written, stream=record.stream)
    if record.real_us.isdigit():
        said = record.said
        text = said if isinstance(said, str) else bytes(byte & 255 for byte in said or ()).decode("utf-8", "replace")
        return Inner("\n".join(text.splitlines()), at_us=int(record.real_us[:18]), more=record.cut == "line-max")
    if record.message is not None and record.levelname:
        return Inner(_plain(record, record.message))
    if record.fields is not None and record.fields.message is not None and record.target and record.level:
        return Inner(f"{record.timestamp} {record.level:>5} {record.target}: {record.fields.message}")
    if record.message is not None and record.target and isinstance(record.level, str) and record.level:
        spans = "".join(f"{one.get('name', 'span')}{{{_pairs(one)}}}: " for one in record.spans or ([record.span] if record.span else []))
        place = f"{record.filename}:{record.line_number}: " if record.filename else ""
        return Inner(f"{record.timestamp} {record.level:>5} {spans}{record.target}: {place}{record.message}")
    return _structured(record, text)


def _pairs(span: dict[str, object]) -> str:
    """A span's values as tracing writes them in plain lines."""
    return " ".join(
        f'{name}="{value}"' if name != "parameters" else f"parameters={value}" for name, value in span.items() if name != "name"
    )


def _structured(record: _Record, text: str) -> Inner | None:
    """`time - logger:LEVEL: place - message`, LiteLLM's plain form; None without level, time and message, and for a call."""
    said = record.message or record.msg or record.event
    level = _PINO.get(record.level, "") if isinstance(record.level, int) else record.level or record.severity
    when = record.timestamp or record.time or record.at or (record.ts if isinstance(record.ts, str) else "")
    if said is None or not level or not (when or record.ts) or _CALL.search(text):
        return None
    name = record.logger or record.caller or record.source or "log"
    lines = said.splitlines() + (record.stacktrace.splitlines() if record.stacktrace else [])
    word = "WARNING" if level.upper() == "WARN" else level.upper()
    frame = f"{when} - {name}:{word}: {record.source or '-'} - "
    at_us = round(record.ts * 1e6) if isinstance(record.ts, float | int) and 1e8 < record.ts < 1e11 else None
    return Inner("\n".join(frame + line for line in lines), at_us=at_us, time=when)


def _plain(record: _Record, message: str) -> str:
    """The lines that vLLM's plain formatter would have written: its frame before each of them."""
    process = _NOT_NAME.sub("_", record.process_name).strip("_") or "process"
    when = _DATE.match(record.asctime)
    pid = "" if record.process is None else f" pid={record.process}"
    file = _NOT_NAME.sub("/", record.name).strip("/") or "log"  # a logger bears its module's name; the line is not told
    stamp = f"{when[1]} {when[2]} [{file}.py:0] " if when else ""
    frame = f"({process}{pid}) {record.levelname}{' ' if stamp else ':     '}{stamp}"
    if not process[0].isalpha():
        frame = frame.replace(f"({process}", f"(p{process}", 1)
    lines = message.splitlines() + (record.exc_info.splitlines() if record.exc_info else [])
    return "\n".join(frame + line for line in lines or [""])
