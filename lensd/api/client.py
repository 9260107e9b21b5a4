"""The daemon's HTTP API as typed calls, for the CLI and the dashboard. Light to import: standard library and msgspec only."""

import http.client
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from lensd import errors
from lensd.api.items import (
    Changes,
    Coverage,
    DeliveryItem,
    GpuItem,
    Memory,
    Page,
    RefusalItem,
    RequestItem,
    RunbookItem,
    SeriesPoint,
    ServerStatus,
    SessionCall,
    SqlAnswer,
    StageItem,
    UsageItem,
)
from lensd.errors import LensdError, NoAnswerError, ServerError, UnauthorizedError, UsageError
from lensd.memory.lengths import Lengths
from lensd.records import Diagnosis, Incident, PostMortem

BUNDLE_PATIENCE_S: Final = 50.0  # hours of scrapes are read, scrubbed and packed
SQL_PATIENCE_S: Final = 10.0  # as long as a query may run
PREFIX: Final = "/api/v1"
MAX_BODY: Final = 64 * 1024 * 1024
T = TypeVar("T")

Instant = int | str
"""Microseconds since the epoch, or RFC 3339."""


class _Told(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Told


BY_CODE: Final = {kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LensdError)}


class Client:
    """One daemon. Each call opens its own connection, so any thread may call.

    Every method raises NoAnswerError where nobody answers, UnauthorizedError without the right token, RequestNotFoundError or
    IncidentNotFoundError for an unknown id, IdsNotRecordedError where nothing tells of requests by their ids, UsageError for a value
    the daemon does not take, ServerError for all else.
    """

    def __init__(self, server: str, token: str | None = None, timeout_s: float = 10.0) -> None:
        self._parts, self._port = _split(server)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UsageError("the token holds characters that no header can carry: is its file the right one?")
        self._token = token
        self._timeout_s = timeout_s

    @property
    def url(self) -> str:
        """The daemon's URL, without a user."""
        host = self._parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        return f"{self._parts.scheme}://{host}{f':{self._port}' if self._port else ''}{self._parts.path.rstrip('/')}"

    def requests(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        id: str | None = None,
        key: str | None = None,
        model: str | None = None,
        engine: str | None = None,
        status: int | None = None,
        outcome: str | None = None,
        label: str | None = None,
        session: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
    ) -> Page[RequestItem]:
        """Requests, newest first; None: any."""
        query = {
            "limit": limit,
            "cursor": cursor,
            "id": id,
            "key": key,
            "model": model,
            "engine": engine,
            "status": status,
            "outcome": outcome,
            "label": label,
            "session": session,
            "since": since,
            "until": until,
        }
        return self._get("/requests", Page[RequestItem], query)

    def request(self, id: str) -> tuple[RequestItem, ...]:
        """All requests that an id means (ours, the engine's, the trace's, a unique prefix), newest first; never none."""
        return self._get(f"/requests/{_quoted(id)}", Page[RequestItem]).items

    def diagnosis(self, id: str, wait_s: float = 0.0) -> Diagnosis:
        """The verdict on the newest request of that id, after waiting up to `wait_s` until it is settled."""
        query = {"wait": f"{wait_s:g}"} if wait_s > 0 else {}
        return self._get(f"/requests/{_quoted(id)}/diagnosis", Diagnosis, query, patience_s=wait_s)

    def request_bundle(self, id: str) -> bytes:
        """The zip of the newest request of that id: what `lensd triage` needs to judge it elsewhere."""
        return self._fetch("GET", f"/requests/{_quoted(id)}/bundle", {}, BUNDLE_PATIENCE_S)

    def session(self, id: str) -> tuple[SessionCall, ...]:
        """The calls of a session in order; none where nobody names such a session."""
        return self._get(f"/sessions/{_quoted(id)}", Page[SessionCall]).items

    def incidents(self, state: str | None = None) -> tuple[Incident, ...]:
        """Incidents, those that still stand first, then newest first."""
        return self._get("/incidents", Page[Incident], {"state": state}).items

    def incident(self, id: str) -> Incident:
        return self._get(f"/incidents/{_quoted(id)}", Incident)

    def post_mortem(self, id: str) -> PostMortem:
        """Of an incident in which memory ran out; EvidenceError for any other."""
        return self._get(f"/incidents/{_quoted(id)}/postmortem", PostMortem)

    def incident_bundle(self, id: str) -> bytes:
        """The zip of an incident."""
        return self._fetch("GET", f"/incidents/{_quoted(id)}/bundle", {}, BUNDLE_PATIENCE_S)

    def ack(self, id: str) -> Incident:
        """The incident, now acknowledged."""
        return self._call("POST", f"/incidents/{_quoted(id)}/ack", Incident, {})

    def close(self, id: str) -> Incident:
        """The incident, now resolved by hand."""
        return self._call("POST", f"/incidents/{_quoted(id)}/close", Incident, {})

    def status(self) -> ServerStatus:
        return self._get("/status", ServerStatus)

    def coverage(self) -> Coverage:
        """What tells the daemon something, and when it did last."""
        return self._get("/coverage", Coverage)

    def runbooks(self) -> tuple[RunbookItem, ...]:
        return self._get("/runbooks", Page[RunbookItem]).items

    def series(
        self,
        name: str,
        *,
        engine: str | None = None,
        host: str | None = None,
        gpu: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
    ) -> tuple[SeriesPoint, ...]:
        """One column over time: `engine_samples.waiting` of engines, `gpu_samples.util` of the GPUs of hosts, `requests.ttft_ms`."""
        query = {"name": name, "engine": engine, "host": host, "gpu": gpu, "since": since, "until": until}
        return self._get("/series", Page[SeriesPoint], query).items

    def stages(
        self,
        *,
        engine: str | None = None,
        model: str | None = None,
        key: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
    ) -> tuple[StageItem, ...]:
        """How long requests were in each stage, the last hour where no time is given."""
        query = {"engine": engine, "model": model, "key": key, "since": since, "until": until}
        return self._get("/stages", Page[StageItem], query).items

    def refusals(
        self, *, key: str | None = None, since: Instant | None = None, until: Instant | None = None, limit: int | None = None
    ) -> tuple[RefusalItem, ...]:
        """What was refused, alike requests together, the last day where no time is given."""
        return self._get("/refusals", Page[RefusalItem], {"key": key, "since": since, "until": until, "limit": limit}).items

    def usage(
        self, by: str = "key", *, since: Instant | None = None, until: Instant | None = None, limit: int | None = None
    ) -> tuple[UsageItem, ...]:
        """What was used by key, model or session, those that used most first; the last day where no time is given."""
        return self._get("/usage", Page[UsageItem], {"by": by, "since": since, "until": until, "limit": limit}).items

    def sql(self, query: str, limit: int = 1000) -> SqlAnswer:
        """A SELECT over the public tables. Raises SqlRefusedError, SqlLimitError."""
        return self._call("POST", "/sql", SqlAnswer, {}, SQL_PATIENCE_S, {"query": query, "limit": limit})

    def memory(self, *, engine: str | None = None, since: Instant | None = None, until: Instant | None = None) -> Memory:
        """Where the memory of the cards went, the last hour where no time is given; of one engine, or of all."""
        return self._get("/memory", Memory, {"engine": engine, "since": since, "until": until})

    def gpus(self) -> tuple[GpuItem, ...]:
        """The last that is known of each card."""
        return self._get("/gpus", Page[GpuItem]).items

    def lengths(self, *, engine: str | None = None, model: str | None = None) -> Lengths:
        """How long requests were, as far as the store knows; of one engine or model, or of all."""
        return self._get("/plan", Lengths, {"engine": engine, "model": model})

    def deliveries(self) -> tuple[DeliveryItem, ...]:
        """Attempts to tell a destination, newest first."""
        return self._get("/deliveries", Page[DeliveryItem]).items

    def changes(self, since: int = 0, wait_s: float = 0.0) -> int:
        """A number that moves when something new is stored, after waiting up to `wait_s` for one other than `since`."""
        return self._get("/changes", Changes, {"since": since, "wait": f"{wait_s:g}" if wait_s > 0 else None}, wait_s).seq

    def _get(self, path: str, kind: type[T], query: dict[str, Any] | None = None, patience_s: float = 0.0) -> T:
        return self._call("GET", path, kind, query or {}, patience_s)

    def _call(self, method: str, path: str, kind: type[T], query: dict[str, Any], patience_s: float = 0.0, sent: Any = None) -> T:
        body = self._fetch(method, path, query, patience_s, sent)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ServerError(f"{self.url} gave no lensd answer to {path} ({error}): is --server right, and of this version?") from None

    def _fetch(self, method: str, path: str, query: dict[str, Any], patience_s: float = 0.0, sent: Any = None) -> bytes:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        target = f"{self._parts.path.rstrip('/')}{PREFIX}{path}{'?' + given if given else ''}"
        status, body = self._exchange(method, target, self._timeout_s + patience_s, None if sent is None else msgspec.json.encode(sent))
        if not 200 <= status < 300:
            raise self._refusal(status, body)
        return body

    def _exchange(self, method: str, target: str, timeout_s: float, sent: bytes | None = None) -> tuple[int, bytes]:
        secure = self._parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(self._parts.hostname or "", self._port, timeout=timeout_s)
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        try:
            connection.request(method, target, sent, headers)
            answer = connection.getresponse()
            body = answer.read(MAX_BODY + 1)
        except TimeoutError:
            raise NoAnswerError(f"no answer from {self.url} within {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise NoAnswerError(
                f"no answer from {self.url} ({why.lower()}): start it with `lensd serve`, or name another by --server"
            ) from None
        finally:
            connection.close()
        if len(body) > MAX_BODY:
            raise ServerError(f"{self.url} answered with more than {MAX_BODY >> 20} MiB: ask for less")
        return answer.status, body

    def _refusal(self, status: int, body: bytes) -> LensdError:
        """The error the daemon means, with its own message."""
        try:
            told = msgspec.json.decode(body, type=_ErrorBody).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            told = _Told()
        message = told.message or f"{self.url} answered {status}: is --server right?"
        if status == 401:
            hint = "the token" if self._token else "no token"
            return UnauthorizedError(f"{self.url} refused {hint}: {message}")
        return BY_CODE.get(told.code, ServerError)(message)


def _quoted(id: str) -> str:
    return quote(id, safe="")


def _split(server: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError:
        raise UsageError("the server's url has a malformed host or port: write http://127.0.0.1:8600") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{server.rpartition('@')[2]!r} is no server: write http://127.0.0.1:8600")
    return parts, port
