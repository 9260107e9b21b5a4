"""The one place where it is all wired together: door → journal → writer → store; judge → incidents → alerts; API."""

import asyncio
import contextlib
import gc
import importlib.metadata
import logging
import os
import random
import secrets
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvicorn

from lensd import rungs
from lensd.alerts.outbox import Outbox
from lensd.alerts.post import post
from lensd.alerts.registry import make_destinations
from lensd.alerts.stages import Retry
from lensd.api.app import build_app
from lensd.api.backend import Backend
from lensd.config import Config, read_token
from lensd.diagnosis.runbook import load
from lensd.errors import ConfigError, StoreError
from lensd.judge import Judge
from lensd.receive.decode import Decoder
from lensd.receive.http import OtlpDoor
from lensd.receive.intake import Intake
from lensd.receive.ledger import last_facts
from lensd.receive.pace import Pace
from lensd.receive.repeats import remembered
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.store.housekeeping import Housekeeping
from lensd.store.journal import Journal
from lensd.store.writer import Writer
from lensd.timeline.assembler import Assembler, answered, sender_started, touched

if TYPE_CHECKING:
    from lensd.receive.grpc import GrpcDoor

log = logging.getLogger(__name__)

STOP_S = 10.0  # a thread has this long to end what it is at
GRACE_S = 5  # and requests at the doors so long
GARBAGE: Final = (100_000, 50, 50)
"""Objects, and looks, between two looks for garbage in cycles: rows and spans come by ten thousands, and hardly anything is in a cycle."""


class Daemon:
    """All parts, made in order; `start` and `stop` run the threads, `serve` the two doors around them."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.started_at = time.time()
        self.runbooks = load(config.runbooks.folders)
        destinations = make_destinations(config.alerts, config.serve.public_url)
        self.store = FolderStore(config.store_folder)
        self.token = ensure_token(config.token_file)
        self.journal = Journal(config.store_folder / "journal", max_bytes=config.serve.journal_max_bytes, after=self.store.reached())
        self.outbox = Outbox(
            lambda rows: self.store.append(batch_of({"deliveries": rows})),
            destinations,
            _now,
            chance=random.random,
            post=post,
            retry=Retry(
                first_s=config.alerts.first_retry_s, longest_s=config.alerts.longest_retry_s, deadline_s=config.alerts.give_up_after_s
            ),
            max_pending=config.alerts.max_pending,
        )
        installed_at = int((config.store_folder / "store.json").stat().st_mtime * 1e6)
        self.judge = Judge(
            self.store, self.runbooks, config.runbooks.params, Assembler(config.timeline), self.outbox, installed_at, clock=_now
        )
        with self.store.cursor() as cursor:
            facts = last_facts(cursor)
        self.writer = Writer(
            self.journal,
            self.store,
            Decoder(facts=facts).decode,
            on_batch=lambda rows: self.judge.touch(touched(rows), answered(rows), started=sender_started(rows)),
        )
        self.intake = Intake(
            self.journal,
            self.token,
            config.serve.limits,
            repeats=remembered(self.store, self.journal, _now()),
            pace=Pace(lambda: self.writer.lag_s, lambda: self.writer.speed.seconds_a_record),
        )
        self._stop = threading.Event()
        self._judging = threading.Thread(target=self._judge_forever, name="lensd-judge", daemon=True)
        self.housekeeping = Housekeeping(self.store, config.store)
        self._threads = [
            self._judging,
            threading.Thread(target=self.outbox.run, args=(self._stop,), name="lensd-alerts", daemon=True),
            threading.Thread(target=self.housekeeping.run, args=(self._stop,), name="lensd-housekeeping", daemon=True),
        ]

    def start(self) -> None:
        self.judge.restore(_now())
        self.writer.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Everything acknowledged is stored, everything settled judged once more, before the files are let go."""
        self.journal.close()
        self.writer.stop()
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_S)
        if self._judging.is_alive():
            log.warning("stopping while requests are being judged; the next start goes on with them")
        else:
            self._tick()
        self.store.close()

    def health(self) -> dict[str, Any]:
        counts, door = self.writer.counts, self.intake.counts
        return {
            "version": importlib.metadata.version("lensd"),
            "pid": os.getpid(),
            "started_at": _instant(self.started_at),
            "store": str(self.config.store_folder),
            "lag_s": self.writer.lag_s,
            "journal_bytes": self.journal.bytes,
            "left_out": self.store.left_out,
            "damaged_segments": sorted(map(str, self.journal.damaged)),
            "housekeeping": msgspec.to_builtins(self.housekeeping.state),
            "seq": counts.records + counts.batches,
            "counts": {
                "records": counts.records,
                "rows": counts.rows,
                "bad_records": counts.bad_records,
                "failed_appends": counts.failed_appends,
                "alerts_owed": self.outbox.pending(),
                "bodies": door.accepted.total(),
                "repeated_bodies": door.repeated.total(),
                "refused_bodies": door.refused.total(),
                "records_left_out": door.left_out.total(),
                "attributes_dropped": self.intake.scrubber.counts["attributes-over-limit"],
                "values_cut": self.intake.scrubber.counts["value-over-limit"],
            },
        }

    def _judge_forever(self) -> None:
        while not self._stop.wait(0 if self.judge.behind else self.config.serve.evaluate_every_s):
            self._tick()

    def _tick(self) -> None:
        try:
            self.judge.tick(_now())
        except StoreError as error:
            log.warning("judging put off: %s", error)
        except Exception:
            log.exception("judging failed; the next tick tries again")


def serve(config: Config) -> None:
    """Run the daemon until SIGTERM or Ctrl-C. Raises StoreBusyError, ConfigError before anything listens."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    doors = [_listen("serve.otlp", config.serve.otlp), _listen("serve.api", config.serve.api)]
    if config.serve.otlp_grpc:
        _listen("serve.otlp_grpc", config.serve.otlp_grpc).close()  # gRPC takes no socket: this only says early that it will not get one
    gc.set_threshold(*GARBAGE)
    daemon = Daemon(config)
    gc.freeze()
    daemon.start()
    otlp = ", by gRPC on ".join(filter(None, (config.serve.otlp, config.serve.otlp_grpc)))
    log.info("lensd %s: OTLP on %s, API on %s, store %s", daemon.health()["version"], otlp, config.serve.api, config.store_folder)
    try:
        asyncio.run(_serve(daemon, doors))
    finally:
        daemon.stop()


async def _serve(daemon: Daemon, doors: list[socket.socket]) -> None:
    config = daemon.config
    backend = Backend(
        store=daemon.store,
        runbooks=daemon.runbooks,
        params=config.runbooks.params,
        limits=config.timeline,
        incidents=daemon.judge,
        health=daemon.health,
        token=daemon.token,
        ids_line=lambda engine: rungs.line("2", engine=engine, otlp=f"http://{config.serve.otlp}", token_file=config.token_file.absolute()),
    )
    servers = [_server(app) for app in (OtlpDoor(daemon.intake), build_app(backend))]
    grpc_door = await _grpc_door(daemon.intake, config.serve.otlp_grpc)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, servers)
    await asyncio.gather(*(server.serve(sockets=[sock]) for server, sock in zip(servers, doors, strict=True)))
    if grpc_door is not None:
        await grpc_door.stop(GRACE_S)


async def _grpc_door(intake: Intake, address: str) -> "GrpcDoor | None":
    """The door at an address; None where none is wanted, or grpcio is not there: HTTP takes everything too."""
    if not address:
        return None
    try:
        from lensd.receive.grpc import GrpcDoor
    except ModuleNotFoundError as error:
        log.warning(
            "no OTLP over gRPC on %s: module %s is missing; pip install 'lensd[serve]', or set serve.otlp_grpc to nothing",
            address,
            error.name,
        )
        return None
    door = GrpcDoor(intake)
    await door.start(address)
    return door


def _end(servers: list["_Server"]) -> None:
    for server in servers:
        server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: two servers share one process, which the daemon ends."""

    def capture_signals(self) -> contextlib.nullcontext[None]:  # type: ignore[override]
        return contextlib.nullcontext()


def _server(app: Any) -> _Server:
    return _Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE_S))


def _listen(setting: str, address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), int(port)))
    except (OSError, ValueError) as error:
        sock.close()
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {address}: {str(why).lower()}; set {setting} to a free one") from None
    sock.listen(1024)
    return sock


def ensure_token(path: Path) -> str:
    """The bearer token in `path`; made there on the first start, readable by its owner alone."""
    token = read_token(path)
    if token is not None:
        return token
    token = secrets.token_urlsafe(24)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write the token file {path}: {error.strerror}; set serve.token_file") from None
    return token


def _now() -> int:
    return time.time_ns() // 1000


def _instant(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
