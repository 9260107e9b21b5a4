"""A container's state and log from docker's socket, by GET alone: it is never started, stopped or changed."""

import http.client
import re
import socket
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors.host.lifecycle import TIMEOUT_S, Ask, End, Run, UnavailableError, instant_ns, signalled
from lensd_collectors.host.line import FOLLOWED, Allowance, Line, Splitter, Standing, State, why

SOCKET: Final = "/var/run/docker.sock"
MOST_BODY_BYTES: Final = 4 * 1024 * 1024
MOST_HEAD_BYTES: Final = 16 * 1024
MOST_FRAME_BYTES: Final = 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024
LOOK_EVERY_S: Final = 2.0
STREAMS: Final = {1: "stdout", 2: "stderr"}
_TIMED: Final = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT[\d:]+(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ?(?P<text>.*)\Z", re.DOTALL)


class _State(msgspec.Struct, rename="pascal", frozen=True):
    running: bool = False
    oom_killed: bool = msgspec.field(name="OOMKilled", default=False)
    pid: int = 0
    exit_code: int = 0
    started_at: str = ""
    finished_at: str = ""


class _Config(msgspec.Struct, rename="pascal", frozen=True):
    tty: bool = False


class Container(msgspec.Struct, rename="pascal", frozen=True):
    """What `docker inspect` says, as far as it is of use here."""

    id: str = ""
    restart_count: int = 0
    state: _State = _State()
    config: _Config = _Config()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = _connected(self._path)


def _connected(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(TIMEOUT_S)
        made.connect(path)
    except OSError:
        made.close()
        raise
    return made


def inspect(path: str, name: str) -> Container:
    """One container. Raises UnavailableError."""
    connection = _Connection(path)
    try:
        connection.request("GET", f"/containers/{name}/json", headers={"Connection": "close"})
        response = connection.getresponse()
        status, body = response.status, response.read(MOST_BODY_BYTES)
    except OSError as error:
        standing = why(error)
        raise UnavailableError(standing._replace(reason=f"{path}: {standing.reason}")) from None
    except (http.client.HTTPException, ValueError):
        raise UnavailableError(Standing(State.MISSING, f"{path} is no docker socket")) from None
    finally:
        connection.close()
    if status != 200:
        raise UnavailableError(_refused(status, name))
    try:
        return msgspec.json.decode(body, type=Container)
    except (msgspec.DecodeError, UnicodeError):
        raise UnavailableError(Standing(State.MISSING, f"{path} is no docker socket")) from None


def _refused(status: int, name: str) -> Standing:
    if status == 404:
        return Standing(State.MISSING, f"docker has no container {name}")
    return Standing(State.DENIED if status in (401, 403) else State.MISSING, f"docker answered {status}")


def asking(path: str, name: str) -> Ask:
    """Asks docker for a container's state."""

    def ask() -> Run:
        container = inspect(path, name)
        state = container.state
        end = End(instant_ns(state.finished_at), state.finished_at, signalled(state.exit_code), state.oom_killed)
        return Run(
            running=state.running,
            began=f"{container.id}@{state.started_at}",
            began_ns=instant_ns(state.started_at),
            pid=state.pid or None,
            restarts=container.restart_count,
            end=None if state.running or not end.at_ns else end,  # of a running one docker no longer says how it ended before
        )

    return ask


class DockerLog:
    """Lines of a container from now on, over its restarts; in the form of CRI, which keeps pieces, streams and instants apart.

    What comes over the rate waits at docker. After a pause the log is asked for from the last instant on.
    """

    def __init__(self, path: str, name: str, max_lines_per_s: int, clock_s: Callable[[], float], *, wall_s: Callable[[], float]) -> None:
        self._path, self._name, self._clock_s = path, name, clock_s
        self._allowance = Allowance(max_lines_per_s, clock_s)
        self._since, self._last_at = f"{wall_s():.9f}", ""
        self._skip_to = ""  # instants up to this one have been given
        self._began = ""  # the run whose log was asked for last
        self._socket: socket.socket | None = None
        self._tty, self._in_head = False, True
        self._bytes, self._splitter = bytearray(), Splitter()
        self._lines: deque[str] = deque()
        self._number = 0
        self._standing = Standing(State.MISSING, "not asked yet")
        self._look_at = clock_s()

    @property
    def standing(self) -> Standing:
        return self._standing

    @property
    def file(self) -> Path | None:
        return None

    def poll(self) -> Iterator[Line]:
        self._allowance.renew()
        if self._socket is None and not self._lines and (self._clock_s() < self._look_at or not self._ask()):
            return
        while self._allowance.open and (self._lines or self._read()):
            while self._lines and self._allowance.open:
                self._allowance.take()
                self._number += 1
                yield Line(self._lines.popleft(), self._number)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self) -> bool:
        """Asks for the log, unless nothing has run since it was asked for last."""
        self._look_at = self._clock_s() + LOOK_EVERY_S
        try:
            container = inspect(self._path, self._name)
            began = f"{container.id}@{container.state.started_at}"
            if not container.state.running and began == self._began:
                self._standing = Standing(State.MISSING, f"container {self._name} does not run")
                return False
            made = _connected(self._path)
        except UnavailableError as unavailable:
            self._standing = unavailable.standing
            return False
        except OSError as error:
            self._standing = why(error)
            return False
        query = f"follow=1&stdout=1&stderr=1&timestamps=1&since={self._since}"
        try:
            # HTTP/1.0: the body is not cut into chunks and ends with the connection
            made.sendall(f"GET /containers/{self._name}/logs?{query} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            made.setblocking(False)
        except OSError as error:
            made.close()
            self._standing = why(error)
            return False
        self._socket, self._began, self._tty, self._in_head = made, began, container.config.tty, True
        self._skip_to = self._last_at
        self._bytes.clear()
        self._splitter = Splitter()
        self._standing = FOLLOWED
        return True

    def _read(self) -> bool:
        """Takes what docker has sent; False where that is nothing."""
        if self._socket is None:
            return False
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        self._bytes += data
        if self._in_head and not self._head():
            return self._socket is not None
        if self._tty:
            for text in self._splitter.feed(bytes(self._bytes)):
                self._keep(text)
            self._bytes.clear()
        else:
            self._frames()
        return True

    def _head(self) -> bool:
        """Takes off the answer's head; False while it is not whole, and where it refuses."""
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            if len(self._bytes) > MOST_HEAD_BYTES:
                self._give_up(Standing(State.MISSING, f"{self._path} is no docker socket"))
            return False
        words = bytes(self._bytes[:end]).split(None, 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status != 200:
            self._give_up(_refused(status, self._name))
            return False
        del self._bytes[: end + 4]
        self._in_head = False
        return True

    def _frames(self) -> None:
        """Whole frames: a byte for the stream, three of nothing, the length in four, then a line or a piece of one."""
        at = 0
        while len(self._bytes) - at >= 8:
            size = int.from_bytes(self._bytes[at + 4 : at + 8], "big")
            if self._bytes[at] not in (0, 1, 2) or size > MOST_FRAME_BYTES:
                self._give_up(Standing(State.MISSING, "docker's log is in a form that is not known"))
                return
            if len(self._bytes) - at - 8 < size:
                break
            text = bytes(self._bytes[at + 8 : at + 8 + size]).decode("utf-8", "replace")
            self._keep(text, STREAMS.get(self._bytes[at], "stdout"))
            at += 8 + size
        del self._bytes[:at]

    def _keep(self, text: str, stream: str = "") -> None:
        match = _TIMED.match(text)
        if match is None:
            self._lines.append(text.rstrip("\r\n"))
            return
        at = match["at"]
        if at <= self._skip_to:
            return
        self._last_at, self._since = at, _unix(at)
        if stream:
            tag = "F" if text.endswith("\n") else "P"
            text = f"{at} {stream} {tag} {match['text']}"
        self._lines.append(text.rstrip("\r\n"))

    def _give_up(self, standing: Standing) -> None:
        self._standing = standing
        self._bytes.clear()
        self.close()


def _unix(at: str) -> str:
    """Seconds since the epoch with nine decimals, as docker's `since` wants them."""
    fraction = re.search(r"\.(\d+)", at)
    digits = (fraction[1] if fraction else "")[:9].ljust(9, "0")
    return f"{instant_ns(at) // 1_000_000_000}.{digits}"
