"""Answers as a vLLM does, from captured pages, with whatever command line and environment a test gives it.

usage: pretend_vllm.py serve MODEL --port PORT [vLLM's own options]

PRETEND_VERSION is the version it tells, PRETEND_PAGES the folder of captures, PRETEND_METRICS the page of /metrics, PRETEND_ASKED a
file that every request adds a line to, PRETEND_KEY a key that it wants under /v1.
"""

import http.server
import os
import pathlib
import sys

PAGES = pathlib.Path(os.environ["PRETEND_PAGES"])


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        with open(os.environ["PRETEND_ASKED"], "a") as asked:
            asked.write(f"{self.command} {self.path}\n")
        key = os.environ.get("PRETEND_KEY")
        pages = {"/health": b"", "/version": b'{"version":"%s"}' % os.environ["PRETEND_VERSION"].encode()}
        files = {"/v1/models": "models.json", "/metrics": os.environ["PRETEND_METRICS"]}
        if self.command != "GET" or self.path not in {*pages, *files}:
            return self.send(404, b"{}")
        if key and self.path.startswith("/v1") and self.headers.get("authorization") != f"Bearer {key}":
            return self.send(401, b'{"error":"Unauthorized"}')
        body = (PAGES / files[self.path]).read_bytes() if self.path in files else pages[self.path]
        return self.send(200, body)

    def send(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = answer

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
