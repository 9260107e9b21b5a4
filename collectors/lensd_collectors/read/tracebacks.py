"""Tracebacks line by line, also those printed without a log's frame and by several processes at a time."""

import re
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

_DEPTH: Final = 12  # innermost calls that are kept
_PROCESSES: Final = 32  # whose traceback is followed at a time
_TOLD: Final = 64  # errors that are remembered
_CALL: Final = re.compile(r'^\s+File "(?P<file>[^"]*)", line \d+, in (?P<function>[\w<>.]+)')
_PACKAGES: Final = re.compile(r".*/(?:(?:site|dist)-packages|python3(?:\.\d+)?)/")  # what stands before the path of an installed module
_CONTINUATION: Final = re.compile(r"^(?:\s|Traceback \(|The above exception|During handling|[\^~]+$|$)")
_ERROR: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::\s|:?$)")
_NO_FAULT: Final = ("KeyboardInterrupt", "SystemExit", "CancelledError", "GeneratorExit")
_OPENING: Final = "Traceback (most recent call last)"
_LOOSE: Final = re.compile(
    r"(?:\((?P<process>[A-Za-z][\w ]*?)(?:[ -]\d+)?(?: rank=\d+)?(?: pid=(?P<pid>\d+)(?:, ip=[\d.]+)?)?\) ?)?"
    r"(?:\[rank(?P<rank>\d+)\]: ?)?"
    r"(?:\[(?P<letter>[DIWEF])(?P<month>\d\d?)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d(?:\.\d{1,6})?)\d* "  # torch's C++ part
    r"(?P<file>[\w./-]+):(?P<line>\d+)\] )?"
    r"(?P<text>.*)$",
    re.DOTALL,
)
_LEVELS: Final = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}


class Loose(NamedTuple):
    """A line without its log's frame: what is said, and by whom as far as it says that."""

    text: str
    framed: bool  # torch's own frame, which names a level
    parts: Mapping[str, str | None]  # process, pid, level, date (MM-DD), time


def loose(line: str) -> Loose:
    """The line without the prefix of a process or rank."""
    match = _LOOSE.match(line)
    if match is None:
        return Loose(line, False, {})
    found = match.groupdict()
    process = found["process"] or (f"rank{found['rank']}" if found["rank"] else None)
    level = _LEVELS.get(found["letter"] or "")
    date = f"{found['month']:0>2}-{found['day']}" if found["day"] else None
    return Loose(
        match["text"], level is not None, {"process": process, "pid": found["pid"], "level": level, "date": date, "time": found["time"]}
    )


class Part(Enum):
    """What a line is to the traceback of its process."""

    INSIDE = "inside"
    END = "end"  # names the error
    QUIET_END = "quiet_end"  # names what is no fault, or what was told already
    OUTSIDE = "outside"


class Tracebacks:
    """The calls of the traceback that each process is printing; bounded, whatever is printed."""

    def __init__(self) -> None:
        self._calls: dict[str, deque[tuple[str, int, str]]] = {}
        self._open: dict[str, None] = {}  # processes in the middle of one that has no frame
        self._announced = False  # by the last framed line
        self._told: deque[str] = deque(maxlen=_TOLD)

    def inside(self, process: str, body: str, number: int) -> bool:
        """True for a line that belongs to a traceback and does not name the error; its call is kept."""
        call = _CALL.match(body)
        if call:
            if process not in self._calls and len(self._calls) >= _PROCESSES:
                self._calls.pop(next(iter(self._calls)))
            self._calls.setdefault(process, deque(maxlen=_DEPTH)).append((call["function"], number, call["file"]))
        return bool(call or _CONTINUATION.match(body))

    def framed(self, body: str, follows: str) -> None:
        """A framed line. SGLang's and TensorRT-LLM's end in a traceback's first line, or are one; its rest `follows` without a frame."""
        announces = body.rstrip().endswith(f"{_OPENING}:")
        if announces:
            self._begin(follows)
        elif self._announced:
            self.close(follows)
        self._announced = announces

    def _begin(self, process: str) -> None:
        if len(self._open) >= _PROCESSES:
            self._open.pop(next(iter(self._open)))
        self._open[process] = None

    def unframed(self, process: str, body: str, number: int) -> Part:
        """The same for a line without its log's frame, which has to follow a traceback's first line to belong to one."""
        if body.startswith(_OPENING):
            self._begin(process)
            return Part.INSIDE
        if process not in self._open:
            return Part.OUTSIDE
        if self.inside(process, body, number):
            return Part.INSIDE
        error = _ERROR.match(body)
        if error is None:
            return Part.OUTSIDE
        del self._open[process]
        if error["name"].rpartition(".")[2] in _NO_FAULT or body in self._told:
            self._calls.pop(process, None)
            return Part.QUIET_END
        return Part.END

    def told(self, body: str) -> None:
        """An error that was told need not be told again when it is printed once more."""
        self._told.append(body)

    def close(self, process: str) -> None:
        """The process's traceback has ended."""
        self._open.pop(process, None)

    def stack(self, process: str) -> dict[str, object]:
        """The calls of the traceback before this line, innermost last, the lines they stand on, and their modules; it is over then."""
        calls = self._calls.pop(process, None)
        if not calls:
            return {}
        functions, lines, files = zip(*calls, strict=True)
        return {"stack": list(functions), "stack_lines": list(lines), "stack_files": [module_of(file) for file in files]}


def module_of(file: str) -> str:
    """The path of a module within what is installed; of another the last folder and the name, since what is before them is of a machine.

    >>> module_of("/usr/lib/python3.12/site-packages/zmq/_future.py"), module_of("/home/me/src/serve/loop.py")
    ('zmq/_future.py', 'serve/loop.py')
    """
    installed = _PACKAGES.match(file)
    return file[installed.end() :] if installed else "/".join(file.split("/")[-2:])
