"""The daemon's HTTP API under /api/v1/: lists are `{"items", "next"}`, errors `{"error": {"code", "message"}}`."""

import asyncio
import hmac
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lensd.api.backend import Backend
from lensd.diagnosis.diagnose import diagnose_row
from lensd.errors import LensdError, RequestNotFoundError, SqlLimitError, SqlRefusedError, UsageError
from lensd.records import Diagnosis
from lensd.store import queries

PREFIX = "/api/v1"
MAX_WAIT_S = 30.0
_STATUS_OF = {RequestNotFoundError: 404, UsageError: 400, SqlRefusedError: 400, SqlLimitError: 400}


def build_app(backend: Backend) -> ASGIApp:
    """The ASGI app; every path but /healthz wants the bearer token, where there is one."""
    api = _Api(backend)
    paths: dict[str, Callable[[Request], Any]] = {
        "requests": api.requests,
        "requests/{id}": api.request,
        "requests/{id}/diagnosis": api.diagnosis,
        "incidents": api.incidents,
        "incidents/{id}": api.incident,
        "status": api.status,
        "runbooks": api.runbooks,
        "series": api.series,
        "deliveries": api.deliveries,
        "changes": api.changes,
    }
    routes = [Route(f"{PREFIX}/{path}", endpoint) for path, endpoint in paths.items()]
    routes += [Route(f"{PREFIX}/incidents/{{id}}/{act}", api.act, methods=["POST"]) for act in ("ack", "close")]
    routes += [Route("/healthz", lambda _: Response("ok\n", media_type="text/plain")), Route("/metrics", api.metrics)]
    app = Starlette(routes=routes, exception_handlers={LensdError: _failed, HTTPException: _failed, ValueError: _failed})
    return _Guarded(app, backend.token)


class _Guarded:
    """Refuses what does not carry the token, before anything is looked at."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._wanted is not None and scope["path"] != "/healthz":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                await _error(401, "unauthorized", "this API wants the bearer token of the daemon's token file")(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Api:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def requests(self, request: Request) -> Response:
        query = request.query_params
        wanted = queries.RequestFilter(
            key=query.get("key"),
            model=query.get("model"),
            engine=query.get("engine"),
            status=_int(query.get("status"), "status"),
            outcome=query.get("outcome"),
            label=query.get("label"),
            since=_instant(query.get("since")),
            until=_instant(query.get("until")),
        )
        with self._backend.store.cursor() as cursor:
            if ident := query.get("id"):
                return _json({"items": _rows(queries.find_requests(cursor, ident)), "next": None})
            page = queries.list_requests(cursor, wanted, _int(query.get("limit"), "limit") or 100, query.get("cursor"))
        return _json({"items": _rows(page.items), "next": page.next})

    def request(self, request: Request) -> Response:
        return _json({"items": _rows(self._find(request.path_params["id"])), "next": None})

    async def diagnosis(self, request: Request) -> Response:
        """Waits up to `wait` seconds for the request to come in and to settle."""
        ident, wait = request.path_params["id"], min(float(request.query_params.get("wait", 0)), MAX_WAIT_S)
        until = time.monotonic() + wait
        while True:
            row = await run_in_threadpool(self._newest, ident)
            if time.monotonic() >= until or (row is not None and row["settled"]):
                break
            await asyncio.sleep(0.1)
        if row is None:
            raise RequestNotFoundError(f"no request {ident}")
        return _json(await run_in_threadpool(self._diagnose, row))

    def _diagnose(self, row: dict[str, Any]) -> Diagnosis:
        with self._backend.store.cursor() as cursor:
            return diagnose_row(cursor, row, self._backend.runbooks, self._backend.params, self._backend.limits, time.time_ns() // 1000)

    def _find(self, ident: str) -> list[dict[str, Any]]:
        with self._backend.store.cursor() as cursor:
            found = queries.find_requests(cursor, ident)
        if not found:
            raise RequestNotFoundError(f"no request {ident}")
        return found

    def _newest(self, ident: str) -> dict[str, Any] | None:
        try:
            return self._find(ident)[0]
        except RequestNotFoundError:
            return None

    def incidents(self, request: Request) -> Response:
        state = request.query_params.get("state")
        items = [i for i in self._backend.incidents.all() if state is None or i.state == state]
        return _json({"items": sorted(items, key=lambda i: (i.state == "resolved", -i.opened_at)), "next": None})

    def incident(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        found = next((i for i in self._backend.incidents.all() if i.incident_id == wanted), None)
        return _json(found) if found is not None else _error(404, "incident-not-found", f"no incident {wanted}")

    def act(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        act = self._backend.incidents.acknowledge if request.url.path.endswith("/ack") else self._backend.incidents.close
        done = act(wanted)
        return _json(done) if done is not None else _error(404, "incident-not-found", f"no incident {wanted}")

    def status(self, request: Request) -> Response:
        with self._backend.store.cursor() as cursor:
            engines = _rows(queries.engine_states(cursor))
        return _json(self._backend.health() | {"engines": engines})

    def runbooks(self, request: Request) -> Response:
        shown = ("id", "label", "title", "kind", "severity", "stage", "scope", "status", "fix", "sections")
        return _json({"items": [{name: getattr(book, name) for name in shown} for book in self._backend.runbooks.values()], "next": None})

    def series(self, request: Request) -> Response:
        query, now = request.query_params, time.time_ns() // 1000
        name = query.get("name", "")
        if name not in queries.SERIES:
            raise UsageError(f"no series {name!r}; known: {', '.join(sorted(queries.SERIES))}")
        since, until = _instant(query.get("since")) or now - 3600 * 1_000_000, _instant(query.get("until")) or now
        with self._backend.store.cursor() as cursor:
            return _json({"items": _rows(queries.series(cursor, name, query.get("engine"), since, until)), "next": None})

    def deliveries(self, request: Request) -> Response:
        with self._backend.store.cursor() as cursor:
            found = queries.rows(cursor, "select * from deliveries order by attempted_at desc limit 500")
        return _json({"items": _rows(found), "next": None})

    def changes(self, request: Request) -> Response:
        return _json({"seq": self._backend.health()["seq"]})

    def metrics(self, request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error(
            error.status_code, "not-found" if error.status_code == 404 else "refused", f"{error.detail}: {request.url.path}".lower()
        )
    if isinstance(error, LensdError):
        status = next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), 500)
        return _error(status, error.code, str(error))
    return _error(400, "usage", str(error))


def _error(status: int, code: str, message: str) -> Response:
    return _json({"error": {"code": code, "message": message}}, status)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Instants with their zone, so that they read as RFC 3339."""
    return [{k: v.replace(tzinfo=UTC) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]


def _int(text: str | None, name: str) -> int | None:
    if text is None or text == "":
        return None
    if not text.lstrip("-").isdigit():
        raise UsageError(f"{name} = {text!r} is not a whole number")
    return int(text)


def _instant(text: str | None) -> int | None:
    """RFC 3339 or microseconds since the epoch."""
    if text is None or text == "":
        return None
    if text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no instant: write 2026-01-31T09:00:00Z") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)
