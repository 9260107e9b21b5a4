"""Prompts, answers, tool calls and keys of foreign telemetry are nowhere, and what the telemetry was sent for is there."""

import base64
import gzip
import json
import zipfile
from collections import Counter
from io import BytesIO

import pytest
from canaries import CONTENT, KEYS, Planted, found_in
from everything_sent import ENCODINGS, HAS_GRPC, REFUSED, SENDERS, Run

NO_GRPC = pytest.mark.skipif(not HAS_GRPC, reason="grpcio is not installed here")
ENCODED = pytest.mark.parametrize("encoding", [pytest.param(name, marks=[NO_GRPC] if name == "grpc" else []) for name in ENCODINGS])


@ENCODED
@pytest.mark.parametrize("sender", SENDERS)
def test_nothing_of_a_sender_is_left_anywhere(run: Run, sender: str, encoding: str) -> None:
    left = run.of(f"{sender}/{encoding}")
    assert not left, "\n".join(["left:", *left])


def test_a_refused_body_is_not_quoted(run: Run) -> None:
    left = run.of(REFUSED)
    assert not left, "\n".join(["left:", *left])
    assert run.statuses[400] >= 7


def test_no_piece_of_a_mark_is_left(run: Run) -> None:
    """A mark that was cut or encoded so that it cannot be told whose it is."""
    assert {mark: dict(places) for mark, places in run.leaks.items() if mark not in run.taken} == {}


@ENCODED
@pytest.mark.parametrize("sender", SENDERS)
def test_spans_keep_names_durations_models_tokens_and_status(run: Run, sender: str, encoding: str) -> None:
    said = run.said[sender, encoding]
    for number, span in enumerate(said.spans):
        row = run.spans[said.trace_id, said.span_id(number)]
        assert row["duration_ms"] == pytest.approx(span.duration_ms)
        assert row["status"] == ("error" if span.error else "ok")
        assert row["name"].startswith(span.kept_name or span.name)
        assert row["service"] == said.resource["service.name"]
        kept = json.loads(row["attributes"] or "{}")
        assert {name: kept.get(name) for name in span.keeps} == span.keeps


@ENCODED
@pytest.mark.parametrize("sender", SENDERS)
def test_the_engines_call_in_a_senders_trace_is_a_request(run: Run, sender: str, encoding: str) -> None:
    rows = run.requests[run.said[sender, encoding].trace_id]
    assert [row for row in rows if row["engine"] == "e0" and row["outcome"] and row["prompt_tokens"] and row["completion_tokens"]], rows


def test_a_failed_spans_message_still_says_what_failed(run: Run) -> None:
    said = run.said["litellm", "protobuf"]
    row = run.spans[said.trace_id, said.span_id(4)]
    assert row["status_message"].startswith("litellm.AuthenticationError: Incorrect API key provided: ")


def test_the_api_says_all_of_it(run: Run) -> None:
    assert run.faults == []


def test_everything_was_searched(run: Run) -> None:
    assert set(run.searched) == {"api", "bundle", "command", "database", "file", "journal", "log", "table"}
    assert run.asked["diagnose"] == 2
    assert run.asked["requests"] > len(SENDERS) + 5
    assert run.rows["spans"] == sum(len(said.spans) + 1 for said in run.said.values()) + 2  # the engine's; two of `refused` are taken
    assert run.rows["requests"] >= len(run.said)
    assert run.rows["events"] > 10
    assert run.rows["engine_samples"] > 0
    assert min(run.searched.values()) > 100


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_every_kind_is_found_however_it_is_kept(kind: str) -> None:
    taken: dict[str, str] = {}
    text = f"before {Planted('s', taken).key(kind, 'p')} after".encode()
    twice = [] if kind == "basic" else [base64.b64encode(b"." * shift + text) for shift in range(3)]  # that one is base64 already
    for kept in (text, gzip.compress(text), _zipped(text), *twice):
        assert set(found_in(kept)) == set(taken)


def test_content_is_found_however_it_is_kept() -> None:
    taken: dict[str, str] = {}
    planted = Planted("s", taken)
    text = planted.said("p").encode()
    for kept in (text, text.upper(), base64.b64encode(b"." + text), gzip.compress(text), _zipped(gzip.compress(text))):
        assert set(found_in(b"\0\1" + kept if kept[:2] != b"PK" else kept)) == set(taken)
    for kept in (text.hex().encode(), text.decode().encode("utf-16-le"), CONTENT.encode()):
        assert found_in(kept)
    assert found_in(planted.image("image").encode()).keys() == taken.keys() - {next(iter(taken))}
    assert found_in(b"nothing of it" * 100) == Counter()


def _zipped(text: bytes) -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr("a", text)
    return made.getvalue()
