"""Log lines that are JSON records, of docker, journald, vLLM's JSON formatter or Rust's tracing, back in the form of plain lines."""

import re
from typing import Final, NamedTuple

import msgspec

_LONGEST: Final = 1 << 20  # characters of a record that is looked at
_DATE: Final = re.compile(r"(?:\d{4}-)?(\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
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
    level: str = ""
    target: str = ""
    fields: _Fields | None = None


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
    if record.real_us.isdigit():
        said = record.said
        text = said if isinstance(said, str) else bytes(byte & 255 for byte in said or ()).decode("utf-8", "replace")
        return Inner("\n".join(text.splitlines()), at_us=int(record.real_us[:18]), more=record.cut == "line-max")
    if record.message is not None and record.levelname:
        return Inner(_plain(record, record.message))
    if record.fields is not None and record.fields.message is not None and record.target and record.level:
        return Inner(f"{record.timestamp} {record.level:>5} {record.target}: {record.fields.message}")
    return None


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
