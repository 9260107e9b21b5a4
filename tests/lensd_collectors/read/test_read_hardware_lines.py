# ruff: noqa: E501  (lines as programs print them)
"""Kernel logs, words of those who run engines, and the logs of llama.cpp and Ollama: known for what they are, and taken from nobody else."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lensd_collectors.read import Kind, read
from lensd_collectors.read.recognise import FileRows, judge
from lensd_collectors.rows import ConfigFact, EngineSample, Event, HttpExchange

TESTS = Path(__file__).parents[2]
LLAMA = TESTS / "captures" / "llamacpp-b10434" / "server.log"
KILL = "Memory cgroup out of memory: Killed process 63214 (python3) total-vm:98149468kB, anon-rss:66164992kB, file-rss:52176kB, shmem-rss:92kB, UID:0 pgtables:1372kB oom_score_adj:986"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
DESCRIBED = """\
Name:             vllm-0
Containers:
  vllm:
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Restart Count:  3
    Limits:
      memory:          64Gi
Events:
  Type     Reason     Age              From     Message
  Warning  Unhealthy  2m (x9 over 9m)  kubelet  Liveness probe failed: Get "http://10.42.0.14:8000/health": context deadline exceeded
"""
INSPECTED = """\
        "State": {
            "Status": "exited",
            "OOMKilled": false,
            "ExitCode": 137,
            "FinishedAt": "2026-11-18T10:31:02.171492914Z"
        },
"""
DOCKER_EVENTS = """\
2026-11-18T10:31:01.900000000Z container oom 9c1d0e2f3a4b (image=vllm/vllm-openai:v0.13.0, name=vllm)
2026-11-18T10:31:02.171492914Z container die 9c1d0e2f3a4b (execDuration=5461, exitCode=137, image=vllm/vllm-openai:v0.13.0, name=vllm)
"""
SYSTEMD = """\
Nov 18 10:31:02 gpu-3 systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL
Nov 18 10:31:02 gpu-3 systemd[1]: vllm.service: Failed with result 'oom-kill'.
"""
OLLAMA_LOG = """\
time=2026-11-18T10:00:00.701Z level=INFO source=routes.go:1287 msg="Listening on 127.0.0.1:11434 (version 0.9.0)"
llama_model_loader: loaded meta data with 35 key-value pairs and 771 tensors from qwen.gguf (version GGUF V3 (latest))
print_info: n_layer          = 64
load_tensors: offloaded 38/65 layers to GPU
load_tensors:        CUDA0 model buffer size = 10511.43 MiB
time=2026-11-18T10:00:11.250Z level=INFO source=server.go:637 msg="llama runner started in 6.78 seconds"
time=2026-11-18T10:00:12.250Z level=WARN source=runner.go:131 msg="truncating input prompt" limit=2048 prompt=5483 keep=4 new=2048
time=2026-11-18T10:00:13.250Z level=ERROR source=sched.go:440 msg="error loading llama server" error="llama runner process has terminated: exit status 2"
[GIN] 2026/11/18 - 10:02:19 | 200 |        41.21s |       127.0.0.1 | POST     "/api/chat"
[GIN] 2026/11/18 - 10:02:20 | 404 |     641.805ms |       127.0.0.1 | POST     "/v1/chat/completions"
"""


def rows(text: str, path: Path) -> FileRows:
    path.write_text(text)
    return read(path, name=path.name)


def events(found: FileRows) -> list[tuple[str | None, Mapping[str, object]]]:
    return [(row.name, json.loads(row.fields or "{}")) for row in found.rows.get("events", ()) if isinstance(row, Event)]


@pytest.mark.parametrize("day", ["Wed Nov 18", "Sun Nov  1"])
def test_a_kernels_line_with_its_year_is_dated(day: str, tmp_path: Path) -> None:
    [event] = rows(f"[{day} 10:31:02 2026] {KILL}\n", tmp_path / "dmesg.txt").rows["events"]
    assert datetime.fromtimestamp((event.seen_at or 0) / 1e6, UTC).strftime("%a %b %e %H:%M:%S") == f"{day} 10:31:02"


@pytest.mark.parametrize(
    "prefix",
    [
        "[ 7063.247407] ",
        "[Wed Nov 18 10:31:02 2026] ",
        "kern  :err   : [Wed Nov 18 10:31:02 2026] ",
        "3,1201,99000000,-;",
        "Nov 18 10:31:02 gpu-3 kernel: [ 7063.247407] ",
        "2026-11-18T10:31:02+0000 gpu-3 kernel: ",
        "2026-11-18T10:31:02.250000+00:00 gpu-3 kernel: ",
        "2026-11-18T10:31:02,250000+00:00 ",
    ],
)
def test_a_kernels_line_in_each_form(prefix: str, tmp_path: Path) -> None:
    found = rows(f"{prefix}{KILL}\n{prefix}{XID}\n", tmp_path / "dmesg.txt")
    assert (found.kind, found.dialect, found.unread_lines) == (Kind.ENGINE_LOG, "kernel", 0)
    told = [(name, {key: value for key, value in fields.items() if key != "seen_at_guessed"}) for name, fields in events(found)]
    assert told == [
        (
            "host.oom_kill",
            {
                "pid": 63214,
                "process": "python3",
                "cgroup": "Memory cgroup",
                "total_vm_kib": 98149468,
                "anon_rss_kib": 66164992,
                "file_rss_kib": 52176,
                "shmem_rss_kib": 92,
            },
        ),
        ("gpu.xid", {"pci": "0000:3b:00", "xid": 79, "pid": 1234, "process": "python3"}),
    ]


@pytest.mark.parametrize(
    ("prefix", "microseconds"),
    [
        ("2026-11-18T10:31:02+0000 gpu-3 kernel: ", 0),
        ("2026-11-18T10:31:02.250000+00:00 gpu-3 kernel: ", 250_000),
        ("2026-11-18T10:31:02,250000+00:00 ", 250_000),
        ("2026-11-18T12:31:02+0200 gpu-3 kernel: [ 7063.247407] ", 0),
    ],
)
def test_a_kernels_line_that_says_its_instant_in_full(prefix: str, microseconds: int, tmp_path: Path) -> None:
    found = rows(f"{prefix}{XID}\n", tmp_path / "dmesg.txt")
    at = datetime(2026, 11, 18, 10, 31, 2, microseconds, tzinfo=UTC)
    assert [getattr(row, "seen_at", None) for row in found.rows["events"]] == [round(at.timestamp() * 1e6)]


@pytest.mark.parametrize(
    ("text", "process", "recovery"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", None, None),
        (
            "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            None,
            "Node Reboot Required",
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=901, name=firefox, Ch 00000008, intr 00000000. MMU Fault", "firefox", None),
    ],
)
def test_what_an_xid_names(text: str, process: str | None, recovery: str | None, tmp_path: Path) -> None:
    [(name, fields)] = events(rows(f"[  812.118210] {text}\n", tmp_path / "dmesg.txt"))
    assert name == "gpu.xid"
    assert (fields.get("process"), fields.get("recovery")) == (process, recovery)


def test_a_kernel_log_in_which_nothing_happened_is_understood_and_gives_nothing(tmp_path: Path) -> None:
    found = rows(
        "[    0.000000] Linux version 5.15.0-77-generic\n[   12.001200] nvidia: module license 'NVIDIA' taints kernel.\n",
        tmp_path / "dmesg",
    )
    assert (found.kind, found.dialect, found.records, found.unread_lines) == (Kind.ENGINE_LOG, "kernel", 0, 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            DESCRIBED,
            [
                ("container.oom_killed", {}),
                ("container.exited", {"code": 137}),
                ("container.restarts", {"count": 3}),
                ("container.memory", {"memory_bytes": 64 << 30}),
                ("container.probe_failed", {"probe": "Liveness", "count": 9, "over": "9m"}),
            ],
        ),
        (INSPECTED, [("container.exited", {"listed": 137}), ("container.finished", {"iso": "2026-11-18T10:31:02"})]),
        (
            INSPECTED.replace("false", "true"),
            [("container.oom_killed", {}), ("container.exited", {"listed": 137}), ("container.finished", {"iso": "2026-11-18T10:31:02"})],
        ),
        (DOCKER_EVENTS, [("container.oom_killed", {}), ("container.exited", {"died": 137})]),
        (
            SYSTEMD,
            [("container.exited", {"signal": 9, "seen_at_guessed": True}), ("container.oom_killed", {"seen_at_guessed": True})],
        ),
        (
            "NAME     READY   STATUS      RESTARTS      AGE\nvllm-0   0/1     OOMKilled   3 (45s ago)   12m\n",
            [("container.oom_killed", {})],
        ),
        ("NAME     READY   STATUS    RESTARTS      AGE\nvllm-0   1/1     Running   3 (45s ago)   12m\n", []),
    ],
    ids=["describe", "inspect", "inspect, killed", "docker events", "systemd", "get", "get, running"],
)
def test_what_those_say_who_run_an_engine(text: str, told: list[tuple[str, dict[str, object]]], tmp_path: Path) -> None:
    found = rows(text, tmp_path / "out.txt")
    assert (found.kind, found.dialect) == (Kind.ENGINE_LOG, "supervisor")
    assert events(found) == told


def test_a_real_log_of_llamacpp() -> None:
    found = read(LLAMA, name="server.log")
    assert (found.kind, found.dialect, found.unread_lines) == (Kind.ENGINE_LOG, "llamacpp", 1)  # a library prints one line without a frame
    told = [name for name, _ in events(found)]
    assert [name for name in told if name is not None and name.startswith("engine.")] == [
        "engine.loading",
        "engine.ready",
        "engine.stopping",
    ]
    assert (told.count("request.prefill"), told.count("request.decode")) == (9, 9)
    facts = {row.name: row.value for row in found.rows["config_facts"] if isinstance(row, ConfigFact)}
    assert facts == {"max_num_seqs": "2", "max_model_len": "512"}


def test_a_log_of_ollama_with_its_runners_lines(tmp_path: Path) -> None:
    found = rows(OLLAMA_LOG, tmp_path / "server.log")
    assert (found.dialect, found.unread_lines) == ("ollama", 0)
    assert [name for name, _ in events(found)] == [
        "engine.started", "engine.offload", "engine.weights_placed", "engine.ready", "request.truncated", "engine.start_failed",
    ]  # fmt: skip
    facts = {row.name: row.value for row in found.rows["config_facts"] if isinstance(row, ConfigFact)}
    assert facts == {"layers_offloaded": "38", "layers_total": "65"}
    calls = [(row.path, row.status, row.duration_ms) for row in found.rows["http_exchanges"] if isinstance(row, HttpExchange)]
    assert calls == [("/api/chat", 200, 41210.0), ("/v1/chat/completions", 404, 641.805)]


def test_a_runners_lines_alone_are_llamacpps(tmp_path: Path) -> None:
    text = "\n".join(line for line in OLLAMA_LOG.split("\n") if not line.startswith(("time=", "[GIN]")))
    assert rows(text, tmp_path / "server.log").dialect == "llamacpp"


def test_a_scrape_of_llamacpp(tmp_path: Path) -> None:
    text = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 630
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 56
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
"""
    [row] = rows(text, tmp_path / "m.prom").rows["engine_samples"]
    assert isinstance(row, EngineSample)
    assert (row.running, row.waiting, row.prompt_tokens_total, row.generation_tokens_total, row.kv_usage) == (2, 1, 630, 56, None)


def corpus_logs() -> list[Path]:
    cases = sorted((TESTS / "corpus").glob("*/case.json"))
    return [case.parent / one["file"] for case in cases for one in json.loads(case.read_text())["artefacts"] if one["kind"].endswith("log")]


@pytest.mark.parametrize("path", corpus_logs(), ids=lambda path: f"{path.parent.name[:2]}-{path.name}")
def test_no_log_of_anybody_else_is_taken_for_one_of_these(path: Path) -> None:
    _, dialect = judge(path.read_bytes())
    assert (dialect.name if dialect else None) not in ("llamacpp", "ollama", "supervisor")
    assert (dialect is not None and dialect.name == "kernel") == (path.name == "dmesg.txt")


@pytest.mark.parametrize("path", sorted((TESTS / "captures" / "vllm-0.32.0").glob("*log*")), ids=lambda path: path.name)
def test_a_real_log_of_vllm_stays_its_own(path: Path) -> None:
    _, dialect = judge(path.read_bytes()[:65536])
    assert dialect is not None
    assert dialect.name == "vllm"


def test_an_engines_log_with_a_word_of_its_unit_at_the_end_stays_the_engines(tmp_path: Path) -> None:
    line = "Nov 18 10:31:0{n} gpu-3 vllm[77]: (APIServer pid=77) INFO 11-18 10:31:0{n} [loggers.py:257] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%"
    text = "\n".join(line.replace("{n}", str(n)) for n in range(4)) + "\n" + SYSTEMD
    found = rows(text, tmp_path / "unit.log")
    assert found.dialect == "vllm"
    assert len(found.rows["engine_samples"]) == 4
