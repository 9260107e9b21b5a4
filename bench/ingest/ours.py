"""One round against a real daemon: what was sent, when it was acknowledged, and when the store had it."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import daemon_process
import duckdb
import msgspec
from gateway.process import BenchError

from ingest.client import Sent, Target
from ingest.sending import client
from ingest.spans import A_REQUEST

LOOK_S: Final = 0.25
LOOKING_SHARE: Final = 0.1
"""Of the time, so that counting verdicts, which reads every request, takes little from what is measured."""
STORED_WITHIN_S: Final = 120.0
ENDS_WITHIN_S: Final = 120.0
JUDGED_WITHIN_S: Final = 300.0
WATCH_S: Final = 0.01
APART_S: Final = 0.1
"""Writes to a day file that are no further apart are of one checkpoint."""


class Look(NamedTuple):
    """What the daemon said at an instant."""

    at: float
    records: int
    rows: int


class Result(msgspec.Struct, frozen=True):
    """One round. Instants are of `time.monotonic`, in seconds."""

    spans: int
    body_bytes: int
    sent: Sent
    looks: list[Look]
    stored_at: float
    judged_at: float | None
    checkpoints: list[tuple[float, float]]
    requests: int
    judged: int
    store_bytes: int
    cpu_s: float


class Served(daemon_process.Daemon):
    """A daemon whose timeline and rules look when they are told to."""

    def __init__(self, folder: Path, evaluate_every_s: float) -> None:
        super().__init__(folder)
        self._every = evaluate_every_s

    def environment(self) -> dict[str, str]:
        return super().environment() | {"LENSD_SERVE__EVALUATE_EVERY_S": str(self._every)}

    def stop(self) -> None:
        """In order: it judges once more before it lets go of its files. Raises BenchError where it does not."""
        self.process.send_signal(signal.SIGTERM)
        try:
            ended = self.process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise BenchError(f"the daemon had not ended {ENDS_WITHIN_S:.0f} s after SIGTERM") from None
        if ended:
            raise BenchError(f"the daemon ended with {ended}: see {self.folder / 'serve.log'}")

    def token(self) -> str:
        return (self.store / "token").read_text().strip()

    def ask(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.api}/api/v1/{path}", data, {"authorization": f"Bearer {self.token()}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def look(self) -> Look:
        counts = self.ask("status")["counts"]
        return Look(time.monotonic(), counts["records"], counts["rows"])

    def count(self, what: str) -> int:
        """`what` is an aggregate and the table it is of."""
        return int(self.ask("sql", {"query": f"SELECT {what}"})["items"][0][0])

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Sees from outside when day files are written, which only a checkpoint does."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._seen: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def checkpoints(self) -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        for at in self._seen:
            if found and at - found[-1][1] <= APART_S:
                found[-1] = found[-1][0], at
            else:
                found.append((at, at))
        return found

    def _run(self) -> None:
        before: dict[Path, int] = {}
        while not self._stop.wait(WATCH_S):
            for file in self._store.glob("day-*.duckdb"):
                written = file.stat().st_mtime_ns
                if before.get(file, written) != written:
                    self._seen.append(time.monotonic())
                before[file] = written


def measure(folder: Path, spans: int, a_body: int, connections: int, *, judged: bool) -> Result:
    """`judged`: timeline and all stable rules are on, and the round ends when the last request has its verdict."""
    daemon = Served(folder, 1.0 if judged else 1e6)
    with client(folder, spans, a_body, connections) as sender:
        daemon.start()
        try:
            before, looks = daemon.cpu_s(), list[Look]()
            with Watch(daemon.store) as watch:
                sender.send(Target(daemon.otlp, {"authorization": f"Bearer {daemon.token()}"}))
                stored_at = _until_stored(daemon, spans, looks)
                sent = sender.sent()
                judged_at = _until_judged(daemon, spans) if judged else None
            cpu_s = daemon.cpu_s() - before
            daemon.stop()
        finally:
            daemon.clean_up()
    requests, with_verdict = _check(daemon.store, spans)
    size = sum(file.stat().st_size for file in daemon.store.iterdir() if ".duckdb" in file.name)
    return Result(
        spans, sender.body_bytes, sent, looks, stored_at, judged_at, watch.checkpoints(), requests, with_verdict, size, cpu_s
    )  # fmt: skip


def _until_stored(daemon: Served, spans: int, looks: list[Look]) -> float:
    """When a query first saw all spans; every look on the way is kept."""
    stalled = time.monotonic() + STORED_WITHIN_S
    while not looks or looks[-1].rows < spans:
        time.sleep(LOOK_S)
        looks.append(daemon.look())
        if len(looks) < 2 or looks[-1].rows > looks[-2].rows:
            stalled = time.monotonic() + STORED_WITHIN_S
        elif time.monotonic() > stalled:
            raise BenchError(f"{looks[-1].rows} of {spans} spans were stored, then nothing more came for {STORED_WITHIN_S:.0f} s")
    if (seen := daemon.count("count(*) FROM spans")) != spans:
        raise BenchError(f"a query sees {seen} spans where {spans} are said to be stored")
    return time.monotonic()


def _until_judged(daemon: Served, spans: int) -> float:
    """When every request had its verdict."""
    until = time.monotonic() + JUDGED_WITHIN_S
    while True:
        began = time.monotonic()
        judged = daemon.count("count(label) FROM requests")
        ended = time.monotonic()
        if judged >= spans // A_REQUEST:
            return ended
        if ended > until:
            raise BenchError(f"{judged} of {spans // A_REQUEST} requests had a verdict {JUDGED_WITHIN_S:.0f} s after the last was stored")
        time.sleep(max(LOOK_S, (ended - began) / LOOKING_SHARE))


def _check(store: Path, spans: int) -> tuple[int, int]:
    """Requests and those with a verdict in the closed store. Raises BenchError where a span was lost or doubled."""
    from lensd.store.folder import FolderStore

    opened = FolderStore(store, read_only=True)
    try:
        with opened.cursor() as cursor:
            count, distinct = cursor.execute("SELECT count(*), count(DISTINCT hash(trace_id, span_id)) FROM spans").fetchall()[0]
            requests, labelled = cursor.execute("SELECT count(*), count(label) FROM requests").fetchall()[0]
    except duckdb.Error as error:
        raise BenchError(f"the store cannot be read: {error}") from None
    finally:
        opened.close()
    if (count, distinct) != (spans, spans):
        raise BenchError(f"{spans} spans were acknowledged, {count} stored, {distinct} of them distinct")
    return requests, labelled


def lags(result: Result, looks: Sequence[Look]) -> list[float]:
    """At each look: how long the oldest acknowledged body that was not stored yet had waited, in seconds."""
    acked = sorted(result.sent.acked_at)
    return [max(0.0, look.at - acked[look.records]) if look.records < len(acked) else 0.0 for look in looks]
