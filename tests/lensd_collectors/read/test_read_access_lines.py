# ruff: noqa: E501  (lines as programs print them)
"""The quick way over access lines tells what the careful way tells, but for probes that are answered as ever."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.dialects import load
from lensd_collectors.read.engine_log import LineReader, read_log
from lensd_collectors.read.lines import Clock
from lensd_collectors.rows import HttpExchange, Row

TESTS = Path(__file__).parents[2]
LINES = (
    '(APIServer pid=1) INFO:     10.42.0.1:41025 - "GET /metrics HTTP/1.1" 200 OK',
    '(APIServer pid=1) INFO:     10.42.0.2:41026 - "GET /metrics HTTP/1.1" 200 OK',
    '(APIServer pid=1) INFO:     10.42.0.2:41026 - "GET /metrics HTTP/1.1" 503 Service Unavailable',
    'INFO:     10.8.0.5:41482 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    'INFO:     10.8.0.6:41483 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    'INFO:     10.8.0.6:41483 - "POST /v1/chat/completions HTTP/1.1" 401 Unauthorized',
    'INFO:     203.0.113.9:1 - "GET /index.php?token=sk-abcdef123456 HTTP/1.1" 404 Not Found',
    'INFO:     203.0.113.9:1 - "GET /sk-abcdef123456 HTTP/1.1" 404 Not Found',
    '2026-11-18T10:00:00.5Z INFO:     10.8.0.5:41482 - "GET /health HTTP/1.1" 200 OK',
    '\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO:     10.8.0.5:41482 - "GET /health HTTP/1.1" 200 OK',
    "INFO 11-18 10:00:00 [loggers.py:118] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%",
    "(APIServer pid=1) WARNING:  Invalid HTTP request received.",
    "",
    "INFO:     odd",
)


def slow(text: str) -> list[Row]:
    reader = LineReader(load()["vllm"], engine=None, path="x", clock=Clock(None))
    return [row for number, line in enumerate(text.split("\n"), 1) for row in reader.feed(line, number=number, at_us=None)]


def is_probe(row: Row) -> bool:
    return isinstance(row, HttpExchange) and row.status == 200 and row.path in ("/health", "/metrics")


def told(rows: list[Row]) -> Counter[str]:
    return Counter(repr(row) for row in rows if not is_probe(row))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(("", "\r"))), max_size=60))
def test_the_same_rows(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]]) -> None:
    text = "\n".join(line + end for line, end in lines)
    path = tmp_path_factory.mktemp("log") / "x"
    path.write_bytes(text.encode())
    rows, careful = read_log(path, load()["vllm"], name="x", reference_us=None).rows, slow(text)
    assert told([row for row in rows if isinstance(row, HttpExchange)]) == told([row for row in careful if isinstance(row, HttpExchange)])
    assert len([row for row in rows if not isinstance(row, HttpExchange)]) == len(
        [row for row in careful if not isinstance(row, HttpExchange)]
    )
    assert "sk-abcdef" not in repr(rows)


def test_of_a_probe_that_is_answered_as_ever_the_first_and_the_last_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("\n".join([LINES[0]] * 500 + [LINES[2]] + [LINES[1]] * 500) + "\n")
    rows = read_log(path, load()["vllm"], name="x").rows
    assert [(row.status, row.src) for row in rows if isinstance(row, HttpExchange)] == [(200, "x:1"), (503, "x:501"), (200, "x:1001")]


@pytest.mark.parametrize("name", ["kill9-server-log.txt", "killworker-server-log.txt", "startup-http-otlp-compile.log"])
def test_real_logs(name: str) -> None:
    path = TESTS / "captures" / "vllm-0.32.0" / name
    rows = read_log(path, load()["vllm"], name="x").rows
    careful = slow(path.read_bytes().decode("utf-8", "replace"))
    assert told([row for row in rows if isinstance(row, HttpExchange)]) == told([row for row in careful if isinstance(row, HttpExchange)])
