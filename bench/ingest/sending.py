"""The client process from the bench's side: made, told where to send, and what it says at the end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from gateway.process import BenchError, Group

from ingest.client import SEED, Sent, Target

BENCH = Path(__file__).resolve().parent.parent


class Client:
    """A client process whose bodies are made; `body_bytes` is what they come to."""

    def __init__(self, group: Group) -> None:
        assert group.process.stdin is not None
        assert group.process.stdout is not None
        self._group, self._to, self._from = group, group.process.stdin, group.process.stdout
        self.body_bytes = int(self._line().removeprefix(b"ready "))

    def send(self, target: Target) -> None:
        """Begin; `sent` waits for the end."""
        self._to.write(msgspec.json.encode(target) + b"\n")
        self._to.flush()

    def sent(self) -> Sent:
        """When all bodies are acknowledged. Raises BenchError where one was refused for good."""
        return msgspec.json.decode(self._line(), type=Sent)

    def _line(self) -> bytes:
        line = self._from.readline()
        if not line.endswith(b"\n"):
            self._group.process.wait()
            raise BenchError(f"the client ended early: {self._group.last_words()}")
        return line


@contextmanager
def client(folder: Path, spans: int, a_body: int, connections: int, seed: int = SEED) -> Iterator[Client]:
    command = [sys.executable, "-m", "ingest.client", str(spans), str(a_body), str(connections), str(seed)]
    group = Group("client", command, None, folder / "client.log", cwd=BENCH, talks=True)
    try:
        yield Client(group)
    finally:
        group.end()
