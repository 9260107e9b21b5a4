"""Keys that are added, changed and taken away while the gateway serves."""

import json
import socket
from urllib.parse import quote

import pytest
from gateway_house import KEYS, MODEL, House, house, key_id, wait_for
from gateway_stage import FakeEngine, run, stage_of
from lensd_collectors.gateway.keys import append, entry_of

ASK = {"model": MODEL, "messages": [], "stream": False}


def post(at: House, secret: str, body: dict[str, object] = ASK) -> socket.socket:
    """A connection on which the request was sent."""
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\ncontent-length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", at.port), timeout=5)
    connection.sendall(head.encode() + data)
    return connection


def status(at: House, secret: str) -> int:
    with post(at, secret) as connection:
        return int(connection.recv(65536).split(b" ")[1])


def changed(at: House, act: str) -> dict[str, object]:
    """What is said of the file, once the gateway has looked at it again."""
    before = at.kept.acts().count(act)
    at.clock.shift(1.1)
    wait_for(lambda: at.kept.acts().count(act) > before)
    return [event for event in at.kept.events if event["attributes"].get("lensd.gateway.act") == act][-1]


@pytest.fixture
def serving(tmp_path):
    with house(tmp_path) as made:
        yield made


def test_keys_come_and_go_and_what_is_under_way_runs_on(serving, tmp_path):
    path = tmp_path / "keys.toml"
    text = path.read_text()
    late = "sk-lensd-" + "L" * 43
    assert status(serving, late) == 401
    append(path, entry_of("late", late, ["*"]))
    assert changed(serving, "keys_reloaded")["body"] == f"{len(KEYS) + 1} keys, 1 of them expired, 1 of them disabled from {path}"
    assert status(serving, late) == 200
    with post(serving, late, {**ASK, "model": "tiny-open", "stream": True}) as running:
        lines = running.makefile("rb")
        wait_for(lambda: serving.engine.calls[-1].asked["model"] == "tiny-open")
        call = serving.engine.calls[-1]
        path.write_text(text)
        changed(serving, "keys_reloaded")
        assert status(serving, late) == 401
        serving.do(call.chunk(b"data: {}\n\n"))
        assert b"data: {}\n" in lines


def test_a_broken_file_keeps_the_keys_it_had_and_is_told_of_once(serving, tmp_path):
    path = tmp_path / "keys.toml"
    text = path.read_text()
    for broken, told in (
        ("[[keys", f"the {len(KEYS)} keys read before stay in force"),
        (None, f"the {len(KEYS)} keys it held stay in force"),
    ):
        path.write_text(broken) if broken is not None else path.unlink()
        said = changed(serving, "keys_rejected")
        assert (said["severity"], told in said["body"]) == ("error", True)
        assert status(serving, KEYS["narrow"]) == 200
        assert KEYS["narrow"][9:29] not in repr(said)
    rejected = serving.kept.acts().count("keys_rejected")
    path.write_text(text.replace(f'id = "{key_id("narrow")}"', 'id = "renamed"'))
    changed(serving, "keys_reloaded")
    assert serving.kept.acts().count("keys_rejected") == rejected
    assert status(serving, KEYS["narrow"]) == 200


def test_a_file_that_holds_no_keys_any_more_is_warned_of(serving, tmp_path):
    (tmp_path / "keys.toml").write_text("")
    said = changed(serving, "keys_missing")
    assert (said["severity"], status(serving, KEYS["narrow"])) == ("warning", 401)


@pytest.mark.parametrize("name", ["/srv/models/" + "m" * 200, "org/model:tag"])
def test_the_card_of_a_model_with_any_name(name):
    async def main():
        async with stage_of(FakeEngine(None, [name])) as s:
            return [await s.ask(None, path, "GET") for path in (f"/v1/models/{name}", f"/v1/models/{quote(name, safe='')}")]

    for answer in run(main()):
        assert (answer.status, json.loads(answer.body)["id"]) == (200, name)


def test_limits_hold_over_a_change_of_the_file(serving, tmp_path):
    path = tmp_path / "keys.toml"
    assert [status(serving, KEYS["rare"]) for _ in range(2)] == [200, 429]
    path.write_text(path.read_text().replace("requests_per_min = 1\n", "requests_per_min = 2\n"))
    changed(serving, "keys_reloaded")
    assert status(serving, KEYS["rare"]) == 429  # what was used is used: the new limit is no new bucket
    serving.clock.shift(30)
    assert status(serving, KEYS["rare"]) == 200
