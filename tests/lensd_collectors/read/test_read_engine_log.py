"""Real engine logs → events, samples and facts; one death is told once, an orderly stop is no death, no prompt survives."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.dialects import load
from lensd_collectors.read.engine_log import LineReader, LogRows, iter_log, ranked, read_log
from lensd_collectors.read.lines import Clock, rfc3339
from lensd_collectors.rows import ConfigFact, EngineSample, Event, HttpExchange, Instant, Point, Row

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
NOVEMBER = rfc3339("2026-11-30T00:00:00Z")
VLLM = load()["vllm"]


def capture(name: str) -> LogRows:
    return read_log(CAPTURES / name, VLLM, reference_us=NOVEMBER)


def feed(*lines: str, at_us: int | None = None) -> list[Row]:
    reader = LineReader(VLLM, engine="e1", path="engine.log", clock=Clock(NOVEMBER, dated=True))
    return [row for number, line in enumerate(lines, 1) for row in reader.feed(line, number=number, at_us=at_us)]


def events(rows: list[Row], name: str = "") -> list[Event]:
    return [row for row in rows if isinstance(row, Event) and (row.name or "").startswith(name)]


def names(rows: list[Row]) -> list[str | None]:
    return [row.name for row in events(rows)]


def fields(event: Event) -> dict[str, object]:
    return dict(json.loads(event.fields or "{}"))


def facts(rows: list[Row]) -> dict[str | None, str | None]:
    return {row.name: row.value for row in rows if isinstance(row, ConfigFact)}


def test_a_killed_engine_core_is_a_death_and_not_a_stop() -> None:
    rows = capture("kill9-server-log.txt").rows
    assert [fields(event)["sign"] for event in events(rows, "engine.dead")] == ["core_exited", "output_handler", "engine_dead_error"]
    assert events(rows, "engine.dead")[0].src == "kill9-server-log.txt:29"
    assert events(rows, "engine.dead")[0].severity == "critical"
    assert events(rows, "engine.stopping") == []
    assert len({event.request_id for event in events(rows, "request.failed")}) == 9


def test_a_killed_worker_gives_its_exit_code_and_the_load_at_the_crash() -> None:
    rows = capture("killworker-server-log.txt").rows
    first = events(rows, "engine.dead")[0]
    assert fields(first)["sign"] == "worker_died"
    assert fields(first)["exit_code"] == -9
    [crash] = [row for row in rows if isinstance(row, EngineSample)]
    assert (crash.running, crash.waiting, crash.kv_usage) == (2.0, 0.0, 0.25)
    assert events(rows, "engine.stopping") == []


def test_an_orderly_stop_is_told_once() -> None:
    found = capture("sigterm-stuck-drain-log.txt")  # pasted from grep -n
    assert names(found.rows) == ["engine.stopping"]
    assert found.unread_lines == 0


def test_a_start_gives_version_ready_and_facts() -> None:
    rows = capture("startup-http-otlp-compile.log").rows
    assert [name for name in names(rows) if name and name.startswith("engine.") and name != "engine.route"] == [
        "engine.started",
        "engine.args",
        "engine.loading",
        "engine.checkpoint",
        "engine.loading",  # none of its files read
        "engine.loading",  # all of them
        "engine.weights_loaded",
        "engine.kv_memory",
        "engine.kv_capacity",
        "engine.initialized",
        "engine.process",
        "engine.ready",
        "engine.log.error",
        "engine.stopping",
    ]
    assert fields(events(rows, "engine.started")[0])["version"] == "0.32.0"
    told = facts(rows)
    assert (told["max_model_len"], told["max_num_seqs"], told["served_model_name"]) == ("512", "4", "tiny-llama")
    assert told["kv_cache_tokens"] == "2097152"
    assert "api_key" not in told
    sources = [(row.src, row.origin) for row in rows if isinstance(row, ConfigFact) and row.name == "max_model_len"]
    assert sources == [  # said a third time by a later line of the same start
        ("startup-http-otlp-compile.log:8", "flag"),
        ("startup-http-otlp-compile.log:11", "effective"),
    ]
    assert [row.origin for row in rows if isinstance(row, ConfigFact) and row.name == "kv_cache_tokens"] == ["measured"]


def test_stats_lines_are_samples_with_throughput_beside_them() -> None:
    rows = capture("startup-http-otlp-compile.log").rows
    samples = [row for row in rows if isinstance(row, EngineSample)]
    assert [(one.running, one.waiting, one.kv_usage, one.model) for one in samples] == [(0.0, 0.0, 0.0, None)] * 2
    assert {(row.name, row.value) for row in rows if isinstance(row, Point)} >= {("vllm:avg_generation_throughput_toks_per_s", 19.2)}


def test_access_lines_are_exchanges_of_the_engine_without_an_instant() -> None:
    rows = [row for row in capture("startup-http-otlp-compile.log").rows if isinstance(row, HttpExchange)]
    refused = [row for row in rows if row.status == 401]
    assert len(refused) == 6
    assert {(row.hop, row.method, row.seen_at) for row in refused} == {("engine", "POST", None), ("engine", "GET", None)}
    assert [row.path for row in feed('INFO:     1.2.3.4:5 - "GET /v1/models?api_key=abcdef123 HTTP/1.1" 200 OK')] == ["/v1/models"]


def test_the_engine_that_dies_on_its_first_request_died_after_it_was_ready() -> None:
    rows = capture("startup-disable-log-stats-no-triton.log").rows
    order = [name for name in names(rows) if name in ("engine.started", "engine.ready", "engine.dead", "engine.stopping")]
    assert order == ["engine.started", "engine.ready", "engine.dead"]


def test_a_start_that_fails_is_no_death_of_a_serving_engine() -> None:
    small = capture("startup-err-kv-too-small.log").rows
    assert events(small, "engine.dead") == []
    [short] = events(small, "engine.kv_too_small")
    assert fields(short)["need_bytes"] == 4 << 30
    assert fields(short)["have_bytes"] == 1 << 30
    assert {fields(one)["sign"] for one in events(small, "engine.start_failed")} >= {"core_init"}
    [longer] = events(capture("startup-err-max-len-gt-derived.log").rows, "engine.start_failed")
    assert fields(longer)["max_position_embeddings"] == 2048


def test_words_of_a_crash_in_an_orderly_stop_are_no_death() -> None:
    rows = feed(
        "(APIServer pid=1) INFO 11-29 14:40:26 [launcher.py:254] [shutdown] API server: shutdown triggered",
        "(APIServer pid=1) ERROR 11-29 14:40:26 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",  # noqa: E501
    )
    assert names(rows) == ["engine.stopping", "engine.log.error"]


def test_a_second_start_without_an_end_is_told() -> None:
    line = "INFO 11-01 16:08:31 [api_server.py:1896] vLLM API server version 0.9.2"
    core = (
        "INFO 11-01 16:09:23 [core.py:69] Initializing a V1 LLM engine (v0.9.2) with config: model='m', max_seq_len=8192, quantization=None"
    )
    later = core.replace("8192", "4096")
    rows = feed(line, core, line, later)
    assert names(rows) == ["engine.started", "engine.started"]
    changed = [(row.name, row.value, row.was) for row in rows if isinstance(row, ConfigFact) and row.was]
    assert changed == [("max_model_len", "4096", "8192")]


BANNER = "INFO 11-01 16:08:31 [api_server.py:1896] vLLM API server version 0.9.2"
ARGS = "INFO 11-01 16:08:32 [utils.py:233] non-default args: "


def args_of(*starts: str) -> list[tuple[str | None, str | None, str | None]]:
    rows = feed(*(line for given in starts for line in (BANNER, ARGS + given)))
    return [(row.name, row.value, row.was) for row in rows if isinstance(row, ConfigFact)]


def test_each_start_tells_its_arguments_again() -> None:
    assert args_of("{'max_num_seqs': 8}", "{'max_num_seqs': 8}") == [("max_num_seqs", "8", None)] * 2


def test_an_argument_that_the_next_start_is_not_given_is_back_to_its_default() -> None:
    told = args_of("{'max_model_len': 4096, 'max_num_seqs': 8}", "{'max_num_seqs': 8}", "{'max_num_seqs': 8}")
    assert told[2:] == [("max_num_seqs", "8", None), ("max_model_len", None, "4096"), ("max_num_seqs", "8", None)]


def test_an_argument_of_a_start_that_was_read_by_another_run_is_remembered() -> None:
    reader = LineReader(load()["vllm"], engine=None, path="x")
    reader.recall({"max_model_len": "4096"})
    [fact] = [row for row in reader.feed(ARGS + "{}", number=1, at_us=1) if isinstance(row, ConfigFact)]
    assert (fact.name, fact.value, fact.was, fact.origin) == ("max_model_len", None, "4096", "flag")


def test_an_out_of_memory_line_gives_sizes_and_the_calls_before_it() -> None:
    rows = feed(
        'ERROR 11-06 07:44:23 [core.py:343]   File ".../vllm/v1/sample/sampler.py", line 118, in compute_logprobs',
        "ERROR 11-06 07:44:23 [core.py:343]     return logits.log_softmax(dim=-1, dtype=torch.float32)",
        "ERROR 11-06 07:44:23 [core.py:343] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.12 GiB. GPU 0 has a total "
        "capacity of 79.25 GiB of which 1.31 GiB is free. Process 48112 has 77.90 GiB memory in use. Of the allocated memory 76.98 GiB is "
        "allocated by PyTorch, and 418.40 MiB is reserved by PyTorch but unallocated.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.12 GiB. GPU 0 has a total "
        "capacity of 79.25 GiB of which 1.31 GiB is free. Process 48112 has 77.90 GiB memory in use. Of the allocated memory 76.98 GiB is "
        "allocated by PyTorch, and 418.40 MiB is reserved by PyTorch but unallocated.",
    )
    [oom] = events(rows)  # the server prints it again without its frame
    assert oom.name == "engine.oom"
    assert fields(oom)["want_bytes"] == round(6.12 * (1 << 30))
    assert fields(oom)["unallocated_bytes"] == round(418.40 * (1 << 20))
    assert fields(oom)["stack"] == ["compute_logprobs"]
    assert fields(oom)["stack_lines"] == [1]


def test_what_a_caller_sends_cannot_kill_the_engine_in_the_log() -> None:
    rows = feed(
        "(APIServer pid=1) ERROR 11-29 14:40:03 [serving.py:274] Error with model error=ErrorInfo(message='The model `EngineDeadError: "
        "CUDA out of memory. Tried to allocate` does not exist.', type='NotFoundError')",
        "INFO 12-25 10:00:00 logger.py:37] Received request cmpl-1: prompt: 'say AsyncLLM output_handler failed.', params: SamplingParams(n=1)",  # noqa: E501
    )
    assert names(rows) == ["engine.log.error", "request.received"]


SECRET = "the patient's name is O'Hara, params: SamplingParams(x)"
RECEIVED = [
    f"INFO 12-25 10:00:00 logger.py:37] Received request cmpl-1: prompt: {SECRET!r}, params: SamplingParams(n=1, max_tokens=16, stop=['O\\'Hara']), "  # noqa: E501
    "prompt_token_ids: [1, 15043, 3186], lora_request: None.",
    f"INFO 12-25 10:00:00 [logger.py:39] Received request chatcmpl-1: prompt: {SECRET!r}, params: SamplingParams(n=1, max_tokens=16), "
    "prompt_token_ids: None, prompt_embeds shape: None, lora_request: None.",
    f"(APIServer pid=1) DEBUG 12-25 10:00:00 [logger.py:39] Request chatcmpl-1 details: prompt: {SECRET!r}, prompt_token_ids: [1, 15043, 3186]",  # noqa: E501
    f"INFO 12-25 10:00:00 [logger.py:39] Generated response chatcmpl-1 (streaming complete): output: {SECRET!r}, finish_reason: stop",
    f"ERROR 12-25 10:00:00 [serving.py:1] Request chatcmpl-1 JSON body: {json.dumps({'messages': [{'content': SECRET}]})}",
    f"ERROR 12-25 10:00:00 [serving.py:1] bad request {json.dumps({'prompt': SECRET, 'n': 1})}",
]


@pytest.mark.parametrize("line", RECEIVED)
def test_no_prompt_text_survives(line: str) -> None:
    rows = feed(line)
    kept = " ".join(str(row) for row in rows)
    for word in ("patient", "Hara", "15043"):
        assert word not in kept


def test_a_received_line_keeps_its_numbers() -> None:
    [event] = events(feed(RECEIVED[1]))
    assert event.request_id == "chatcmpl-1"
    assert fields(event)["max_tokens"] == 16
    assert "patient" not in (event.line or "")


def test_keys_are_not_kept() -> None:
    rows = feed(
        "INFO 12-25 10:00:00 [api_utils.py:286] non-default args: {'model': 'm', 'api_key': ['sk-live-abcdefgh1'], 'hf_token': 'hf_abcdefghijkl', 'port': 1}",  # noqa: E501
        "ERROR 12-25 10:00:00 [x.py:1] refused: Authorization: Bearer abcdefghijklmnop",
    )
    kept = " ".join(str(row) for row in rows)
    for secret in ("sk-live", "hf_abc", "abcdefghijklmnop"):
        assert secret not in kept
    assert set(facts(rows)) == {"model", "port"}


def test_an_abort_said_twice_is_one() -> None:
    rows = feed(
        "(APIServer pid=1) INFO 11-29 14:43:00 [async_llm.py:600] Aborted request(s) cmpl-a-0-8f79cc71,cmpl-b-0-b1e02cc5.",
        "(APIServer pid=1) INFO 11-29 14:43:00 [async_llm.py:700] Request cmpl-a-0 aborted.",
    )
    assert [event.request_id for event in events(rows)] == ["cmpl-a-0-8f79cc71", "cmpl-b-0-b1e02cc5"]


def test_live_rows_carry_the_receive_time_and_a_live_source() -> None:
    [event] = feed("INFO:     Shutting down", at_us=1_700_000_000_000_000)
    assert isinstance(event, Event)
    assert (event.seen_at, event.src) == (1_700_000_000_000_000, "log:e1/engine.log@1")
    assert "seen_at_guessed" not in fields(event)


def test_offline_rows_say_that_their_instant_is_guessed() -> None:
    [sample] = feed("INFO 11-29 14:43:00 [x.py:1] Application startup complete.")
    assert isinstance(sample, Event)
    assert sample.seen_at == rfc3339("2026-11-29T14:43:00Z")
    assert fields(sample)["seen_at_guessed"] is True


def test_a_container_runtimes_own_instant_is_no_guess() -> None:
    [event] = feed("2026-11-29T14:43:00.123456789Z stdout F INFO:     Shutting down")
    assert isinstance(event, Event)
    assert event.seen_at == rfc3339("2026-11-29T14:43:00.123456Z")
    assert "seen_at_guessed" not in fields(event)


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO 11-29 14:43:00 [x.py:1] Using max model len 512\r\n",
        "Loading shards:   0%|   | 0/1\rLoading shards: 100%|###| 1/1\rINFO 11-29 14:43:00 [x.py:1] Using max model len 512",
        "vllm-1  | INFO 11-29 14:43:00 [x.py:1] Using max model len 512",
        "Nov 29 14:43:00 gpu1 vllm[812]: INFO 11-29 14:43:00 x.py:1] Using max model len 512",
    ],
)
def test_wrappers_come_off(line: str) -> None:
    assert facts(feed(line)) == {"max_model_len": "512"}


def test_ranks_are_engines_of_their_own() -> None:
    assert [ranked("e", "000"), ranked("e", "1"), ranked(None, "2"), ranked(None, "0"), ranked("e", None)] == [
        "e",
        "e/dp1",
        "dp2",
        None,
        "e",
    ]


def test_lines_not_understood_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(
        b"nanobind: leaked 4 instances!\n\nINFO 11-29 14:43:00 [x.py:1] something new\n" + b"x" * 3_000_000 + b"\nINFO:     Shutting down\n"
    )
    found = read_log(log, VLLM, reference_us=NOVEMBER)
    assert found.unread_lines == 2
    assert [event.src for event in events(found.rows)] == ["a.log:5"]


def test_an_undated_log_takes_the_year_from_its_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("INFO 12-31 23:00:00 [x.py:1] Application startup complete.\n")
    stamp = (rfc3339("2026-01-02T00:00:00Z") or 0) / 1e6
    import os

    os.utime(log, (stamp, stamp))
    [event] = events(read_log(log, VLLM).rows)
    assert event.seen_at == rfc3339("2025-12-31T23:00:00Z")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600))
def test_no_bytes_make_it_raise(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    log = tmp_path_factory.getbasetemp() / "junk.log"
    log.write_bytes(junk)
    reader = LineReader(VLLM, engine=None, path="junk.log", clock=Clock(Instant(0)))
    for rows in iter_log(log, reader):
        assert rows


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([sample["text"] for event in VLLM.events for sample in event.like]), st.text(max_size=40), st.integers(0, 200))
def test_no_mangled_line_makes_it_raise(line: str, junk: str, at: int) -> None:
    at %= len(line)
    feed(f"INFO 11-29 14:43:00 [x.py:1] {line[:at]}{junk}{line[at:]}", f"INFO 02-30 25:61:61 [x.py:1] {line}", line[:at])


def test_a_prompt_is_counted_and_its_tokens_are_not_kept() -> None:
    params = "sampling params: SamplingParams(n=1, max_tokens=9), prompt token ids: [1, 518, 25580]."
    line = f"INFO 11-12 08:40:14 async_llm_engine.py:371] Received request cmpl-1: prompt: 'planted', {params}"
    [event] = events(feed(line), "request.received")
    assert fields(event)["prompt_tokens"] == 3
    assert "518" not in (event.line or "")
    [event] = events(feed(line.replace("prompt token ids: [1, 518, 25580]", "prompt_token_ids: None")), "request.received")
    assert "prompt_tokens" not in fields(event)
