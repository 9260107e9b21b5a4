"""The gateway over real sockets, before an engine that is scripted."""

import asyncio
import json
import socket

import pytest
from engine_scripts import sending
from gateway_stage import CHAT, MODEL, Call, capture, run, stage

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STREAMED = {**CHAT, "stream": True}
SSE = capture("http/ok-chat-stream.json")["body"].encode()
WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()


async def whole(call: Call) -> None:
    await call.reply(200, WHOLE)


def test_a_whole_reply_passes_unchanged_and_is_recorded():
    async def main():
        async with stage(whole) as s:
            answer = await s.ask(headers={"X-Request-Id": "my id<1>", "traceparent": f"00-{TRACE}-{SPAN}-00"})
            return answer, s.engine.calls[0], await s.record(), s.kept.kept_spans

    answer, call, record, spans = run(main())
    assert (answer.status, answer.body) == (200, WHOLE)
    assert answer.headers["x-lensd-said-by"] == "engine"
    assert answer.headers["x-request-id"] == "myid1"
    assert call.body == json.dumps(CHAT).encode()
    assert call.headers["x-request-id"] == "myid1"
    by_name = {span["name"]: span for span in spans}
    server, upstream = by_name["POST /v1/chat/completions"], by_name["lensd.upstream"]
    assert (server["trace_id"], server["parent_span_id"], server["kind"], server["ok"]) == (TRACE, SPAN, "server", True)
    assert answer.headers["traceparent"] == f"00-{TRACE}-{server['span_id']}-01"
    assert call.headers["traceparent"] == f"00-{TRACE}-{upstream['span_id']}-01"
    assert {by_name[n]["parent_span_id"] for n in ("lensd.auth_routing", "lensd.upstream", "lensd.streaming")} == {server["span_id"]}
    assert len({span["span_id"] for span in spans}) == 4
    assert by_name["lensd.auth_routing"]["end_ns"] == upstream["start_ns"]
    assert server["start_ns"] == by_name["lensd.auth_routing"]["start_ns"] <= upstream["start_ns"] < upstream["end_ns"] <= server["end_ns"]
    assert 0 < upstream["attributes"]["lensd.upstream.first_byte_ms"] <= upstream["attributes"]["lensd.upstream.last_byte_ms"]
    assert {name: record[name] for name in record if record[name] is not None} == {
        "lensd.request.id": "myid1", "http.request.method": "POST", "http.route": "/v1/chat/completions", "gen_ai.request.model": MODEL,
        "lensd.engine": "engine-a", "lensd.upstream": record["lensd.upstream"], "lensd.request.streaming": False,
        "gen_ai.request.max_tokens": 16, "gen_ai.response.id": "chatcmpl-lens-req-a1", "lensd.bytes_sent": len(WHOLE),
        "http.response.status_code": 200, "lensd.outcome": "ok", "lensd.said_by": "engine", "lensd.decision": "allowed",
        "gen_ai.response.model": MODEL, "gen_ai.response.finish_reasons": ["length"], "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 16, "lensd.attempts": 1,
    }  # fmt: skip
    assert record["lensd.upstream"].startswith("127.0.0.1:")


def test_what_goes_to_the_engine_is_the_callers_less_its_credentials(tmp_path):
    credential = tmp_path / "engine.key"
    credential.write_text("engine-secret\n")
    sent = {
        "Authorization": "Bearer callers-secret", "Cookie": "a=b", "X-Api-Key": "k", "Accept-Encoding": "gzip", "X-Session-ID": "s1",
        "Connection": "x-private", "X-Private": "1", "tracestate": "v=1", "User-Agent": "app/1", "Content-Type": "application/json",
        "Accept": "*/*", "x-stainless-read-timeout": "600",
    }  # fmt: skip

    async def main(upstream):
        async with stage(whole, upstream=upstream) as s:
            answer = await s.ask(headers=sent, path="/v1/chat/completions?x=1")
            return answer, s.engine.calls[0], await s.record()

    answer, call, record = run(main({"api_key_file": str(credential)}))
    assert answer.status == 200
    assert call.path == "/v1/chat/completions"
    assert call.headers.pop("authorization") == "Bearer engine-secret"
    assert set(call.headers) == {
        "host", "content-length", "x-request-id", "traceparent", "x-session-id", "tracestate", "user-agent", "content-type", "accept",
        "x-stainless-read-timeout",
    }  # fmt: skip
    assert (record["lensd.client.timeout_ms"], record["gen_ai.conversation.id"]) == (600_000.0, "s1")
    _, call, _ = run(main({}))
    assert "authorization" not in call.headers


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_a_stream_passes_byte_for_byte_however_it_is_cut(size):
    async def main():
        async with stage(sending(*(SSE[at : at + size] for at in range(0, len(SSE), size)))) as s:
            return await s.ask(STREAMED), await s.record(), s.kept.kept_spans

    answer, record, spans = run(main())
    assert answer.body == SSE
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (record["lensd.outcome"], record["lensd.stream.done_seen"], record["lensd.stream.chunks"]) == ("ok", True, 18)
    assert (record["gen_ai.usage.output_tokens"], record["lensd.bytes_sent"]) == (16, len(SSE))
    upstream = next(span["attributes"] for span in spans if span["name"] == "lensd.upstream")
    assert (
        upstream["lensd.upstream.first_byte_ms"] <= upstream["lensd.upstream.first_content_ms"] <= upstream["lensd.upstream.last_byte_ms"]
    )


HEAD = SSE[: SSE.index(b"\n\n", 600) + 2]
DEAD = b'data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}\n\n'


def test_an_engine_that_dies_inside_a_stream_is_told_from_one_that_ends():
    async def main():
        async with stage(sending(HEAD, DEAD, b"data: [DONE]\n\n")) as s:
            return await s.ask(STREAMED), await s.record()

    answer, record = run(main())
    assert answer.body == HEAD + DEAD + b"data: [DONE]\n\n"
    assert (record["lensd.outcome"], record["lensd.said_by"], record["lensd.decision"]) == ("failed", "engine", "engine_dead")
    assert (record["http.response.status_code"], record["error.type"]) == (200, "InternalServerError")
    assert record["lensd.error.message"] == "EngineCore encountered an issue."


@pytest.mark.parametrize("then", ["end", "cut"])
@pytest.mark.parametrize("torn", [b"", b'data: {"id": "half'])
def test_a_stream_without_an_end_gets_one_error_frame(then, torn):
    async def main():
        async with stage(sending(HEAD + torn, then=then)) as s:
            return await s.ask(STREAMED), await s.record()

    answer, record = run(main())
    head, _, tail = answer.body.rpartition(b'data: {"error"')
    assert head.startswith(HEAD + torn)
    assert bool(head[len(HEAD) :]) == bool(torn)
    frame, done, rest = (b'{"error"' + tail).split(b"\n\n")
    assert json.loads(frame)["error"]["code"] == "stream_cut"
    assert (done, rest) == (b"data: [DONE]", b"")
    assert (record["lensd.outcome"], record["error.type"], record["lensd.stream.done_seen"]) == ("cut", "stream_cut", False)


@pytest.mark.parametrize(("then", "outcome"), [("end", "ok"), ("cut", "cut")])
def test_a_finished_answer_without_done_is_whole_if_it_ended_cleanly(then, outcome):
    body = SSE[: SSE.index(b"data: [DONE]")]

    async def main():
        async with stage(sending(body, then=then)) as s:
            return await s.ask(STREAMED), await s.record()

    answer, record = run(main())
    assert (answer.body == body) is (outcome == "ok")
    assert record["lensd.outcome"] == outcome


@pytest.mark.parametrize(
    ("name", "outcome", "decision"),
    [
        ("http/err-prompt-too-long.json", "refused", "context_too_long"),
        ("http/err-bad-type.json", "refused", "body_malformed"),
        ("http-preempt/err-admission-queue-full.json", "refused", "engine_busy"),
        ("killworker-nonstream.json", "failed", "engine_dead"),
    ],
)
def test_an_engines_error_passes_unchanged(name, outcome, decision):
    seen = capture(name)

    async def script(call):
        await call.reply(seen["status"], seen["body"].encode())

    async def main():
        async with stage(script) as s:
            return await s.ask(), await s.record()

    answer, record = run(main())
    assert (answer.status, answer.body) == (seen["status"], seen["body"].encode())
    assert answer.headers["x-lensd-said-by"] == "engine"
    assert (record["lensd.outcome"], record["lensd.decision"], record["lensd.said_by"]) == (outcome, decision, "engine")
    assert record["http.response.status_code"] == seen["status"]
    assert "many" not in record["lensd.error.message"].split()


def test_an_engine_that_has_unloaded_the_model_is_not_quoted():
    seen = capture("http/err-model-unknown.json")

    async def script(call):
        await call.reply(seen["status"], seen["body"].encode())

    async def main():
        async with stage(script) as s:
            return await s.ask(), await s.record()

    answer, record = run(main())
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert "aliases" not in answer.error["message"]
    assert "engine-a answered 404" in record["lensd.error.message"]
    assert (record["lensd.outcome"], record["lensd.decision"]) == ("refused", "model_unknown")


def test_the_engines_401_is_not_the_callers():
    async def script(call):
        await call.reply(401, b'{"error":"Unauthorized"}')

    async def main():
        async with stage(script) as s:
            return await s.ask(), await s.record()

    answer, record = run(main())
    assert (answer.status, answer.error["code"]) == (502, "upstream_credential_refused")
    assert (answer.headers["x-lensd-said-by"], answer.headers["x-should-retry"]) == ("gateway", "false")
    assert (record["lensd.decision"], record["lensd.said_by"]) == ("upstream_credential_refused", "gateway")


async def _nothing(call):
    call.cut()


async def _half(call):
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
    call.cut()


async def _headers_only(call):
    await call.start_stream()
    call.cut()


@pytest.mark.parametrize("script", [_nothing, _half, _headers_only])
def test_an_engine_that_breaks_off_before_anything_went_out_is_a_502(script):
    async def main():
        async with stage(script) as s:
            return await s.ask(STREAMED), await s.record(), [span["name"] for span in s.kept.kept_spans]

    answer, record, spans = run(main())
    assert (answer.status, answer.error["code"], answer.headers["x-lensd-stage"]) == (502, "engine_error", "engine")
    assert (record["lensd.outcome"], record["lensd.decision"]) == ("failed", "engine_error")
    assert spans == ["lensd.auth_routing", "lensd.upstream", "POST /v1/chat/completions"]


def test_an_engine_that_has_gone_is_a_503_and_marked_out():
    async def main():
        async with stage(whole) as s:
            place = s.app.fleet.targets[0].place
            await s.close_engine()
            answer = await s.ask()
            return place, answer, await s.record(), [span["name"] for span in s.kept.kept_spans], s.kept.acts()

    place, answer, record, spans, acts = run(main())
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "no_upstream", "5")
    assert place not in answer.body.decode()
    assert (record["lensd.outcome"], record["lensd.decision"], record["lensd.upstream"]) == ("refused", "no_upstream", place)
    assert spans == ["lensd.auth_routing", "POST /v1/chat/completions"]
    assert acts == ["started", "upstream_in", "upstream_out"]


async def _silent(call):
    await asyncio.sleep(60)


async def _whole_but_slow(call):
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("script", "settings", "kind", "limit_ms"),
    [
        (_silent, {"first_byte_timeout_s": 0.08}, "first_byte", 80),
        (sending(then="hang"), {"first_byte_timeout_s": 0.08}, "first_byte", 80),
        (_whole_but_slow, {"idle_timeout_s": 0.08}, "idle", 80),
        (_silent, {"total_timeout_s": 0.08}, "total", 80),
    ],
)
def test_a_limit_before_anything_went_out_is_a_504(script, settings, kind, limit_ms):
    async def main():
        async with stage(script, **settings) as s:
            answer = await s.ask(STREAMED)
            call = s.engine.calls[0]
            await asyncio.wait_for(call.gone.wait(), 1)
            return answer, await s.record()

    answer, record = run(main())
    assert (answer.status, answer.error["code"], answer.headers["x-lensd-said-by"]) == (504, "upstream_timeout", "gateway")
    assert "0.08 s" in answer.error["message"]
    assert (record["lensd.outcome"], record["lensd.decision"]) == ("timed_out", "upstream_timeout")
    assert (record["lensd.timeout.kind"], record["lensd.timeout.ms"]) == (kind, limit_ms)


@pytest.mark.parametrize(("settings", "kind"), [({"idle_timeout_s": 0.08}, "idle"), ({"total_timeout_s": 0.15}, "total")])
def test_a_limit_inside_a_stream_is_a_frame_and_done(settings, kind):
    async def main():
        async with stage(sending(HEAD, then="hang"), **settings) as s:
            return await s.ask(STREAMED), await s.record()

    answer, record = run(main())
    assert answer.body.startswith(HEAD + b'data: {"error":')
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")
    assert (record["http.response.status_code"], record["lensd.outcome"]) == (200, "timed_out")
    assert (record["lensd.timeout.kind"], record["lensd.said_by"], record["error.type"]) == (kind, "gateway", "upstream_timeout")


def test_a_connection_that_is_not_taken_is_a_504():
    with socket.socket() as full:  # a backlog of one that nobody empties
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        place = full.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(place)

        async def main():
            settings = {"upstream": {"url": f"http://127.0.0.1:{place[1]}", "models": (MODEL,)}, "connect_timeout_s": 0.08}
            async with stage(whole, **settings) as s:
                s.app.fleet.targets[0].succeed(0, "as if its model list had come")
                return await s.ask(), await s.record(), [span["name"] for span in s.kept.kept_spans]

        try:
            answer, record, spans = run(main())
        finally:
            for each in waiting:
                each.close()
    assert answer.status == 504
    assert (record["lensd.timeout.kind"], record["lensd.timeout.ms"]) == ("connect", 80)
    assert "lensd.upstream" not in spans


def test_a_reply_too_large_to_hold_passes_unread(monkeypatch):
    monkeypatch.setattr("lensd_collectors.gateway.relay.MAX_HELD_BYTES", 1000)
    body = WHOLE + b" " * 200_000

    async def script(call):
        await call.reply(200, body)

    async def main():
        async with stage(script) as s:
            return await s.ask(), await s.record()

    answer, record = run(main())
    assert answer.body == body
    assert (record["lensd.outcome"], record["lensd.bytes_sent"], record.get("gen_ai.response.id")) == ("ok", len(body), None)


def test_a_fault_of_the_gateway_is_not_put_on_the_engine(monkeypatch):
    async def broken(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr("lensd_collectors.gateway.relay.Relay.run", broken)

    async def main():
        async with stage(whole) as s:
            return await s.ask(), await s.record()

    answer, record = run(main())
    assert (answer.status, answer.error["code"]) == (500, "gateway_error")
    assert (record["lensd.outcome"], record["lensd.said_by"], record["lensd.decision"]) == ("failed", "gateway", "gateway_error")


def test_what_is_open_at_the_stop_is_ended_and_recorded():
    async def main():
        async with stage(sending(HEAD, then="hang")) as s:
            reader, writer = await s.open(STREAMED)
            await reader.readuntil(b"data: ")
            await s.app.stop()
            rest = await asyncio.wait_for(reader.readuntil(b"data: [DONE]\n\n"), 2)
            writer.close()
            return rest, await s.record()

    rest, record = run(main())
    assert b'"code":"gateway_stopping"' in rest
    assert (record["lensd.outcome"], record["error.type"], record["lensd.decision"]) == ("cut", "gateway_stopping", "gateway_stopping")


def test_a_connection_that_goes_stale_under_a_request_is_asked_again_on_a_fresh_one():
    async def script(call):
        if len(engine_calls) == 1:  # the second request, over the connection of the first: closed without a byte
            engine_calls.append(call)
            call.cut()
            return
        engine_calls.append(call)
        await call.reply(200, b'{"id": "chatcmpl-1", "choices": []}')

    engine_calls = []

    async def main():
        async with stage(script) as s:
            assert (await s.ask()).status == 200
            assert (await s.ask()).status == 200
            return await s.records()

    first, second = run(main())
    assert (first["lensd.attempts"], second["lensd.attempts"]) == (1, 2)
    assert len(engine_calls) == 3


def test_a_fresh_connection_that_is_closed_without_a_byte_is_an_error_of_the_engine():
    async def script(call):
        call.cut()

    async def main():
        async with stage(script, upstream={"models": [MODEL]}) as s:
            answer = await s.ask()
            return answer, await s.record(), len(s.engine.calls)

    answer, record, calls = run(main())
    assert (answer.status, record["lensd.decision"]) == (502, "engine_error")
    assert calls <= 2  # the one that learns the models leaves its connection behind
