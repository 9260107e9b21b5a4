# ruff: noqa: E501  (lines as programs print them)
"""Files in which several things speak: each line is read as who wrote it would be, and what stays unread is counted."""

import json
from pathlib import Path

from lensd_collectors.read import Kind, read
from lensd_collectors.read.cite import quote
from lensd_collectors.rows import ConfigFact, EngineSample, Event, GpuSample, HttpExchange

VLLM = "(APIServer pid=1) INFO 11-18 10:00:05 [loggers.py:257] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 19.2 tokens/s, Running: 3 reqs, Waiting: 1 reqs, GPU KV cache usage: 7.5%, Prefix cache hit rate: 0.0%"
NGINX = '10.0.0.1 - - [18/Nov/2026:10:00:05 +0000] "POST /v1/chat/completions HTTP/1.1" 504 167 rt=60.001'
LITELLM = '{"message": "10.21.3.41:58688 - \\"POST /v1/chat/completions HTTP/1.1\\" 499", "level": "INFO", "timestamp": "2026-11-18T10:00:05.316", "logger": "uvicorn.access", "source": "x.py:484"}'


def of(tmp_path: Path, text: str, name: str = "all.log") -> tuple[Kind, list[object], int]:
    file = tmp_path / name
    file.write_text(text)
    found = read(file)
    return found.kind, [row for rows in found.rows.values() for row in rows], found.unread_lines


def test_an_engine_a_proxy_and_a_gateway_in_one_log(tmp_path: Path) -> None:
    lines = [VLLM] * 3 + [NGINX, LITELLM, "words that mean nothing"]
    kind, rows, unread = of(tmp_path, "\n".join(f"llm-1  | {line}" for line in lines[:3]) + "\n" + "\n".join(lines[3:]) + "\n")
    assert kind is Kind.ENGINE_LOG
    assert [row.running for row in rows if isinstance(row, EngineSample)] == [3, 3, 3]
    assert [(row.hop, row.status, row.peer) for row in rows if isinstance(row, HttpExchange)] == [
        ("proxy", 504, "10.0.0.1"),
        ("gateway", 499, "10.21.3.41"),
    ]
    assert unread == 1
    assert quote("all.log:4", "status", tmp_path)[0] == NGINX


def test_the_prefix_of_kubectl_is_no_part_of_a_line(tmp_path: Path) -> None:
    _, rows, unread = of(tmp_path, f"[pod/vllm-0/vllm] {VLLM}\n" * 2)
    assert (len([row for row in rows if isinstance(row, EngineSample)]), unread) == (2, 0)


TRANSCRIPT = """$ date -u; curl -sS -m 120 http://10.31.4.20:30000/generate -d '{"text":"x"}'
Thu Nov 12 13:52:48 UTC 2026
curl: (28) Operation timed out after 120001 milliseconds with 0 bytes received
$ nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used --format=csv
timestamp, index, utilization.gpu [%], memory.used [MiB]
2026/11/12 13:55:01.112, 0, 0 %, 73208 MiB
$ kubectl get pods
NAME           READY   STATUS    RESTARTS        AGE
vllm-0         0/1     OOMKilled   3 (45s ago)   12m
"""


def test_a_transcript_is_read_part_by_part(tmp_path: Path) -> None:
    _, rows, _ = of(tmp_path, TRANSCRIPT, "checks.txt")
    [call] = [row for row in rows if isinstance(row, HttpExchange)]
    assert (call.error_code, call.limit_ms, call.src) == ("timeout", 120_001.0, "checks.txt:3")
    assert call.duration_ms in (None, 120_001.0)
    assert call.seen_at is not None
    [card] = [row for row in rows if isinstance(row, GpuSample)]
    assert (card.gpu, card.util, card.src) == ("0", 0.0, "checks.txt:6")
    assert "container.oom_killed" in [row.name for row in rows if isinstance(row, Event)]
    assert quote("checks.txt:3", "error_message", tmp_path)[0].startswith("curl: (28)")
    assert quote("checks.txt:6", "util", tmp_path)[0].startswith("2026/11/12")


CURL = """$ for i in 1 2; do curl -s -w ' %{http_code} %{time_starttransfer} %{time_total}\\n' -o /dev/null http://llm:8000/v1/chat/completions -H 'Authorization: Bearer sk-planted-abcd' -d @q.json; done
 200 54.601744 54.601902
 404 0.001 0.002
$ curl -s http://llm:8000/v1/models | jq -c '.data[]|{id,parent,root}'
{"id":"llama","parent":null,"root":"/models/llama"}
{"id":"sql-7","parent":"llama","root":"/adapters/sql"}
"""


def test_what_curl_was_told_to_write(tmp_path: Path) -> None:
    kind, rows, _ = of(tmp_path, CURL, "curl.txt")
    assert kind is Kind.HTTP_EXCHANGE
    calls = [row for row in rows if isinstance(row, HttpExchange)]
    assert [(row.status, row.ttfb_ms, row.duration_ms, row.key_id) for row in calls] == [
        (200, 54601.744, 54601.902, "...abcd"),
        (404, 1.0, 2.0, "...abcd"),
    ]
    assert "planted" not in str(calls)
    facts = [(row.name, row.value) for row in rows if isinstance(row, ConfigFact)]
    assert ("adapter", "sql-7") in facts
    assert ("served_model_name", "llama") in facts


CLIENT = """2026-11-18 10:14:03,240 INFO  httpx: HTTP Request: POST http://llm:8080/v1/chat/completions "HTTP/1.1 401 Unauthorized"
2026-11-18 10:14:03,246 ERROR job failed
Traceback (most recent call last):
  File "/app/worker.py", line 74, in classify
    resp = client.chat.completions.create(model=MODEL)
openai.AuthenticationError: Error code: 401 - {'error': {'message': 'Invalid API Key', 'type': 'authentication_error', 'code': 401}}
2026-11-18 10:20:22,943 ERROR chat failed after 60.02s first_token=None err=openai.APITimeoutError: Request timed out.
2026-11-18 10:21:22,943 INFO chat done first_token=53.5s total=76.7s finish_reason=stop prompt_tokens=2261
"""


def test_a_clients_log(tmp_path: Path) -> None:
    _, rows, _ = of(tmp_path, CLIENT, "worker.log")
    refused, gave_up, served = [row for row in rows if isinstance(row, HttpExchange)]
    assert (refused.status, refused.path, refused.body_shape) == (401, "/v1/chat/completions", "key_unknown"), "one call, told twice"
    assert (gave_up.error_code, gave_up.duration_ms) == ("timeout", 60_020.0)
    assert (served.status, served.ttfb_ms, served.duration_ms, served.prompt_tokens) == (200, 53_500.0, 76_700.0, 2261)
    assert all(row.seen_at is not None for row in (refused, gave_up, served))


STREAM = """$ curl -sSN http://llm:8000/v1/chat/completions -d @body.json | ts -s "%.s"
0.400000 data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}

0.450000 data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":null}]}
  ... (4530 lines like this) ...
59.990000 data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"c"},"finish_reason":null}]}
curl: (92) HTTP/2 stream 1 was not closed cleanly: INTERNAL_ERROR (err 2)
"""


def test_a_stream_that_broke_off(tmp_path: Path) -> None:
    _, rows, _ = of(tmp_path, STREAM, "run.txt")
    [row] = [row for row in rows if isinstance(row, HttpExchange)]
    assert (row.status, row.error_code, row.ttfb_ms, row.duration_ms) == (200, "stream_reset", 400.0, 59_990.0)
    assert (row.done_seen, row.max_gap_ms, row.chunks) == (False, 50.0, None), "what was cut out is not known"


def test_notes_are_notes(tmp_path: Path) -> None:
    kind, rows, unread = of(tmp_path, "It hangs since this morning.\nPlease help.\n", "ticket.txt")
    assert (kind, rows, unread) == (Kind.NOTES, [], 2)


def test_a_line_of_ps_tells_of_the_process_and_of_its_flags(tmp_path: Path) -> None:
    text = """$ ps -o pid,ppid,lstart,cmd
    PID    PPID                  STARTED CMD
    611       1 Fri Oct 30 07:40:11 2026 /usr/bin/python3 -m sglang.launch_server --model-path org/m --mem-fraction-static 0.8
    640     611 Fri Oct 30 07:40:19 2026 sglang::detokenizer
"""
    _, rows, _ = of(tmp_path, text, "ps.txt")
    processes = [json.loads(row.fields or "{}") for row in rows if isinstance(row, Event) and row.name == "host.process"]
    assert [(one["pid"], one["ppid"], "user" in one) for one in processes] == [(611, 1, False), (640, 611, False)]
    assert {row.name: row.value for row in rows if isinstance(row, ConfigFact)}["mem_fraction_static"] == "0.8"
