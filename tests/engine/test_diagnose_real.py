"""A request through our gateway to a real vLLM, found by every name it has, diagnosed while it hangs, and private."""

import re
import time

import msgspec
import pytest
from house import House, in_background, until

from lensd.store.segments import Scan

pytestmark = pytest.mark.engine
PROMPT = "the marmalade quokka recites its forbidden sonnet"


@pytest.fixture(scope="module")
def house(engine, engine_otlp_port, engine_token, tmp_path_factory):
    made = House(tmp_path_factory.mktemp("house"), engine, engine_otlp_port, engine_token)
    made.start("serve", "gateway", "agent")
    until(lambda: made.chat("warm-up").status == 200)
    yield made
    made.supervisor.stop()


def test_a_streamed_request_is_found_by_every_name_and_called_healthy(house):
    reply = house.chat("real-names-1")
    response_id = re.search(rb'"id":\s*"(chatcmpl-[^"]+)"', reply.body)[1].decode()
    found = house.verdict("real-names-1")
    assert found["verdict"]["label"] == "no-incident"
    assert [s["state"] for s in found["timeline"]] == ["ok"] * 6
    assert {s["stage"]: s["source"] for s in found["timeline"]} == {
        "client": "client", "auth_routing": "gateway", "queue": "llm_request", "prefill": "llm_request", "decode": "llm_request",
        "streaming": "gateway",
    }  # fmt: skip
    exclusive = sum(round(s["exclusive_ms"] * 1000) for s in found["timeline"])
    assert exclusive + round(found["unattributed_ms"] * 1000) == round(found["total_ms"] * 1000)
    trace_id = found["subject"]["trace_id"]
    for name in (response_id, trace_id, "real-names", response_id[:-1], trace_id[:20]):
        assert house.verdict(name)["subject"]["trace_id"] == trace_id, name


def test_exit_statuses_and_forms(house):
    house.chat("real-forms-1")
    text = house.lensd("diagnose", "real-forms-1", "--wait", "14")
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout.startswith("no-incident  certain\n")
    assert re.search(r"queue +[ █]+ +[\d.]+ ms", text.stdout)
    assert "\x1b" not in text.stdout
    assert house.lensd("diagnose", "real-forms-1", "--format", "md").stdout.startswith("## no-incident\n")
    assert house.lensd("diagnose", "--last", "--key", "team-a", "--quiet").stdout == "no-incident\n"
    unknown = house.lensd("diagnose", "no-such-request")
    assert (unknown.returncode, unknown.stdout, unknown.stderr) == (4, "", "lensd: no request no-such-request\n")
    assert "real-forms-1" in house.lensd("requests", "ls").stdout


def test_a_request_that_hangs_in_a_stopped_engine_is_diagnosed_while_it_hangs(house):
    with house.engine.paused():
        thread = in_background(lambda: house.chat("real-hang-1", timeout_s=60))
        time.sleep(5)
        found = house.verdict("real-hang-1", 0)
        text = house.lensd("diagnose", "real-hang-1").stdout
    thread.join(60)
    assert (found["subject"]["outcome"], found["verdict"]["label"], found["verdict"]["stage"]) == ("open", "inconclusive", "queue")
    queue = next(s for s in found["timeline"] if s["stage"] == "queue")
    assert queue["estimated"]
    assert 4000 < queue["duration_ms"] < 12_000
    assert re.search(r"still open: handed to e0 [\d.]+ s ago and no byte has come", text)
    assert "prefill cannot be told apart" in text
    assert house.verdict("real-hang-1")["subject"]["outcome"] == "ok"  # it went on after SIGCONT


def test_a_planted_prompt_and_key_are_found_nowhere(house):
    house.chat("real-private-1", content=PROMPT)
    house.verdict("real-private-1")
    with house.caller("sk-wrong-4711-planted") as caller:
        caller.chat({"model": "tiny-llama", "messages": [{"role": "user", "content": PROMPT}]}, request_id="real-private-2")
    house.verdict("real-private-2")
    api = [house.client.requests(limit=500), house.client.diagnosis("real-private-1"), house.client.diagnosis("real-private-2")]
    places = {"API": msgspec.json.encode(api), "output of the parts": house.output.getvalue().encode()}
    places |= {str(p.relative_to(house.folder)): p.read_bytes() for p in house.store.rglob("*") if p.is_file()}
    places |= {f"journal record {r.position}": r.payload for r in Scan(house.store / "journal", 0)}
    assert any("journal record" in name for name in places)
    for secret in (PROMPT, "marmalade", "sk-wrong-4711-planted", house.key, house.token):
        assert [name for name, content in places.items() if secret.encode() in content] == [], secret


def test_without_a_daemon_the_command_reads_store_and_journal_itself(house):
    house.chat("real-offline-1")
    before = house.verdict("real-offline-1")
    house.supervisor.stop()
    after = house.lensd("diagnose", "real-offline-1", "--json")
    assert after.returncode == 0
    told = msgspec.json.decode(after.stdout)
    assert (told["verdict"], told["timeline"]) == (before["verdict"], before["timeline"])
    house.start("serve", "gateway", "agent")
