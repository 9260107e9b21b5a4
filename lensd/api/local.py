"""The same answers without a daemon: the store's files read-only, with the journal that nobody has drained yet."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from lensd_collectors.rows import IncidentRow

from lensd import rungs
from lensd.api import plan, sql
from lensd.api.items import Coverage, Link, NotRead, Page, RequestItem, SessionCall, SqlAnswer, UsageItem, in_order, text_of
from lensd.api.unknown import unknown
from lensd.config import Config
from lensd.diagnosis import bundle
from lensd.diagnosis.diagnose import diagnose_row, of_matches
from lensd.diagnosis.postmortem import of_incident
from lensd.diagnosis.runbook import load
from lensd.errors import IncidentNotFoundError
from lensd.incidents import from_row
from lensd.memory.lengths import Lengths
from lensd.receive.decode import Decoder
from lensd.receive.ledger import last_facts
from lensd.records import Diagnosis, Incident, PostMortem
from lensd.store import export as parquet
from lensd.store import queries, sources, usage
from lensd.store.arrow import Rows, batch_of
from lensd.store.catalog import store_errors
from lensd.store.folder import FolderStore
from lensd.store.interface import Cursor, Store
from lensd.store.names import find_requests
from lensd.store.segments import Scan, Signal
from lensd.store.writer import replay
from lensd.timeline.assembler import Assembler, touched

DAY_US = 86_400_000_000


class LocalReader:
    """Reads as `lensd.api.client.Client` does; what only a daemon can do (acknowledge, close) it has not."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config

    @classmethod
    def open(cls, folder: Path, config: Config) -> "LocalReader":
        """Raises NoStoreError, StoreBusyError, StoreFailedError."""
        store = FolderStore(folder, read_only=True)
        try:
            with store_errors(f"read store {folder}"):
                _add_undrained(store, folder, config)
        except BaseException:
            store.close()
            raise
        return cls(store, config)

    def shut(self) -> None:
        self._store.close()

    def requests(self, *, limit: int | None = None, cursor: str | None = None, id: str | None = None, **wanted: Any) -> Page[RequestItem]:
        """Requests newest first; filters as the client's."""
        with self._reading() as reading:
            if id is not None:
                return Page(items=tuple(_item(row) for row in find_requests(reading, id)))
            page = queries.list_requests(reading, queries.RequestFilter(**wanted), limit or queries.DEFAULT_PAGE, cursor)
        return Page(items=tuple(_item(row) for row in page.items), next=page.next)

    def request(self, id: str) -> tuple[RequestItem, ...]:
        return tuple(_item(row) for row in self._find(id))

    def diagnosis(self, id: str, wait_s: float = 0.0) -> Diagnosis:
        """The verdict on the newest request of that id; nothing more can come, so there is nothing to wait for."""
        found, runbooks = self._find(id), load(self._config.runbooks.folders)
        with self._reading() as cursor:
            told = diagnose_row(cursor, found[0], runbooks, self._config.runbooks.params, self._config.timeline, _now())
        return of_matches(told, len(found))

    def request_bundle(self, id: str) -> bytes:
        """The zip of the newest request of that id."""
        row = self._find(id)[0]
        with self._reading() as cursor:
            return bundle.of_request(cursor, row, self._config.runbooks.params, self._config.timeline, _now())

    def incident_bundle(self, id: str) -> bytes:
        found = self.incident(id)
        with self._reading() as cursor:
            return bundle.of_incident(cursor, found, self._config.runbooks.params, self._config.timeline, _now())

    def session(self, id: str) -> tuple[SessionCall, ...]:
        """The calls of a session in order."""
        with self._reading() as cursor:
            return tuple(msgspec.convert(_texts(row), SessionCall) for row in queries.session_calls(cursor, id))

    def usage(
        self, by: str = "key", *, since: int | None = None, until: int | None = None, limit: int | None = None
    ) -> tuple[UsageItem, ...]:
        """What was used by key, model or session; the last day where no time is given."""
        until = _now() if until is None else until
        with self._reading() as cursor:
            found = usage.usage(cursor, by, max(0, until - DAY_US) if since is None else since, until, limit or queries.MAX_PAGE)
        return tuple(msgspec.convert(row, UsageItem) for row in found)

    def sql(self, query: str, limit: int = 1000) -> SqlAnswer:
        """A SELECT over the public tables. Raises SqlRefusedError, SqlLimitError."""
        with self._reading() as cursor:
            return sql.answered(cursor, sql.Asked(query, limit))

    def export(self, folder: Path, tables: tuple[str, ...], span: parquet.Span, tell: parquet.Tell) -> Iterator[parquet.Written]:
        """Write tables as Parquet files, with what the journal holds and the files do not yet."""
        with self._reading() as cursor:
            yield from parquet.export(cursor, folder, tables, span, tell)

    def coverage(self) -> Coverage:
        """What told the store something, and when it did last."""
        now = _now()
        with self._reading() as cursor:
            return Coverage(
                items=tuple(msgspec.convert(_texts(row), Link) for row in sources.links(cursor, now)),
                not_read=tuple(msgspec.convert(row, NotRead) for row in sources.not_read(cursor, now)),
                ids_recorded=sources.ids_recorded(cursor, now),
            )

    def lengths(self, *, engine: str | None = None, model: str | None = None) -> Lengths:
        """How long requests were, as far as the store knows."""
        with self._reading() as cursor:
            return plan.measured(cursor, engine, model)

    def incidents(self, state: str | None = None) -> tuple[Incident, ...]:
        with self._reading() as cursor:
            found = [from_row(row) for row in queries.structs(cursor, IncidentRow, "select * from incidents")]
        return tuple(in_order(i for i in found if state is None or i.state == state))

    def incident(self, id: str) -> Incident:
        found = next((i for i in self.incidents() if i.incident_id == id), None)
        if found is None:
            raise IncidentNotFoundError(f"no incident {id}")
        return found

    def post_mortem(self, id: str) -> PostMortem:
        """Of an incident in which memory ran out; EvidenceError for any other."""
        found = self.incident(id)
        with self._reading() as cursor:
            return of_incident(cursor, load(self._config.runbooks.folders), found)

    @contextmanager
    def _reading(self) -> Iterator[Cursor]:
        with store_errors("read the store"), self._store.cursor() as cursor:
            yield cursor

    def _find(self, ident: str) -> list[dict[str, Any]]:
        with self._reading() as cursor:
            found = find_requests(cursor, ident)
            if not found:
                raise unknown(cursor, ident, self._ids_line, _now())
        return found

    def _ids_line(self, engine: str) -> str:
        return rungs.line("2", engine=engine, otlp=f"http://{self._config.serve.otlp}", token_file=self._config.token_file.absolute())


def _add_undrained(store: FolderStore, folder: Path, config: Config) -> None:
    """Decode what was acknowledged and not drained, and assemble its requests, in memory. Nobody will send more."""
    traces: dict[str, int] = {}
    with store.cursor() as cursor:
        decoder = Decoder(facts=last_facts(cursor))

    def decode_noting(kind: Signal, payload: bytes, received_at_us: int) -> Rows:
        rows = decoder.decode(kind, payload, received_at_us)
        for trace, since in touched(rows).items():
            traces[trace] = min(since, traces.get(trace, since))
        return rows

    replay(store, Scan(folder / "journal", store.position()), decode_noting)
    now = _now()
    with store.cursor() as cursor:
        assembler = Assembler(config.timeline, live=False)
        assembler.touch(traces)
        assembler.touch(queries.unfinished_traces(cursor, now))
        rows = [r.row for r in assembler.step(cursor, now)]
        while assembler.behind:
            rows += [r.row for r in assembler.step(cursor, now)]
    store.append(batch_of({"requests": rows}))


def _item(row: dict[str, Any]) -> RequestItem:
    """The row as the API gives it."""
    return msgspec.convert(_texts(row), RequestItem)


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: text_of(value) if isinstance(value, datetime) else value for name, value in row.items()}


def _now() -> int:
    return time.time_ns() // 1000
