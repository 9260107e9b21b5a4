# ruff: noqa: E501  (lines as programs print them)
"""Access logs of nginx and Envoy: a row a request, of the proxy's hop, at the instant that the line itself names."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.dialects import load
from lensd_collectors.read import Kind, read
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.read.lines import rfc3339
from lensd_collectors.rows import HttpExchange

NGINX = {
    "common": '10.0.0.1 - - [18/Nov/2026:10:00:05 +0000] "POST /v1/chat/completions HTTP/1.1" 504 167',
    "combined": '10.0.0.1 - alice [18/Nov/2026:11:00:05 +0100] "POST /v1/chat/completions HTTP/1.1" 504 167 "-" "OpenAI/Python 1.109.1"',
    "named times": '10.0.0.1 - - [18/Nov/2026:10:00:05 +0000] "POST /v1/chat/completions HTTP/1.1" 504 167 "-" "x rt=1.000y" rt=60.001 uct="0.001" urt="60.000" request_id="r-1-abcdefg"',
    "ingress": '10.0.0.1 - - [18/Nov/2026:10:00:05 +0000] "POST /v1/chat/completions HTTP/2.0" 504 167 "-" "curl" 2318 60.001 [llm-vllm-8000] [] 10.42.1.9:8000, 10.42.1.8:8000 0, 0 60.000, 0.001 504, 502 2f1c8a9d0b3e4f5a6b7c8d9e0f1a2b3c',
}
ENVOY = {
    "default": '[2026-11-18T10:00:05.000Z] "POST /v1/chat/completions HTTP/1.1" 504 UT 4021 167 60001 - "10.8.0.5" "Go-http-client/2.0" "38fec964-3469" "llm" "10.42.1.9:8000"',
    "istio": '[2026-11-18T10:00:05.000Z] "POST /v1/chat/completions HTTP/1.1" 504 UT response_timeout - "-" 4021 167 60001 - "-" "curl" "38fec964-3469" "llm:8000" "10.44.1.27:8000" inbound|8000|| 127.0.0.1:1 10.0.0.1:80 10.0.0.2:3 outbound_.8 default',
}
ALL = [("nginx", line) for line in NGINX.values()] + [("envoy", line) for line in ENVOY.values()]


def exchange(dialect: str, line: str, at_us: int | None = None) -> HttpExchange:
    [row] = LineReader(load()[dialect], engine=None, path="log").feed(line, number=1, at_us=at_us)
    assert isinstance(row, HttpExchange)
    return row


@pytest.mark.parametrize(("dialect", "line"), ALL)
@pytest.mark.parametrize("at_us", [None, 7])
def test_what_every_format_says(dialect: str, line: str, at_us: int | None) -> None:
    row = exchange(dialect, line, at_us)
    assert (row.hop, row.method, row.path, row.status, row.bytes) == ("proxy", "POST", "/v1/chat/completions", 504, 167)
    assert row.seen_at == rfc3339("2026-11-18T10:00:05Z"), "its own instant, live and offline"


def test_times_and_ids_where_they_are_named() -> None:
    assert [(exchange("nginx", line).duration_ms, exchange("nginx", line).request_id) for line in NGINX.values()] == [
        (None, None),
        (None, None),
        (60001.0, "r-1-abcdefg"),
        (60001.0, "2f1c8a9d0b3e4f5a6b7c8d9e0f1a2b3c"),
    ]
    rows = [exchange("envoy", line) for line in ENVOY.values()]
    assert [(row.duration_ms, row.request_id, row.error_code, row.error_message) for row in rows] == [
        (60001.0, "38fec964-3469", "UT", None),
        (60001.0, "38fec964-3469", "UT", "response_timeout"),
    ]


REAL = '127.0.0.1 - - [30/Nov/2026:10:17:56 +0000] "POST /v1/chat/completions?api_key=sk-planted12345 HTTP/1.1" 502 157 "-" "x\\x22y rt=9" '
REAL_ENDS = [  # as nginx 1.22.1 wrote them for one request whose two engines were both gone
    'rt=0.250 uct="-, -" urt="0.000, 0.000" request_id=b10fe301c9429356cc1a1cbcaac58059',
    "190 0.250 [llm-vllm-8000] [] 127.0.0.1:9, 127.0.0.1:10 0, 0 0.000, 0.000 502, 502 b10fe301c9429356cc1a1cbcaac58059",
]


@pytest.mark.parametrize("end", REAL_ENDS)
def test_a_real_nginx(end: str) -> None:
    row = exchange("nginx", REAL + end)
    assert (row.status, row.path, row.duration_ms, row.request_id) == (
        502,
        "/v1/chat/completions",
        250.0,
        "b10fe301c9429356cc1a1cbcaac58059",
    )
    assert row.seen_at == rfc3339("2026-11-30T10:17:56Z")
    assert "planted" not in repr(row)


def test_what_the_caller_sent_is_not_taken_for_the_proxys_own_words() -> None:
    line = '10.0.0.1 - - [18/Nov/2026:10:00:05 +0000] "GET /?rt=9.0 HTTP/1.1" 200 1 "http://x/?rid=aaaaaaaaaaaa" "rt=8.0"'
    row = exchange("nginx", line)
    assert (row.path, row.duration_ms, row.request_id) == ("/", None, None)


@pytest.mark.parametrize(("dialect", "line"), ALL)
def test_a_mailed_log_is_known_by_its_content(tmp_path: Path, dialect: str, line: str) -> None:
    path = tmp_path / "log (2).txt"
    path.write_text(f"{line}\n" * 3)
    found = read(path)
    assert (found.kind, found.dialect, found.unread_lines, len(found.rows["http_exchanges"])) == (Kind.ACCESS_LOG, dialect, 0, 3)


def test_the_labelled_incidents_envoy_log_is_read_whole() -> None:
    corpus = Path(__file__).parents[2] / "corpus" / "68-coding-agent-unexpected-eof-sixty"
    rows = [row for row in read(corpus / "envoy.log").rows["http_exchanges"] if isinstance(row, HttpExchange)]
    assert [(row.status, row.error_code, row.duration_ms) for row in rows] == [
        (200, None, 1.0),
        (200, None, 31.0),
        (200, "UT", 60001.0),
        (200, "UT", 60000.0),
        (200, None, 21877.0),
    ]


def test_no_query_and_no_key_is_kept() -> None:
    line = NGINX["combined"].replace("/completions", "/completions?api_key=sk-planted12345")
    row = exchange("nginx", line)
    assert row.path == "/v1/chat/completions"
    assert "planted" not in repr(row)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ALL), st.integers(0, 400), st.text(max_size=20))
def test_no_mangled_line_makes_it_raise(known: tuple[str, str], at: int, junk: str) -> None:
    dialect, line = known
    reader = LineReader(load()[dialect], engine=None, path="log")
    reader.feed(line[: at % len(line)] + junk + line[at % len(line) :], number=1, at_us=None)


ALB = 'http 2026-10-08T07:12:31.204400Z app/llm/9c1d 10.70.2.15:40122 10.70.8.21:8000 0.001 -1 -1 460 - 9412 0 "POST http://llm:80/v1/chat/completions?k=1 HTTP/1.1" "python-requests/2.32.3" - - arn:aws:x "Root=1-d0" "-" "-" 0 2026-10-08T07:12:01.204400Z "forward" "-" "-" "10.70.8.21:8000" "-" "-" "-"'
ALB_LATE = 'https 2026-11-14T08:31:20.114Z app/llm/50dc 10.1.2.33:44120 10.1.9.8:4000 0.001 60.002 -1 504 - 2210 334 "POST https://llm:443/v1/chat/completions HTTP/1.1" "OpenAI/JS 5.12.0" ... "idle_timeout.timeout_seconds=60"'
HAPROXY = 'haproxy[14389]: 10.0.1.2:33317 [18/Nov/2026:10:00:05.655] http-in llm/vllm-0 0/0/1/-1/60002 504 194 - - sH-- 1/1/0/0/0 0/0 "POST /v1/chat/completions HTTP/1.1"'


def test_a_load_balancer_says_how_long_a_caller_waited() -> None:
    gone = exchange("alb", ALB)
    assert (gone.status, gone.duration_ms, gone.peer, gone.upstream, gone.received_bytes) == (
        460,
        30_000.0,
        "10.70.2.15",
        "10.70.8.21:8000",
        9412,
    )
    assert (gone.path, gone.ttfb_ms, gone.upstream_status) == ("/v1/chat/completions", None, None)
    late = exchange("alb", ALB_LATE)
    assert (late.status, late.duration_ms, late.limit_ms, late.ttfb_ms) == (504, 60_002.0, 60_000.0, None)


def test_haproxy_says_who_ended_it() -> None:
    row = exchange("haproxy", HAPROXY)
    assert (row.status, row.duration_ms, row.error_code, row.upstream, row.ttfb_ms) == (504, 60_002.0, "sH--", "vllm-0", None)
    assert row.seen_at == rfc3339("2026-11-18T10:00:05.655Z")


def test_what_nginx_tells_of_its_upstream() -> None:
    line = '10.0.0.1 - - [18/Nov/2026:10:00:05 +0000] "POST /v1/completions HTTP/1.1" 504 569 rl=8343 rt=60.002 uct="0.001" uht="-" urt="60.001" us="504" up="10.60.9.4:30000" rid=db77fd01af957221'
    row = exchange("nginx", line)
    assert (row.peer, row.received_bytes, row.upstream, row.upstream_status, row.upstream_ms, row.ttfb_ms) == (
        "10.0.0.1", 8343, "10.60.9.4:30000", 504, 60_001.0, None,
    )  # fmt: skip
