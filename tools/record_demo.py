"""Keep a demo's telemetry as the recording that `lensd demo` shows where no engine can be had.

usage: record_demo.py FOLDER       FOLDER is that of a `lensd demo --once` that named every fault right
"""

import base64
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

import lensd.demo
from lensd.demo.replay import Body, Recording, parsed, write
from lensd.demo.tour import Stop
from lensd.store.segments import Scan

PATHS = re.compile(r"(?:/[\w.@+-]+)+(?=/(?:\.?engine|lib|venv|model|\.demo)\b)")
"""Where something lay on the machine that recorded; what it was is kept."""


def main() -> None:
    folder = Path(sys.argv[1])
    stops = msgspec.json.decode((folder / "tour.json").read_bytes(), type=list[Stop])
    wrong = [stop.name for stop in stops if not stop.right]
    if wrong:
        sys.exit(f"not a run to show: {', '.join(wrong)} was not named right")
    bodies = []
    for record in Scan(folder / "store" / "journal", 0):
        body = Body(record.kind.name.lower(), record.received_at_us, base64.b64encode(record.payload).decode())
        message = parsed(body)
        _neutral(message)
        bodies.append(msgspec.structs.replace(body, protobuf=base64.b64encode(message.SerializeToString(deterministic=True)).decode()))
    shown = tuple((s.name, s.wanted, s.request_id) for s in stops if s.request_id is not None)
    out = Path(lensd.demo.__file__).parent / "recording.json.xz"
    write(Recording(engine="vLLM 0.32.0 on the CPU", stops=shown, bodies=tuple(bodies)), out)
    print(f"{len(bodies)} bodies, {len(shown)} stops, {out.stat().st_size:,} bytes in {out.name}")


def _neutral(message: Any) -> None:
    """Take this machine's paths and name out of every text of the message."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(message, field.name, PATHS.sub("/srv/llm", value))
        elif field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                _neutral(part)


main()
