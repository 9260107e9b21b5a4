# ruff: noqa: E501  (commands as people type them)
"""What people type of calls: tables of their measurements, loops of a shell, counts of connections, a key pressed at a terminal → rows."""

from pathlib import Path

import pytest
from lensd_collectors.read import read
from lensd_collectors.read.aligned import Aligned
from lensd_collectors.read.http_exchange import read_http
from lensd_collectors.read.lines import Clock, rfc3339
from lensd_collectors.rows import Event, HttpExchange, Row

NEAR = rfc3339("2026-03-02T12:00:00Z")


def aligned(text: str) -> list[HttpExchange]:
    reader = Aligned("t.txt", None, Clock(NEAR, dated=True))
    rows = [row for number, line in enumerate(text.split("\n"), 1) for row in reader.read(line, number) or ()]
    return [row for row in rows if isinstance(row, HttpExchange)]


def told(text: str) -> list[Row]:
    return read_http(text, name="t.txt", clock=Clock(NEAR, dated=True)).rows


def test_cells_have_units_of_their_own_and_who_was_asked_stands_before_them() -> None:
    table = (
        "                               TTFT     max gap   chunks   total\n"
        "http://10.0.0.7:8000  (pod)    210 ms   44 ms     1,204    30.1 s\n"
        "https://llm.corp (haproxy)     6.4 s    5.9 s     1,204    30.3 s\n"
    )
    direct, through = aligned(table)
    assert (direct.upstream, direct.ttfb_ms, direct.max_gap_ms, direct.chunks, direct.duration_ms) == (
        "10.0.0.7:8000",
        210,
        44,
        1204,
        30_100,
    )
    assert (through.upstream, through.ttfb_ms, through.max_gap_ms, through.src) == ("llm.corp", 6400, 5900, "t.txt:3")
    assert {row.hop for row in (direct, through)} == {"client"}


def test_the_unit_may_stand_in_the_header_and_the_hour_in_a_column() -> None:
    table = "# at        doc      input tokens   first token (s)   total (s)\n11:58:10    a.pdf    31,200         41.5              60\n"
    [row] = aligned(table)
    assert (row.prompt_tokens, row.ttfb_ms, row.duration_ms, row.status, row.streaming) == (31_200, 41_500, 60_000, 200, True)
    assert row.seen_at == rfc3339("2026-03-02T11:58:10Z")


def test_a_call_that_says_how_it_ended_is_not_taken_as_served() -> None:
    [row] = aligned("status   ttft    total\n504      -       60.0 s\n")
    assert (row.status, row.ttfb_ms, row.duration_ms) == (504, None, 60_000)


@pytest.mark.parametrize(
    "text",
    [
        "         ttft      total\np50      0.3 s     9.1 s\np95      2.2 s     19.4 s",  # of many calls
        "model    ttft      total\nm        fast      slow",
        "NAME     READY     TOTAL\nvllm-0   1/1       3",
        "ttft     total\nwe saw this twice:",
    ],
)
def test_other_tables_tell_of_no_call(text: str) -> None:
    assert aligned(text) == []


LOOP = """$ for n in $(seq 3); do curl -s -o /tmp/answer.json -w '%{http_code} ' http://lb:8080/v1/completions -d '{"model":"sql-lora","prompt":"x"}'; done
200 200 404
$ cat /tmp/answer.json
{"object":"error","message":"The model `sql-lora` does not exist.","type":"NotFoundError","code":404}
"""


def test_calls_of_a_loop_stand_on_one_line_and_the_last_ones_answer_in_a_file() -> None:
    calls = [row for row in told(LOOP) if isinstance(row, HttpExchange)]
    assert [(row.status, row.model, row.upstream) for row in calls] == [(status, "sql-lora", "lb:8080") for status in (200, 200, 404)]
    assert (calls[-1].body_shape, calls[0].body_shape) == ("model_unknown", None)


def test_another_file_is_no_answer() -> None:
    calls = [row for row in told(LOOP.replace("cat /tmp/answer.json", "cat /etc/llm.json")) if isinstance(row, HttpExchange)]
    assert [row.status for row in calls[:3]] == [200, 200, 404]
    assert calls[2].body_shape is None


def test_without_a_loop_a_line_of_numbers_is_none_of_curls() -> None:
    text = "$ curl -s -o /dev/null -w '%{http_code} ' http://lb:8080/v1/completions -d '{\"model\":\"m\"}'\n200 404 200\n"
    assert [row for row in told(text) if isinstance(row, HttpExchange)] == []


@pytest.mark.parametrize(
    ("command", "said", "left"),
    [
        ("gpu-3$ ss -Htn state established '( sport = :9000 )' | wc -l", "5", 5),
        ("$ ss -tn state established '( sport = :9000 )' | wc -l", "1", 0),  # its heading
        ("# netstat -tn | grep :9000 | grep -c ESTABLISHED", "0", 0),
    ],
)
def test_a_command_counts_the_connections_that_it_lists(command: str, said: str, left: int) -> None:
    counted = [row for row in told(f"{command}\n{said}\n") if isinstance(row, Event) and row.name == "host.connections"]
    assert [(row.fields, row.src) for row in counted] == [(f'{{"port":9000,"open":{left}}}', "t.txt:2")]


@pytest.mark.parametrize("written", ["    ESTAB to :9000 -> 0", "   => 0", " # 0"])
def test_a_count_may_stand_behind_its_command(written: str) -> None:
    rows = told(f"# netstat -tn | grep :9000 | grep -c ESTABLISHED{written}\n")
    counted = [row for row in rows if isinstance(row, Event) and row.name == "host.connections"]
    assert [(row.fields, row.src) for row in counted] == [('{"port":9000,"open":0}', "t.txt:1")]


def test_a_number_below_a_list_of_connections_counts_nothing() -> None:
    rows = told("$ ss -tn state established '( sport = :9000 )'\n7\n")
    assert [row.name for row in rows if isinstance(row, Event)] == ["host.sockets"]


def test_a_key_was_pressed_when_the_next_line_was_written() -> None:
    text = "[11:40:00] sweep.py: 16 workers\n^C\n[11:47:30] Traceback: KeyboardInterrupt in worker\n"
    [pressed, *_] = [row for row in told(text) if isinstance(row, Event) and row.name == "client.left"]
    assert (pressed.src, pressed.seen_at) == ("t.txt:2", rfc3339("2026-03-02T11:47:30Z"))


@pytest.mark.parametrize(
    "line",
    [
        "Warning Unhealthy pod/llm-0 Readiness probe failed: HTTP probe failed with statuscode: 401",
        "failed to list models: 401 Unauthorized",  # a caller's
        "worker w-2 lists 3 models with status 200, 401 tokens",
    ],
)
def test_a_gateways_own_call_is_not_any_401(tmp_path: Path, line: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(f"{line}\n")
    assert "upstream.refused" not in {getattr(row, "name", None) for rows in read(file).rows.values() for row in rows}
