"""Lines that nobody understood and that speak of a failure keep a folder from being called well."""

from pathlib import Path

import pytest

from lensd.diagnosis.folder import read_folder
from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.diagnosis.unread import MOST, lines_alarming, speaks_of_failure, times_unread
from lensd.timeline.limits import Limits

SERVED = """\
$ curl -i http://llm:8000/v1/chat/completions -d '{"model":"m","messages":[],"max_tokens":50}'
HTTP/1.1 200 OK

{"id":"c","choices":[{"message":{"content":"well"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}
"""

FAILED = (
    "second try: HTTP/1.1 503 Service Unavailable after 30.0 s",
    "report job -> 504 after a minute",
    "nightly export: status=502 from the edge",
    "com.acme.LlmUnavailableException: no route",
    "the page was killed in the middle",
    "chat timed out for all of accounting",
    "14:02 the upload failed again",
    "the answer was cut off",
    "failed   22:21:35  2 prompts, 3,602 and 3,118 input tokens",
)
HARMLESS = (
    "errors: 0, retries: 0",
    "error_rate 0",
    "no errors, no timeouts since Monday",
    "never timed out in a month",
    "error_log /var/log/nginx/error.log warn;",
    "proxy_read_timeout 600s;",
    "fetch aborted: AbortError: This operation was aborted",
    "rule: (?i)(failed|stuck|ERROR)",
    "nobody was refused",
    "served 500 requests in the hour",
    "x-request-timeout: 600",
)


@pytest.mark.parametrize("line", FAILED)
def test_a_failure_is_heard(line: str) -> None:
    assert speaks_of_failure(line)


@pytest.mark.parametrize("line", HARMLESS)
def test_what_failed_not_is_no_failure(line: str) -> None:
    assert not speaks_of_failure(line)


def test_only_lines_that_gave_nothing_are_named_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(f"morning all\n{FAILED[5]}\nall well after that\n")
    (tmp_path / "engine.log").write_text(
        '(APIServer pid=1) INFO:     10.0.0.1:52815 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n'
    )
    assert lines_alarming(read_folder([tmp_path])) == ("notes.txt:2",)


def test_no_more_than_a_few_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(f"{FAILED[5]}\n" * 40)
    assert len(lines_alarming(read_folder([tmp_path]))) == MOST


@pytest.mark.parametrize(("note", "label"), [("everything quick today", "no-incident"), (FAILED[5], "inconclusive")])
def test_a_folder_is_not_called_well_against_them(tmp_path: Path, note: str, label: str) -> None:
    (tmp_path / "curl.txt").write_text(SERVED)
    (tmp_path / "notes.txt").write_text(f"{note}\n")
    found = triage([tmp_path], load(), {}, Limits())
    assert found.verdict.label == label
    assert ("notes.txt:1" in found.verdict.cause) == (label == "inconclusive")


def test_measurements_that_nobody_understood_are_named(tmp_path: Path) -> None:
    (tmp_path / "timings.txt").write_text("one caller, medians of three\ndirect   0.3 s   24 ms   9.9 s\nedge   1.9 s   0.1 ms   10.0 s\n")
    (tmp_path / "remarks.txt").write_text("the deploy took 40 s\nsince then 2 restarts of 12 s and 14 s\n")
    assert times_unread(read_folder([tmp_path])) == ("timings.txt:2", "timings.txt:3")
