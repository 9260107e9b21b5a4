"""The daemon's HTTP API under /api/v1/: lists are `{"items", "next"}`, errors `{"error": {"code", "message"}}`."""

import asyncio
import hmac
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lensd.api import lists, memory, plan, sql
from lensd.api.answers import Listed, arrow, as_json, error, json, listed, wants_arrow
from lensd.api.backend import Backend
from lensd.api.items import in_order
from lensd.api.query import seconds, span, whole_number
from lensd.api.unknown import unknown
from lensd.diagnosis import bundle
from lensd.diagnosis.diagnose import diagnose_row, of_matches
from lensd.diagnosis.postmortem import of_incident
from lensd.errors import (
    EvidenceError,
    IncidentNotFoundError,
    LensdError,
    RequestNotFoundError,
    SqlLimitError,
    SqlRefusedError,
    StoreError,
    UsageError,
)
from lensd.records import Diagnosis, Incident
from lensd.store import queries, sources
from lensd.store.catalog import store_errors
from lensd.store.interface import Cursor
from lensd.store.names import find_requests

PREFIX = "/api/v1"
STATES = ("open", "acknowledged", "resolved")
MAX_WAIT_S = 30.0
_STATUS_OF = {
    RequestNotFoundError: 404,
    IncidentNotFoundError: 404,
    UsageError: 400,
    SqlRefusedError: 400,
    SqlLimitError: 400,
    StoreError: 503,
    EvidenceError: 404,  # all others of them: not found, and no word that it was not there
}


def build_app(backend: Backend) -> ASGIApp:
    """The ASGI app; every path but /healthz wants the bearer token, where there is one."""
    api = _Api(backend)
    paths: dict[str, Callable[[Request], Any]] = {
        **{path: api.of_store(reads) for path, reads in lists.OF_THE_STORE.items()},
        "requests/{id:path}/diagnosis": api.diagnosis,  # ids are what callers choose: a slash in one is no fault
        "requests/{id:path}/bundle": api.request_bundle,
        "requests/{id:path}": api.request,
        "sessions/{id:path}": api.session,
        "incidents": api.incidents,
        "incidents/{id}/postmortem": api.post_mortem,
        "incidents/{id}/bundle": api.incident_bundle,
        "incidents/{id}": api.incident,
        "status": api.status,
        "coverage": api.coverage,
        "runbooks": api.runbooks,
        "memory": api.memory,
        "gpus": api.of_store(lambda cursor, query, now: Listed(memory.gpus(cursor))),
        "changes": api.changes,
    }
    routes = [Route(f"{PREFIX}/{path}", endpoint) for path, endpoint in paths.items()]
    routes += [Route(f"{PREFIX}/incidents/{{id}}/{act}", api.act, methods=["POST"]) for act in ("ack", "close")]
    routes.append(Route(f"{PREFIX}/plan", api.plan, methods=["GET", "POST"]))
    routes.append(Route(f"{PREFIX}/sql", api.select, methods=["POST"]))
    routes += [Route("/healthz", lambda _: Response("ok\n", media_type="text/plain")), Route("/metrics", api.metrics)]
    app = Starlette(routes=routes, exception_handlers={LensdError: _failed, HTTPException: _refused, Exception: _broken})
    return _Guarded(app, backend.token)


class _Guarded:
    """Refuses what does not carry the token, before anything is looked at."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._wanted = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._wanted is not None and scope["path"] != "/healthz":
            scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._wanted):
                await error(401, "unauthorized", "this API wants the bearer token of the daemon's token file")(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Api:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def of_store(self, reads: lists.Reads) -> Callable[[Request], Response]:
        """The endpoint of a list that is read from the store alone."""

        def endpoint(request: Request) -> Response:
            with self._reading() as cursor:
                return listed(request, reads(cursor, request.query_params, time.time_ns() // 1000))

        return endpoint

    def request(self, request: Request) -> Response:
        return listed(request, Listed(self._find(request.path_params["id"]), table="requests"))

    async def diagnosis(self, request: Request) -> Response:
        """Waits up to `wait` seconds for the request to come in and to settle."""
        ident = request.path_params["id"]
        until = time.monotonic() + min(seconds(request.query_params, "wait"), MAX_WAIT_S)
        while True:
            found = await run_in_threadpool(self._look_up, ident)
            row = found[0] if found else None
            if time.monotonic() >= until or (row is not None and row["settled"]) or await request.is_disconnected():
                break
            await asyncio.sleep(0.1)
        if row is None:
            raise await run_in_threadpool(self._unknown, ident)
        return json(await run_in_threadpool(self._diagnose, found))

    def _diagnose(self, found: list[dict[str, Any]]) -> Diagnosis:
        told, now = self._backend, time.time_ns() // 1000
        with self._reading() as cursor:
            return of_matches(diagnose_row(cursor, found[0], told.runbooks, told.params, told.limits, now), len(found))

    def request_bundle(self, request: Request) -> Response:
        row = self._find(request.path_params["id"])[0]
        with self._reading() as cursor:
            return _zip(bundle.of_request(cursor, row, self._backend.params, self._backend.limits, time.time_ns() // 1000))

    def incident_bundle(self, request: Request) -> Response:
        found = self._incident(request.path_params["id"])
        with self._reading() as cursor:
            return _zip(bundle.of_incident(cursor, found, self._backend.params, self._backend.limits, time.time_ns() // 1000))

    @contextmanager
    def _reading(self) -> Iterator[Cursor]:
        with store_errors("read the store"), self._backend.store.cursor() as cursor:
            yield cursor

    def _look_up(self, ident: str) -> list[dict[str, Any]]:
        if not ident.strip():
            raise UsageError("the request id is missing")
        with self._reading() as cursor:
            return find_requests(cursor, ident)

    def _find(self, ident: str) -> list[dict[str, Any]]:
        found = self._look_up(ident)
        if not found:
            raise self._unknown(ident)
        return found

    def _unknown(self, ident: str) -> LensdError:
        with self._reading() as cursor:
            return unknown(cursor, ident, self._backend.ids_line, time.time_ns() // 1000)

    def session(self, request: Request) -> Response:
        """The calls of a session in order; none where nobody names such a session."""
        with self._reading() as cursor:
            return listed(request, Listed(queries.session_calls(cursor, request.path_params["id"])))

    def incidents(self, request: Request) -> Response:
        state = request.query_params.get("state") or None
        if state not in (None, *STATES):
            raise UsageError(f"state = {state!r} is none of {', '.join(STATES)}")
        return listed(request, Listed(in_order(i for i in self._incidents() if state is None or i.state == state)))

    def incident(self, request: Request) -> Response:
        return json(self._incident(request.path_params["id"]))

    def _incident(self, wanted: str) -> Incident:
        found = next((i for i in self._incidents() if i.incident_id == wanted), None)
        if found is None:
            raise IncidentNotFoundError(f"no incident {wanted}")
        return found

    def post_mortem(self, request: Request) -> Response:
        found = self._incident(request.path_params["id"])
        with self._reading() as cursor:
            return json(of_incident(cursor, self._backend.runbooks, found))

    def act(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        act = self._backend.incidents.acknowledge if request.url.path.endswith("/ack") else self._backend.incidents.close
        done = act(wanted)
        if done is None:
            ended = any(i.incident_id == wanted for i in self._incidents())
            raise IncidentNotFoundError(f"incident {wanted} is resolved already" if ended else f"no incident {wanted}")
        return json(done)

    def _incidents(self) -> list[Incident]:
        with store_errors("read the incidents"):
            return self._backend.incidents.all()

    def status(self, request: Request) -> Response:
        with self._reading() as cursor:
            engines = [as_json(row) for row in queries.engine_states(cursor)]
        return json(self._backend.health() | {"engines": engines})

    def coverage(self, request: Request) -> Response:
        now = time.time_ns() // 1000
        with self._reading() as cursor:
            told = {"items": [as_json(row) for row in sources.links(cursor, now)], "not_read": sources.not_read(cursor, now)}
            return json(told | {"ids_recorded": sources.ids_recorded(cursor, now)})

    def runbooks(self, request: Request) -> Response:
        shown = ("id", "label", "title", "kind", "severity", "stage", "scope", "status", "fix", "sections")
        return json({"items": [{name: getattr(book, name) for name in shown} for book in self._backend.runbooks.values()], "next": None})

    def memory(self, request: Request) -> Response:
        query = request.query_params
        since, until = span(query, time.time_ns() // 1000)
        with self._reading() as cursor:
            return json(memory.document(cursor, query.get("engine") or None, since, until))

    async def plan(self, request: Request) -> Response:
        """GET: how long requests were, as far as the store knows. POST: a plan for the question in the body."""
        if request.method == "POST":
            return await run_in_threadpool(self._planned, await _body(request, plan.MOST_BODY_BYTES))
        return await run_in_threadpool(
            self._measured, request.query_params.get("engine") or None, request.query_params.get("model") or None
        )

    def _planned(self, body: bytes) -> Response:
        with self._reading() as cursor:
            return json(plan.planned(cursor, body))

    def _measured(self, engine: str | None, model: str | None) -> Response:
        with self._reading() as cursor:
            return json(plan.measured(cursor, engine, model))

    async def select(self, request: Request) -> Response:
        """A SELECT of the caller's own."""
        question = sql.asked(await _body(request, sql.MOST_QUERY_BYTES))
        return await run_in_threadpool(self._selected, request, question)

    def _selected(self, request: Request, question: sql.Asked) -> Response:
        with self._reading() as cursor:
            return arrow(sql.table(cursor, question)) if wants_arrow(request) else json(sql.answered(cursor, question))

    async def changes(self, request: Request) -> Response:
        """A number that moves when something new is stored; waits up to `wait` seconds for one other than `since`."""
        since = whole_number(request.query_params, "since")
        until = time.monotonic() + min(seconds(request.query_params, "wait"), MAX_WAIT_S)
        while (seq := self._backend.health()["seq"]) == since and time.monotonic() < until and not await request.is_disconnected():
            await asyncio.sleep(0.1)
        return json({"seq": seq})

    def metrics(self, request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


async def _body(request: Request, most: int) -> bytes:
    """What was sent; of more than `most` bytes enough to refuse it."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            break
    return body


def _zip(content: bytes) -> Response:
    return Response(content, media_type="application/zip")


def _failed(_: Request, failure: Exception) -> Response:
    assert isinstance(failure, LensdError)
    status = next((status for kind, status in _STATUS_OF.items() if isinstance(failure, kind)), 500)
    return error(status, failure.code, str(failure))


def _refused(request: Request, failure: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(failure, HTTPException)
    code = {404: "not-found", 405: "method-not-allowed"}.get(failure.status_code, "refused")
    return error(failure.status_code, code, f"{failure.detail}: {request.method} {request.url.path}")


def _broken(_: Request, failure: Exception) -> Response:
    """A fault of ours: the caller gets the error's kind in the one shape, the log gets the traceback."""
    return error(500, "bug", f"this is a fault of lensd: {type(failure).__name__}; the daemon's log has the rest")
