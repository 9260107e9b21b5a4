"""A bundle is judged as the store it was packed from, and holds no key, no prompt and no caller's address."""

import io
import json
import zipfile

import pytest
from lensd_collectors.rows import ConfigFact, EngineSample, Event, HttpExchange, RequestRow, SpanRow

from lensd.diagnosis import bundle
from lensd.diagnosis.cases import cases_path, fill, load_cases
from lensd.diagnosis.diagnose import diagnose_row
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.runbook import built_in_folder, load
from lensd.diagnosis.scope import Scope
from lensd.diagnosis.triage import triage
from lensd.errors import UnreadableError
from lensd.records import Incident
from lensd.store import queries
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.limits import Limits

BOOKS = load()
T0 = 1_795_953_600_000_000
KEY = "sk-proj-4f9a1c7d2e8b6a5f3c0d"
PROMPT = "the merger with Borealis closes on Friday"
OF_REQUESTS = ("auth-wrong-key", "queue-saturation", "client-read-timeout-too-short", "engine-crash", "context-length-server-limit-low")
OF_WINDOWS = (
    "kv-cache-leak",
    "queue-saturation@window",
    "engine-crash@window",
    "engine-silent-stall@window",
    "kv-preemption-thrash@window",
)


@pytest.fixture
def store():
    made = MemoryStore(memory_limit="256MiB")
    yield made
    made.close()


def that_fire(name):
    return [case for case in load_cases(cases_path(built_in_folder() / f"{name}.md")) if case.expect == "fires"]


def triaged(tmp_path, packed):
    path = tmp_path / "bundle.zip"
    path.write_bytes(packed)
    return triage([path], BOOKS, {}, Limits())


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_request_is_judged_the_same_from_its_bundle(name, store, tmp_path):
    _, (_, last) = fill(store, that_fire(name)[0].rows)
    now = last + 60_000_000
    with store.cursor() as cursor:
        row = queries.rows(cursor, "select * from requests order by request_key limit 1")[0]
        live = diagnose_row(cursor, row, BOOKS, {}, Limits(), now)
        packed = bundle.of_request(cursor, row, {}, Limits(), now)
    found = triaged(tmp_path, packed)
    assert found.verdict == live.verdict
    assert found.verdict.label == BOOKS[name].label
    assert found.subject == live.subject
    assert [(f.label, f.confidence, f.evidence) for f in found.findings] == [(f.label, f.confidence, f.evidence) for f in live.findings]
    assert found.not_evaluated == live.not_evaluated


@pytest.mark.parametrize("name", OF_WINDOWS)
def test_an_incident_is_judged_the_same_from_its_bundle(name, tmp_path):
    store, first, last, finding = at_a_tick(name)
    with store.cursor() as cursor:
        incident = incident_of(finding, first, last)
        packed = bundle.of_incident(cursor, incident, {}, Limits(), last + 5_000_000)
    found = triaged(tmp_path, packed)
    assert (found.verdict.label, found.verdict.cause, found.verdict.stage) == (finding.label, finding.cause, finding.stage)
    assert found.subject.engine == finding.engine


def at_a_tick(name):
    """A store with the rows of the first case on which the rule fires at their end, as it does live; their extent; what it finds."""
    for case in that_fire(name):
        store = MemoryStore(memory_limit="256MiB")
        _, (first, last) = fill(store, case.rows)
        with store.cursor() as cursor:
            findings = evaluate(cursor, {name: BOOKS[name]}, Scope(to_us=last)).findings
        if findings:
            return store, first, last, findings[0]
        store.close()
    raise AssertionError(f"no case of {name} fires at a tick")


def incident_of(finding, first, last):
    told = {name: getattr(finding, name) for name in ("label", "severity", "stage", "confidence", "cause", "fix", "engine", "model", "gpu")}
    return Incident(incident_id="inc-1", revision=1, state="open", opened_at=(first + last) // 2, last_seen_at=last, **told)


def test_an_incident_of_which_the_rows_tell_nothing_is_said_as_it_was_recorded(store, tmp_path):
    incident = Incident(
        incident_id="inc-2", revision=3, label="gpu-hardware-fault", state="resolved", severity="critical", stage="gpu", engine="e0",
        confidence="certain", cause="The card fell off the bus.", fix="replace it", opened_at=T0, last_seen_at=T0 + 1_000_000,
    )  # fmt: skip
    with store.cursor() as cursor:
        found = triaged(tmp_path, bundle.of_incident(cursor, incident, {}, Limits(), T0 + 2_000_000))
    assert (found.verdict.label, found.verdict.cause) == ("gpu-hardware-fault", "The card fell off the bus.")


def planted(store):
    body = {"gen_ai.input.messages": PROMPT, "gen_ai.request.model": "tiny", "note": f"Authorization: Bearer {KEY}"}
    store.append(
        batch_of(
            {
                "requests": [
                    RequestRow(
                        request_key=1, revision=0, request_id="r-1", trace_id="a" * 32, started_at=T0, ended_at=T0 + 10**6, settled=True,
                        outcome="refused", status=401, decision="key_unknown", engine="e0", key_id="team-a", peer="203.0.113.77",
                        error_message=f"wrong api_key={KEY}",
                    )
                ],
                "spans": [SpanRow(trace_id="a" * 32, span_id="b" * 16, started_at=T0, ended_at=T0 + 9, attributes=json.dumps(body))],
                "events": [
                    Event(seen_at=T0, engine="e0", name="gen_ai.user.message", line=PROMPT, fields=json.dumps({"body": PROMPT})),
                    Event(
                        seen_at=T0, engine="e0", name="http.invalid_request", line=f"203.0.113.77 sent prompt: '{PROMPT}' key {KEY}",
                        fields=json.dumps({"peer": "203.0.113.77"}),
                    ),
                ],
                "http_exchanges": [HttpExchange(seen_at=T0, path=f"/v1/chat?token={KEY}", status=401, peer="203.0.113.77", hop="gateway")],
                "config_facts": [ConfigFact(seen_at=T0, subject="e0", name="api_key", value=KEY, was=None)],
                "engine_samples": [EngineSample(seen_at=T0, engine="e0", running=1.0, waiting=0.0, up=True)],
            }
        )
    )  # fmt: skip


def test_a_planted_key_prompt_and_address_never_get_in(store):
    planted(store)
    with store.cursor() as cursor:
        row = queries.rows(cursor, "select * from requests")[0]
        packed = bundle.of_request(cursor, row, {}, Limits(), T0 + 60_000_000)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    for name, text in texts.items():
        assert KEY not in text, name
        assert PROMPT not in text, name
        assert "203.0.113.77" not in text, name
    manifest = json.loads(texts["manifest.json"])
    assert manifest["scrubbed"]["peers"] == 1
    assert manifest["scrubbed"]["keys"] >= 3
    assert manifest["scrubbed"]["content"] >= 3
    assert manifest["tables"] == {"requests": 1, "engine_samples": 1, "spans": 1, "events": 2, "config_facts": 1, "http_exchanges": 1}
    assert manifest["versions"]["lensd"]
    assert "logs/e0.log" in texts
    assert {json.loads(texts["tables/requests.jsonl"])["peer"], json.loads(texts["tables/http_exchanges.jsonl"])["peer"]} == {"peer-1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: {**files, "manifest.json": b'{"lensd_bundle": 99}'}, "a bundle of form 99"),
        (lambda files: {**files, "manifest.json": b'{"lensd_bundle": 1}'}, "not what a bundle says of itself"),
        (lambda files: {**files, "tables/requests.jsonl": b'{"request_key": "x"}\n'}, "tables/requests.jsonl:1: no row of requests"),
        (lambda files: {name: text for name, text in files.items() if "requests" not in name}, "does not hold the request that it is of"),
    ],
)
def test_a_bundle_that_is_none_is_told_in_one_line(change, said, store, tmp_path):
    planted(store)
    with store.cursor() as cursor:
        row = queries.rows(cursor, "select * from requests")[0]
        packed = bundle.of_request(cursor, row, {}, Limits(), T0 + 60_000_000)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        files = change({name: archive.read(name) for name in archive.namelist()})
    for name, content in files.items():
        (tmp_path / "b" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "b" / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=said):
        triage([tmp_path / "b"], BOOKS, {}, Limits())
