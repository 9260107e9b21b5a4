"""Senders that behave as exporters do: a body that was not answered is sent again, the same bytes, until it is."""

import http.client
import itertools
import threading
from collections import Counter
from typing import Final

from daemon_process import Daemon
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lensd.store.folder import FolderStore

SENDERS: Final = 4
SPANS: Final = 5
PAUSE_S: Final = 0.02  # before a body is sent again


def body_of(number: int, at_ns: int, padding: int = 200) -> bytes:
    """Five spans, each with a name of its own."""
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for part in range(SPANS):
        span = scope.spans.add(name=f"{number}/{part}", start_time_unix_nano=at_ns, end_time_unix_nano=at_ns + 1000)
        span.trace_id, span.span_id = number.to_bytes(16), (number * SPANS + part + 1).to_bytes(8)
        span.attributes.add(key="note").value.string_value = f"{number:x}." * (padding // 8)
    return message.SerializeToString()


class Load:
    """Senders in threads from `start` to `stop`; what was sent, what was acknowledged, and how often a try came to nothing."""

    def __init__(self, daemon: Daemon, at_ns: int, *, timeout_s: float = 5.0, padding: int = 200) -> None:
        self._daemon, self._at_ns, self._timeout_s, self._padding = daemon, at_ns, timeout_s, padding
        self._numbers, self._stop, self._lock = itertools.count(1), threading.Event(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._owed: list[int] = []  # sent without an answer when the senders stopped
        self.acknowledged: set[int] = set()
        self.statuses: Counter[int] = Counter()  # 0: no answer, -1: no connection
        self.retry_after: set[str] = set()

    def start(self) -> None:
        token = (self._daemon.store / "token").read_text().strip()
        headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {token}"}
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._send, args=(headers, owed)) for owed in [self._owed[i::SENDERS] for i in range(SENDERS)]
        ]
        self._owed = []
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """What is not answered by now stays owed and is sent again at the next start."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def settle(self) -> None:
        """Send everything that is owed, and nothing new, until it is answered."""
        numbers, self._numbers = self._numbers, iter(())  # type: ignore[assignment]
        self.start()
        for thread in self._threads:
            thread.join()
        self._numbers = numbers
        assert not self._owed

    def _send(self, headers: dict[str, str], owed: list[int]) -> None:
        for number in itertools.chain(owed, iter(self._next, None)):
            body = body_of(number, self._at_ns, self._padding)
            while not self._taken(number, body, headers):
                if self._stop.is_set():
                    break
                self._stop.wait(PAUSE_S)
            if self._stop.is_set():
                return self._owe(number, owed)
        return None

    def _next(self) -> int | None:
        with self._lock:
            return None if self._stop.is_set() else next(self._numbers, None)

    def _owe(self, number: int, owed: list[int]) -> None:
        rest = owed[owed.index(number) + 1 :] if number in owed else []
        with self._lock:
            self._owed += [each for each in (number, *rest) if each not in self.acknowledged]

    def _taken(self, number: int, body: bytes, headers: dict[str, str]) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._daemon.otlp, timeout=self._timeout_s)
        try:
            connection.request("POST", "/v1/traces", body, headers)
            answer = connection.getresponse()
            answer.read()
            status, after = answer.status, answer.getheader("retry-after")
        except ConnectionRefusedError:
            status, after = -1, None
        except (OSError, http.client.HTTPException):
            status, after = 0, None
        finally:
            connection.close()
        with self._lock:
            self.statuses[status] += 1
            if after:
                self.retry_after.add(after)
            if status == 200:
                self.acknowledged.add(number)
        return status == 200


def spans_in(daemon: Daemon) -> Counter[str]:
    """How often each span's name is in the store of a daemon that has ended in order."""
    store = FolderStore(daemon.store, read_only=True)
    try:
        with store.cursor() as cursor:
            return Counter(dict(cursor.execute("SELECT name, count(*) FROM spans GROUP BY name").fetchall()))
    finally:
        store.close()


def compared(load: Load, found: Counter[str]) -> tuple[list[str], list[str]]:
    """Spans that were acknowledged and are lost, and spans that are there more than once."""
    wanted = [f"{number}/{part}" for number in sorted(load.acknowledged) for part in range(SPANS)]
    return [name for name in wanted if not found[name]], sorted(name for name, times in found.items() if times > 1)
