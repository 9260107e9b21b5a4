"""A daemon's API with canned documents, over real HTTP on loopback. Run it alone to look at the dashboard: fake_api.py [PORT]."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import canned
import canned_memory
import msgspec

from lensd.records import Diagnosis, Incident


class FakeApi(ThreadingHTTPServer):
    """What it serves can be changed while it runs; what it was asked is kept."""

    daemon_threads = True

    def __init__(self, port: int = 0, token: str = "") -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.token = token
        self.documents: dict[str, Diagnosis] = {key: doc for key, doc in canned.DIAGNOSES.items() if key}
        self.incidents: dict[str, Incident] = {incident.incident_id: incident for incident in canned.INCIDENTS}
        self.engines: list[dict[str, Any]] = list(canned.ENGINES)
        self.memory: dict[str, Any] = dict(canned_memory.MEMORY)
        self.gpus: list[dict[str, Any]] = list(canned_memory.GPUS)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def rows(self) -> list[dict[str, Any]]:
        rows = [canned.row(document) for document in self.documents.values()]
        return sorted(rows, key=lambda row: row["started_at"], reverse=True)


class _Handler(BaseHTTPRequestHandler):
    server: FakeApi

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.server.asked.append(self.path)
        parts = [unquote(part) for part in url.path.removeprefix("/api/v1/").split("/")]
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if self.server.token and self.headers.get("authorization") != f"Bearer {self.server.token}":
            self._answer({"error": {"code": "unauthorized", "message": "this API wants the bearer token of the daemon's token file"}}, 401)
            return
        match parts:
            case ["requests"]:
                columns = {"key": "key_id", "model": "model", "outcome": "outcome", "label": "label"}
                kept = [row for row in self.server.rows() if all(row[columns[n]] == v for n, v in query.items() if n in columns)]
                self._answer({"items": kept, "next": None})
            case ["requests", ident]:
                self._listed([row for row in self.server.rows() if self._named(row, ident)], "request-not-found", f"no request {ident}")
            case ["requests", ident, "diagnosis"]:
                found = [row for row in self.server.rows() if self._named(row, ident)]
                self._one(self.server.documents.get(found[0]["request_id"]) if found else None, "request-not-found", f"no request {ident}")
            case ["incidents"]:
                kept_incidents = [i for i in self.server.incidents.values() if query.get("state") in (None, i.state)]
                self._answer({"items": kept_incidents, "next": None})
            case ["incidents", ident]:
                self._one(self.server.incidents.get(ident), "incident-not-found", f"no incident {ident}")
            case ["status"]:
                self._answer({"engines": self.server.engines})
            case ["memory"]:
                kept_cards = [card for card in self.server.memory["items"] if query.get("engine") in (None, *card["engines"])]
                self._answer(self.server.memory | {"items": kept_cards})
            case ["gpus"]:
                self._answer({"items": self.server.gpus, "next": None})
            case ["runbooks"]:
                self._answer({"items": canned.RUNBOOKS, "next": None})
            case _:
                self._answer({"error": {"code": "not-found", "message": self.path}}, 404)

    def do_POST(self) -> None:
        self.server.asked.append(f"POST {self.path}")
        match self.path.removeprefix("/api/v1/").split("/"):
            case ["incidents", ident, "ack" | "close" as act] if ident in self.server.incidents:
                before = self.server.incidents[ident]
                after = {"state": "acknowledged"} if act == "ack" else {"state": "resolved", "resolved_at": before.last_seen_at}
                self.server.incidents[ident] = msgspec.structs.replace(before, **after)
                self._answer(self.server.incidents[ident])
            case _:
                self._answer({"error": {"code": "incident-not-found", "message": self.path}}, 404)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    @staticmethod
    def _named(row: dict[str, Any], ident: str) -> bool:
        return any(str(row[name] or "").startswith(ident) for name in ("request_id", "trace_id", "engine_request_id"))

    def _listed(self, items: list[Any], code: str, message: str) -> None:
        self._answer({"items": items, "next": None} if items else {"error": {"code": code, "message": message}}, 200 if items else 404)

    def _one(self, found: Any, code: str, message: str) -> None:
        self._answer(found if found is not None else {"error": {"code": code, "message": message}}, 200 if found is not None else 404)

    def _answer(self, value: Any, status: int = 200) -> None:
        body = msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running(token: str = "") -> Iterator[FakeApi]:
    server = FakeApi(token=token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    fake = FakeApi(int(sys.argv[1]) if len(sys.argv) > 1 else 8600)
    print(json.dumps({"url": fake.url}), flush=True)
    fake.serve_forever()
