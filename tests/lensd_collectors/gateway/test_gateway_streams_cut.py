"""Any stream, cut anywhere, passes untouched and is counted in passing."""

import asyncio
import contextlib
import itertools
import json

import pytest
from gateway_stage import MODEL, Call, stage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sse_spec import all_data, parsed, read
from stream_pieces import STREAMED
from uvloop import new_event_loop

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
CHOICES = st.one_of(
    TEXT.map(lambda text: {"index": 0, "delta": {"content": text}}),
    st.just({"index": 0, "delta": {"role": "assistant", "content": ""}}),
    st.just({"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}),
    TEXT.map(lambda text: {"index": 0, "delta": {"reasoning_content": text}}),
    TEXT.map(lambda text: {"index": 0, "text": text}),
    st.sampled_from(["stop", "length"]).map(lambda why: {"index": 0, "delta": {}, "finish_reason": why}),
)
USAGE = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.none() | st.integers(0, 9)).map(
    lambda n: {"prompt_tokens": n[0], "completion_tokens": n[1], **({"prompt_tokens_details": {"cached_tokens": n[2]}} if n[2] else {})}
)
CHUNK = st.builds(
    lambda choices, usage: {"id": "chatcmpl-1", "model": MODEL, "choices": choices, **({"usage": usage} if usage else {})},
    st.lists(CHOICES, max_size=2), st.none() | USAGE,
)  # fmt: skip


def written(data: dict | str, pretty: bool, space: bool, name: bool) -> list[str]:
    """Lines of an event; a pretty one has a data line a line of JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, indent=1 if pretty else None)
    return [*(["event: chunk"] if name else []), *(f"data:{' ' if space else ''}{line}" for line in text.split("\n")), ""]


EVENT = st.one_of(
    st.builds(written, CHUNK, st.booleans(), st.booleans(), st.booleans()),
    st.builds(written, CHUNK, st.just(False), st.just(True), st.just(False)),
    st.sampled_from([[": ping"], [": ping", ""], ["id: 7", ""], [""], ["data: {nonsense", ""], ["data", ""]]),
)
END = st.sampled_from([[], ["data: [DONE]", ""], ["data: [DONE]"], ["data: [DONE]", "", ": late", ""]])


@st.composite
def streams(draw) -> list[bytes]:
    """A stream in the parts in which it is sent."""
    lines = [line for event in draw(st.lists(EVENT, max_size=12)) for line in event] + draw(END)
    ends = draw(st.sampled_from([["\n"], ["\r\n"], ["\r"], ["\n", "\r\n"]]))
    whole = "".join(line + draw(st.sampled_from(ends)) for line in lines).encode()
    if draw(st.integers(0, 4)) == 0:
        whole = whole[: draw(st.integers(0, len(whole)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    return [whole[a:b] for a, b in itertools.pairwise([0, *cuts, len(whole)]) if a < b]


def told(stream: bytes) -> dict[str, object]:
    """What the record must say of a stream, read all at once and by the specification."""
    found = read(stream)
    every = all_data(found)
    done = any(data.startswith(b"[DONE]") for data in every)
    every = [data for data in every if not data.startswith(b"[DONE]")]
    chunks = [chunk for chunk in map(parsed, every) if isinstance(chunk, dict)]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    usage = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    cached = [each["prompt_tokens_details"]["cached_tokens"] for each in usage if "prompt_tokens_details" in each]
    return {
        "lensd.stream.chunks": len(every),
        "lensd.stream.done_seen": done,
        "gen_ai.response.finish_reasons": [choice["finish_reason"] for choice in choices if choice.get("finish_reason")][:16] or None,
        "gen_ai.usage.input_tokens": usage[-1]["prompt_tokens"] if usage else None,
        "gen_ai.usage.output_tokens": usage[-1]["completion_tokens"] if usage else None,
        "gen_ai.usage.cache_read.input_tokens": cached[-1] if cached else None,
        "gen_ai.response.id": "chatcmpl-1" if chunks else None,
        "gen_ai.response.model": MODEL if chunks else None,
    }


def has_text(stream: bytes) -> bool:
    """Role-only chunks, comments and usage are none."""
    datas = [data for _, data in read(stream + b"\n\n").events]
    for choice in (c for chunk in map(parsed, datas) if isinstance(chunk, dict) for c in chunk["choices"]):
        delta = choice.get("delta", {})
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"):
            return True
    return False


class Standing:
    """One gateway for all examples, whose engine sends what it is told."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.parts: list[bytes] = []
        self.stack = contextlib.AsyncExitStack()

    async def script(self, call: Call) -> None:
        await call.start_stream()
        for part in self.parts:
            await call.chunk(part)
            await asyncio.sleep(0)
        await call.end_stream()

    async def open(self) -> None:
        self.stage = await self.stack.enter_async_context(stage(self.script, heartbeat_s=0))

    async def ask(self, parts: list[bytes]) -> tuple[bytes, dict, dict]:
        self.parts = parts
        kept = self.stage.kept.kept_spans
        kept.clear()
        answer = await self.stage.ask(STREAMED)
        record = await self.stage.record()
        (upstream,) = self.stage.upstream_spans()
        return answer.body, record, upstream["attributes"]


@pytest.fixture(scope="module")
def standing():
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        made = Standing(runner)
        runner.run(made.open())
        yield made
        runner.run(made.stack.aclose())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(streams())
def test_any_stream_cut_anywhere_passes_and_is_counted_right(standing, parts):
    stream = b"".join(parts)
    body, record, upstream = standing.runner.run(standing.ask(parts))
    if not stream:
        assert record["http.response.status_code"] == 502
        return
    expected = told(stream)
    is_whole = expected["lensd.stream.done_seen"] or expected["gen_ai.response.finish_reasons"] is not None
    assert body == stream if is_whole else body.startswith(stream)
    assert {name: record.get(name) for name in expected} == expected
    assert record["lensd.bytes_sent"] == len(body)
    assert (record["lensd.outcome"], record.get("error.type")) == (("ok", None) if is_whole else ("cut", "stream_cut"))
    assert ("lensd.upstream.first_content_ms" in upstream) is has_text(stream)
    if not is_whole:
        assert body.endswith(b"\n\ndata: [DONE]\n\n")
        assert b'"code":"stream_cut"' in body[len(stream) :]
        assert b"finish_reason" not in body[len(stream) :]
