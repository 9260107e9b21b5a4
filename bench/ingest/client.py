"""The sender, a process of its own: bodies are made before the clock starts, then sent over several connections as fast as they are taken.

usage: python -m ingest.client SPANS A_BODY CONNECTIONS SEED

Says `ready BYTES` once the bodies are made, reads one line of JSON that is a `Target`, and answers with one that is a `Sent`.
"""

import socket
import sys
import threading
import time
from collections.abc import Sequence

import msgspec

from ingest.spans import LASTS_US, SPACING_US, bodies

SEED = 22  # of the spans that are measured
HEAD_END = b"\r\n\r\n"
TIMEOUT_S = 120.0
AGAIN_S = 0.1


class Target(msgspec.Struct, frozen=True):
    port: int
    headers: dict[str, str] = {}


class Sent(msgspec.Struct, frozen=True):
    """Instants of one clock (`time.monotonic`), in seconds: when each body was sent and when it was acknowledged."""

    sent_at: list[float]
    acked_at: list[float]
    refused: int = 0  # answered 429, and sent again


class Sender:
    """Takes the next body that nobody has sent, over one connection."""

    def __init__(self, target: Target, made: Sequence[bytes]) -> None:
        self._target, self._made = target, made
        self._next, self._lock = iter(range(len(made))), threading.Lock()
        self.sent_at, self.acked_at = [0.0] * len(made), [0.0] * len(made)
        self.refused = 0
        self.failed: list[str] = []

    def run(self) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._target.port), TIMEOUT_S) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while (number := self._take()) is not None:
                    self._send(connection, number)
        except (OSError, ValueError) as error:
            self.failed.append(f"{type(error).__name__}: {error}")

    def _take(self) -> int | None:
        with self._lock:
            return next(self._next, None)

    def _send(self, connection: socket.socket, number: int) -> None:
        body = self._made[number]
        more = "".join(f"{name}: {value}\r\n" for name, value in self._target.headers.items())
        about = f"host: 127.0.0.1\r\ncontent-type: application/x-protobuf\r\ncontent-length: {len(body)}\r\n{more}"
        head = f"POST /v1/traces HTTP/1.1\r\n{about}\r\n"
        self.sent_at[number] = time.monotonic()
        while True:
            connection.sendall(head.encode())
            connection.sendall(body)
            status = _answer(connection)
            if status != 429:
                break
            self.refused += 1
            time.sleep(AGAIN_S)
        if not 200 <= status < 300:
            raise ValueError(f"a body was answered {status}")
        self.acked_at[number] = time.monotonic()


def _answer(connection: socket.socket) -> int:
    """The status of the answer, read to its end."""
    held = b""
    while HEAD_END not in held:
        held += _received(connection)
    head, _, body = held.partition(HEAD_END)
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    left = int(fields.get("content-length", "0")) - len(body)
    while left > 0:
        left -= len(_received(connection))
    return int(first.split()[1])


def _received(connection: socket.socket) -> bytes:
    piece = connection.recv(65536)
    if not piece:
        raise OSError("the receiver closed the connection")
    return piece


def main(argv: Sequence[str]) -> int:
    spans, a_body, connections, seed = map(int, argv[1:])
    began_us = time.time_ns() // 1000 - LASTS_US - spans // 7 * SPACING_US  # so that the last request has ended by now
    made = list(bodies(spans, a_body, began_us, seed))
    print(f"ready {sum(map(len, made))}", flush=True)
    sender = Sender(msgspec.json.decode(sys.stdin.readline(), type=Target), made)
    threads = [threading.Thread(target=sender.run) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sender.failed:
        print(sender.failed[0], file=sys.stderr)
        return 1
    print(msgspec.json.encode(Sent(sender.sent_at, sender.acked_at, sender.refused)).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
