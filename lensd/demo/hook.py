"""A webhook receiver on loopback that keeps what it is told, so that the demo can show it."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


class Hook:
    """Listens from construction on; `alerts` are the alerts of all bodies so far, oldest first."""

    def __init__(self) -> None:
        self._bodies: list[dict[str, Any]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                hook._bodies.append(msgspec.json.decode(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/alerts"

    @property
    def alerts(self) -> list[tuple[str, str]]:
        """Status and label: ("firing", "engine-crash")."""
        return [(a["status"], a["labels"]["alertname"]) for body in list(self._bodies) for a in body["alerts"]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
