"""A log gives the same rows whether it is followed live, through agent and door, or mailed in as a file; and whoever sends its lines."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lensd_collectors.dialects import load
from lensd_collectors.export import Exporter
from lensd_collectors.host.config import AccessLog, WatchedEngine
from lensd_collectors.host.engine import resolve
from lensd_collectors.host.facts import Facts
from lensd_collectors.host.line import Source
from lensd_collectors.host.logs import AccessFollower, LogFollower
from lensd_collectors.host.sources import log_place, open_source
from lensd_collectors.read import read
from lensd_collectors.read.alarming import NAME as ALARMING
from lensd_collectors.rows import ConfigFact, Event, HttpExchange, Row
from otlp_bodies import AT_NS, AT_US, logs

from lensd.receive.logs import Logs

TESTS = Path(__file__).parents[2]
AT = "2026-11-29T14:43:00.5Z"
INSTANT = 1_795_963_380_500_000
CORPUS = ("23", "27", "35", "43", "46", "53", "56", "62", "63", "68", "70", "80")
LOGS = [
    *sorted((TESTS / "captures" / "vllm-0.32.0").glob("*log*")),
    *sorted(path for path in (TESTS / "corpus").glob("*/*.log") if path.parent.name[:2] in CORPUS),
]


class Kept(Exporter):
    """An exporter whose events go straight through the door's decoder."""

    def __init__(self) -> None:
        self.door, self.rows = Logs(load()), list[Row]()

    def event(self, name: str, *, at_ns: int, attributes: Any, severity: str = "info", body: str | None = None, **_: Any) -> None:
        message = logs({"name": name, "attributes": {k: v for k, v in attributes.items() if v is not None}, "body": body or ""})
        message.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = at_ns
        if name != "lensd.config":  # what the agent makes of the same lines itself
            self.rows += [row for rows in self.door.rows(message, AT_US).values() for row in rows]


def follow(kept: Kept, path: Path, kind: str) -> None:
    """The whole file as if it had been written while the agent was there."""
    made = path.with_suffix(".live")
    made.touch()
    source: Source = open_source(log_place(str(made), "test"), 1_000_000)
    step: Callable[[], None]
    if kind == "vllm":
        engine = resolve(WatchedEngine(url="http://h:1", name="e", log=str(made)))
        facts = Facts(engine, kept, lambda engine, path: b"", lambda: AT_NS)
        step = LogFollower(engine, kept, facts, source, lambda: AT_NS).follow
    else:
        step = AccessFollower(AccessLog(log=str(made), kind=kind), kept, source, lambda: AT_NS).follow
    data = path.read_bytes()
    for start in range(0, len(data), 10_000):
        with made.open("ab") as file:
            file.write(data[start : start + 10_000])
        step()
    source.close()


def said(rows: list[Row]) -> Counter[str]:
    """What rows say, without when and where they were seen.

    Also without probes, of which live and offline keep different ones, and without the lines before the end of a start that look
    alarming: only a file can be looked through backwards from there.
    """
    kept: Counter[str] = Counter()
    for row in rows:
        if (isinstance(row, HttpExchange) and row.method == "GET" and row.status == 200) or (
            isinstance(row, Event) and row.name == ALARMING
        ):
            continue
        fields = {name: getattr(row, name) for name in row.__struct_fields__ if name not in ("seen_at", "src", "engine", "subject", "host")}
        if isinstance(row, Event):
            fields["fields"] = {key: value for key, value in json.loads(row.fields or "{}").items() if key != "seen_at_guessed"}
        if not (isinstance(row, ConfigFact) and row.was == row.value):
            kept[repr(fields)] += 1
    return kept


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name[:2]}-{path.name}")
def test_live_rows_are_offline_rows(tmp_path: Path, path: Path) -> None:
    copy = tmp_path / "copy.log"
    copy.write_bytes(path.read_bytes().rstrip(b"\n") + b"\n")
    offline = read(copy)
    assert offline.dialect in ("vllm", "nginx", "envoy")
    kept = Kept()
    follow(kept, copy, offline.dialect or "")
    assert said(kept.rows) == said([row for rows in offline.rows.values() for row in rows])


def event(decoder: Logs, body: str, *, time_ns: int = 0, path: str = "/var/log/x.log") -> list[Event]:
    message = logs({"body": body, "attributes": {"log.file.path": path}})
    record = message.resource_logs[0].scope_logs[0].log_records[0]
    record.time_unix_nano, record.observed_time_unix_nano = time_ns, AT_NS
    return [row for row in decoder.rows(message, AT_US + 5).get("events", []) if isinstance(row, Event)]


STOP = "(APIServer pid=1) INFO:     Shutting down"


@pytest.mark.parametrize("body", [f"{AT} stdout F {STOP}", json.dumps({"log": STOP + "\n", "stream": "stdout", "time": AT})])
def test_a_line_that_another_collector_sends_with_its_wrapper_has_the_wrappers_instant(body: str) -> None:
    [row] = event(Logs(load()), body)
    assert (row.name, row.line, row.seen_at) == ("engine.stopping", STOP, INSTANT)


def test_pieces_that_another_collector_sends_are_joined_in_the_logs_own_dialect() -> None:
    decoder = Logs(load())
    assert event(decoder, f"{AT} stdout F (APIServer pid=1) INFO 11-29 14:43:00 [x.py:1] up") == []
    assert event(decoder, f"{AT} stdout P (APIServer pid=1) INFO:") == []
    assert [row.name for row in event(decoder, f"{AT} stdout F      Shutting down")] == ["engine.stopping"]


def test_a_traceback_without_frames_is_in_the_dialect_of_the_lines_before_it() -> None:
    decoder = Logs(load())
    traceback = ["Traceback (most recent call last):", '  File "/v/x.py", line 3, in step', "ValueError: odd"]
    assert [row for line in traceback for row in event(decoder, line)] == [], "nothing is known of this log"
    assert decoder.unread == 3
    event(decoder, "INFO 12-25 10:00:01 api_server.py:712] vLLM API server version 0.6.6", path="/other")
    event(decoder, "INFO 12-25 10:00:01 api_server.py:712] vLLM API server version 0.6.6")
    [row] = [row for line in traceback for row in event(decoder, line)]
    assert (row.name, json.loads(row.fields or "")["stack"]) == ("engine.log.error", ["step"])


def test_kernel_lines_of_the_agent_are_events_of_the_engine_it_names() -> None:
    attributes = {"lensd.engine": "e0", "lensd.engine.kind": "kernel", "log.file.path": "/dev/kmsg", "lensd.log.line": 1202}
    body = "Memory cgroup out of memory: Killed process 4471 (VLLM::EngineCor) total-vm:90000000kB"
    [row] = Logs(load()).rows(logs({"name": "lensd.engine.log", "body": body, "attributes": attributes}), AT_US)["events"]
    assert isinstance(row, Event)
    assert (row.name, row.severity, row.engine, row.seen_at) == ("host.oom_kill", "critical", "e0", AT_US)
    assert json.loads(row.fields or "") == {"pid": 4471, "process": "VLLM::EngineCor", "cgroup": "Memory cgroup"}
