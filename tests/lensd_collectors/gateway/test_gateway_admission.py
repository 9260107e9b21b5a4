"""Who is let in, and what is refused before an engine sees it."""

import asyncio
import json

import pytest
from gateway_stage import CHAT, MODEL, PROMPT, Call, capture, run, stage
from lensd_collectors.gateway.config import Upstream
from lensd_collectors.gateway.keys import append, new_key
from lensd_collectors.gateway.routes import Fleet

WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()


async def whole(call: Call) -> None:
    await call.reply(200, WHOLE)


async def silent(call: Call) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "says"),
    [
        ("POST", "/chat/completions", CHAT, 404, "route_not_found", "did you mean /v1/chat/completions?"),
        ("POST", "/v1/v1/completions", CHAT, 404, "route_not_found", "did you mean /v1/completions?"),
        ("POST", "/v1/chat/completions/", CHAT, 404, "route_not_found", "did you mean /v1/chat/completions?"),
        ("GET", "/models", None, 404, "route_not_found", "did you mean /v1/models?"),
        ("GET", "/metrics", None, 404, "route_not_found", "there is no path /metrics"),
        ("GET", "/v1/chat/completions", None, 405, "method_not_allowed", "takes POST, not GET"),
        ("POST", "/v1/models", CHAT, 405, "method_not_allowed", "takes GET, not POST"),
        ("POST", "/v1/completions", b"{", 400, "invalid_body", "not a JSON object"),
        ("POST", "/v1/completions", {"prompt": PROMPT}, 400, "invalid_body", "names no model"),
        ("POST", "/v1/completions", b'{"model": "a", "model": "b"}', 400, "invalid_body", "more than once"),
        ("POST", "/v1/completions", {"model": "nope-70b", "prompt": PROMPT}, 404, "model_not_found", "`nope-70b` is not served"),
        (
            "POST",
            "/v1/completions",
            b'{"model":"%s","prompt":"%s"}' % (MODEL.encode(), b"x" * 5000),
            413,
            "request_too_large",
            "4000 bytes",
        ),
    ],
)
def test_what_the_gateway_refuses_itself(method, path, body, status, code, says):
    async def main():
        async with stage(whole, max_body_bytes=4000) as s:
            answer = await s.ask(body, path, method)
            return answer, len(s.engine.calls), await s.record()

    answer, calls, record = run(main())
    assert calls == 0
    assert (answer.status, answer.error["code"]) == (status, code)
    assert says in answer.error["message"]
    assert set(answer.error) == {"message", "type", "code", "param"}
    assert answer.headers["x-lensd-said-by"] == "gateway"
    assert answer.headers["x-request-id"] == record["lensd.request.id"]
    assert answer.headers["traceparent"].split("-")[1] == answer.headers["x-request-id"]
    assert (record["http.response.status_code"], record["error.type"], record["lensd.outcome"]) == (status, code, "refused")
    assert PROMPT not in repr(record)


def test_a_body_without_a_length_is_cut_off_at_the_limit():
    async def main():
        async with stage(whole, max_body_bytes=4000) as s:
            reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 5
            )
            line = await asyncio.wait_for(reader.readline(), 2)
            writer.close()
            return line, await s.record()

    line, record = run(main())
    assert line.startswith(b"HTTP/1.1 413")
    assert record["lensd.decision"] == "body_too_large"


def test_a_body_that_never_arrives_is_a_408():
    async def main():
        async with stage(whole, total_timeout_s=0.08) as s:
            reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            line = await asyncio.wait_for(reader.readline(), 2)
            writer.close()
            return line, await s.record()

    line, record = run(main())
    assert line.startswith(b"HTTP/1.1 408")
    assert (record["lensd.outcome"], record["lensd.decision"], record["lensd.timeout.kind"]) == ("timed_out", "body_malformed", "total")


def test_too_many_at_once_are_turned_away():
    async def main():
        async with stage(silent, max_in_flight=1) as s:
            _, writer = await s.open()
            await s.engine.called.wait()
            answer = await s.ask()
            writer.close()
            return answer

    answer = run(main())
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "rate_limited", "1")


def test_keys_decide_who_may_use_what(tmp_path):
    path = tmp_path / "keys.toml"
    narrow, entry = new_key("narrow", ["tiny-*"])
    append(path, entry)
    wide, entry = new_key("wide", ["*"])
    append(path, entry)
    none, entry = new_key("none", ["secret-model-name"])
    append(path, entry)

    async def main():
        async with stage(whole, require_key=True, keys_file=str(path)) as s:
            s.engine.models = [MODEL, "big-model"]
            await s.app.fleet.refresh(s.app._session)

            async def ask(key, model):
                return await s.ask({**CHAT, "model": model}, headers={"Authorization": key} if key else None)

            answers = {
                "missing": await ask(None, MODEL),
                "malformed": await ask("Token x", MODEL),
                "wrong": await ask(f"Bearer {wide}x", MODEL),
                "allowed": await ask(f"Bearer {narrow}", MODEL),
                "denied": await ask(f"Bearer {narrow}", "big-model"),
                "unknown": await ask(f"Bearer {narrow}", "nope"),
            }
            lists = {}
            for name, key in (("narrow", narrow), ("wide", wide), ("none", none)):
                answer = await s.ask(None, "/v1/models", "GET", {"Authorization": f"Bearer {key}"})
                lists[name] = [card["id"] for card in json.loads(answer.body)["data"]]
                assert b"secret-path" not in answer.body
            answers["list"] = await s.ask(None, "/v1/models", "GET")
            health = await s.ask(None, "/health", "GET")
            return answers, lists, health, await s.records(), s.kept

    answers, lists, health, records, kept = run(main())
    assert {name: answer.status for name, answer in answers.items()} == {
        "missing": 401, "malformed": 401, "wrong": 401, "allowed": 200, "denied": 403, "unknown": 404, "list": 401,
    }  # fmt: skip
    assert answers["missing"].headers["www-authenticate"] == "Bearer"
    assert lists == {"narrow": [MODEL], "wide": [MODEL, "big-model"], "none": []}
    assert (health.status, health.headers["x-lensd-said-by"]) == (200, "gateway")
    assert [r["lensd.decision"] for r in records][:6] == [
        "key_missing", "key_malformed", "key_unknown", "allowed", "model_not_allowed", "model_unknown",
    ]  # fmt: skip
    assert [r["lensd.key.id"] for r in records][3:6] == ["narrow"] * 3
    assert all(record["http.route"] != "/health" for record in records)
    told = repr(kept.spans) + repr(kept.events) + "".join(f"{a.headers}{a.body!r}" for a in answers.values())
    for secret in (narrow, wide, none, PROMPT, "tiny-*", "secret-model-name"):
        assert secret not in told


def test_a_disabled_key_is_refused_and_named_in_the_record(tmp_path):
    path = tmp_path / "keys.toml"
    secret, entry = new_key("old", ["*"])
    append(path, entry)
    path.write_text(path.read_text().replace("disabled = false", "disabled = true"))

    async def main():
        async with stage(whole, require_key=True, keys_file=str(path)) as s:
            return await s.ask(headers={"Authorization": f"Bearer {secret}"}), await s.record()

    answer, record = run(main())
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert (record["lensd.decision"], record["lensd.key.id"]) == ("key_unknown", "old")


def test_keys_are_reloaded_while_serving(tmp_path):
    path = tmp_path / "keys.toml"

    async def main():
        async with stage(whole, require_key=True, keys_file=str(path)) as s:
            secret, entry = new_key("late", ["*"])
            header = {"Authorization": f"Bearer {secret}"}
            before = await s.ask(headers=header)
            append(path, entry)
            s.app._reload_keys()
            after = await s.ask(headers=header)
            path.write_text("broken")
            s.app._reload_keys()
            still = await s.ask(headers=header)
            return [before.status, after.status, still.status], s.kept.acts()

    statuses, acts = run(main())
    assert statuses == [401, 200, 200]
    assert [act for act in acts if act.startswith("keys")] == ["keys_missing", "keys_reloaded", "keys_rejected"]


def test_a_model_no_engine_has_named_yet_is_not_called_unknown():
    async def main():
        async with stage(whole, upstream={"url": "http://127.0.0.1:9"}) as s:
            return await s.ask()

    answer = run(main())
    assert (answer.status, answer.error["code"]) == (502, "no_upstream")


@pytest.mark.parametrize(
    ("states", "picked"),
    [
        ([(None, 0), (None, 0)], "a"),
        ([(True, 3), (True, 1)], "b"),
        ([(True, 3), (False, 0)], "a"),
        ([(None, 3), (False, 0)], "a"),  # not asked yet is not out
        ([(False, 3), (False, 1)], "b"),  # none is up: still tried
    ],
)
def test_a_request_goes_where_least_is_in_flight_among_those_that_are_up(states, picked):
    fleet = Fleet(
        [Upstream(url=f"http://127.0.0.1:{port}", name=name, models=(MODEL,)) for name, port in (("a", 1), ("b", 2))], lambda *_: None
    )
    for target, (up, in_flight) in zip(fleet.targets, states, strict=True):
        target.up, target.in_flight = up, in_flight
    assert fleet.pick(MODEL).name == picked
