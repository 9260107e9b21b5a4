import asyncio
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.body import Asked, read_body
from lensd_collectors.gateway.context import CANNOT_COUNT_S, NO_ANSWER_S, ContextCheck, estimate
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.prompt import ASKED_BYTES_PER_TOKEN, PromptLimits, Verdict, need
from lensd_collectors.gateway.routes import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES

ROOT = "http://127.0.0.1:8000"
SERVER = PromptLimits(context=512)
KEY = PromptLimits(own=100)


class Engine:
    """Counts as it is told, and keeps what it was asked."""

    def __init__(self, count=0, *, status=200, body=None, max_model_len=512):
        self.status = status
        self.body = body if body is not None else json.dumps({"count": count, "max_model_len": max_model_len, "tokens": []}).encode()
        self.asked = []

    async def __call__(self, root, body):
        self.asked.append((root, json.loads(body)))
        return self.status, self.body


class Clock:
    def __init__(self):
        self.seconds = 1000

    def __call__(self):
        return self.seconds * 1_000_000_000


def encode(**fields):
    return json.dumps({"model": "m", **fields}).encode()


def chat(text, **fields):
    return encode(messages=[{"role": "user", "content": text}], **fields)


def run(engine, data, route=CHAT, limits=SERVER, **options):
    check = ContextCheck(engine)
    return asyncio.run(check.check(read_body(data, route), data, route, ROOT, limits, **options))


def refusal_of(engine, data, route=CHAT, limits=SERVER):
    with pytest.raises(Refused) as caught:
        run(engine, data, route, limits)
    return caught.value


def test_a_prompt_over_the_context_is_refused_with_both_numbers_and_whose_limit_it_is():
    engine = Engine(613)
    refusal = refusal_of(engine, chat("word " * 600))
    assert (refusal.decision, refusal.status, refusal.code, refusal.param) == (
        Decision.CONTEXT_TOO_LONG, 400, "context_length_exceeded", "messages",
    )  # fmt: skip
    assert refusal.message == (
        "the prompt has 613 tokens, the server's max_model_len is 512, which is too small for it: shorten the prompt"
    )
    assert engine.asked == [(ROOT, {"model": "m", "messages": [{"role": "user", "content": "word " * 600}], "add_generation_prompt": True})]


def test_a_prompt_over_a_keys_limit_is_refused_and_the_limit_named():
    refusal = refusal_of(Engine(101), chat("word " * 100), limits=KEY)
    assert (refusal.decision, refusal.code) == (Decision.PROMPT_TOO_LONG, "prompt_too_long")
    assert refusal.message == "the prompt has 101 tokens, this key's max_prompt_tokens is 100: shorten the prompt"


def test_a_limit_of_load_shedding_is_named_as_such():
    limits = PromptLimits(context=4096, own=100, whose="the limit while the service is overloaded")
    assert "the limit while the service is overloaded is 100" in refusal_of(Engine(101), chat("word " * 100), limits=limits).message


@pytest.mark.parametrize(
    ("count", "limits", "passes"),
    [
        (100, KEY, True),
        (101, KEY, False),
        (511, SERVER, True),
        (519, SERVER, True),  # a chat that is over by less than the count may be off: the engine's to refuse
        (520, SERVER, False),
        (90, PromptLimits(context=512, own=100), True),
        (101, PromptLimits(context=512, own=100), False),
        (600, PromptLimits(context=512, own=2000), False),
    ],
)
def test_where_the_limits_lie(count, limits, passes):
    data = chat("word " * (150 if limits == KEY else 400))
    if passes:
        assert run(Engine(count), data, limits=limits) == count
    else:
        refusal_of(Engine(count), data, limits=limits)


@pytest.mark.parametrize(("count", "passes"), [(511, True), (512, False), (513, False)])
def test_a_completions_count_is_exact_and_a_prompt_that_fills_the_context_leaves_no_room(count, passes):
    data = encode(prompt="word " * 400)
    if passes:
        assert run(Engine(count), data, COMPLETIONS) == count
    else:
        refusal = refusal_of(Engine(count), data, COMPLETIONS)
        assert ("leaves no room for an answer" in refusal.message) == (count == 512)
        assert refusal.param == "prompt"


def test_the_engines_own_word_on_its_context_counts_where_it_is_larger():
    assert run(Engine(600, max_model_len=4096), encode(prompt="word " * 400), COMPLETIONS) == 600
    assert run(Engine(600, max_model_len=1e30), encode(prompt="word " * 400), COMPLETIONS) == 600
    refusal_of(Engine(600, max_model_len=-1), encode(prompt="word " * 400), COMPLETIONS)


@pytest.mark.parametrize(
    ("data", "route", "limits"),
    [
        (chat("word"), CHAT, SERVER),
        (chat("word " * 80), CHAT, SERVER),  # more bytes than tokens of context, by less than text can have
        (chat("word " * 300), CHAT, PromptLimits()),
        (chat("word " * 300), "/v1/rerank", SERVER),
        (encode(input="word " * 400), EMBEDDINGS, SERVER),  # may be embedded piece by piece
        (encode(input=[1] * 600), EMBEDDINGS, SERVER),
        (chat("word " * 300, truncate_prompt_tokens=100), CHAT, SERVER),
        (chat("word " * 300, truncate_prompt_tokens=-1), CHAT, SERVER),
        (encode(input="word " * 400, truncation="auto"), RESPONSES, SERVER),
        (encode(prompt=[], x="word " * 400), COMPLETIONS, SERVER),
        (encode(messages=[], x="word " * 400), CHAT, SERVER),
        (encode(prompt=["word " * 20] * 100), COMPLETIONS, SERVER),  # each is a prompt of its own
        # not of the form the route takes
        (encode(messages="word " * 400), CHAT, SERVER),
        (encode(messages=[["word " * 400]]), CHAT, SERVER),
        (encode(prompt={"text": "word " * 400}), COMPLETIONS, SERVER),
        (encode(input=5, x="word " * 400), RESPONSES, SERVER),
        (encode(x="word " * 400), RESPONSES, SERVER),
        (chat("word " * 300, truncate_prompt_tokens="many"), CHAT, SERVER),
    ],
)
def test_what_goes_on_without_a_question(data, route, limits):
    engine = Engine(10_000)
    assert run(engine, data, route, limits) is None
    assert engine.asked == []


@pytest.mark.parametrize(
    ("prompt", "count"), [([7] * 600, 600), ([[7] * 3, [7] * 600], 600), ([[7] * 511], None), ([7] * 511, None), ([7] * 512, 512)]
)
def test_token_ids_are_counted_here(prompt, count):
    engine = Engine()
    data = encode(prompt=prompt)
    if count is None:
        assert run(engine, data, COMPLETIONS) == 511
    else:
        assert f"has {count} tokens" in refusal_of(engine, data, COMPLETIONS).message
    assert engine.asked == []


def test_of_several_prompts_the_longest_is_counted():
    engine = Engine(600)
    refusal_of(engine, encode(prompt=["a", "word " * 400, "b"]), COMPLETIONS)
    assert [asked["prompt"] for _, asked in engine.asked] == ["word " * 400]


@pytest.mark.parametrize("prompt", [["word " * 100], "word " * 100])
def test_a_keys_limit_holds_for_embeddings(prompt):
    assert refusal_of(Engine(101), encode(input=prompt), EMBEDDINGS, KEY).param == "input"


@pytest.mark.parametrize(
    ("fields", "shown", "hidden"),
    [
        ({}, {"add_generation_prompt": True}, ()),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}, ()),
        ({"continue_final_message": True, "add_generation_prompt": False},
         {"continue_final_message": True, "add_generation_prompt": False}, ()),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}}, ()),
        ({"tools": [{"type": "function"}]}, {"tools": [{"type": "function"}]}, ()),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, {}, ("tools",)),
        ({"temperature": 0.5, "stream": True, "max_tokens": 5, "user": "u"}, {}, ("temperature", "stream", "max_tokens", "user")),
    ],
)  # fmt: skip
def test_the_question_has_what_shapes_the_prompt_and_nothing_else(fields, shown, hidden):
    engine = Engine(1)
    run(engine, chat("word " * 400, **fields))
    ((_, asked),) = engine.asked
    assert {name: asked[name] for name in shown} == shown
    assert not set(hidden) & asked.keys()


def test_the_engine_is_asked_for_the_model_that_will_serve():
    engine = Engine(1)
    run(engine, chat("word " * 400), model="served")
    assert engine.asked[0][1]["model"] == "served"


def test_images_and_earlier_thoughts_are_neither_counted_nor_sent():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    short = encode(messages=[{"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}])
    engine = Engine(10_000)
    assert run(engine, short) is None
    assert engine.asked == []

    text = {"type": "text", "text": "word " * 400}
    long = [{"role": "assistant", "content": "yes", "reasoning": "hm"}, {"role": "user", "content": [text, image]}]
    engine = Engine(600)
    assert "at least 600 tokens" in refusal_of(engine, encode(messages=long)).message
    assert engine.asked[0][1]["messages"] == [{"role": "assistant", "content": "yes"}, {"role": "user", "content": [text]}]
    assert run(Engine(400), encode(messages=long)) is None  # no count of the whole


@pytest.mark.parametrize(
    "hidden_in",
    [
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "word " * 400}}]}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"description": "word " * 400}}]},
        {"messages": [{"role": "assistant", "content": "x", "reasoning_content": "word " * 400}]},
    ],
)
def test_text_beside_the_messages_does_not_slip_past_a_keys_limit(hidden_in):
    assert need(Asked(model="m", streaming=False), encode(**hidden_in), CHAT, KEY).verdict is Verdict.ASK


def test_a_response_is_asked_about_as_the_chat_it_becomes():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "word " * 400}, {"type": "input_image", "image_url": "x"}]},
        {"type": "message", "id": "1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"role": "user", "content": "again"},
    ]
    engine = Engine(600)
    refusal = refusal_of(engine, encode(input=items, instructions="be short", tools=[{"type": "function"}]), RESPONSES)
    assert refusal.message.startswith("the prompt has at least 600 tokens")
    assert refusal.param == "input"
    assert engine.asked[0][1] == {
        "model": "m",
        "add_generation_prompt": True,
        "messages": [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": [{"type": "text", "text": "word " * 400}]},
            {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
            {"role": "user", "content": "again"},
        ],
    }
    engine = Engine(543)
    assert run(engine, encode(input="word " * 400), RESPONSES) == 543  # within what its count may be off by
    assert engine.asked[0][1]["messages"] == [{"role": "user", "content": "word " * 400}]


def test_a_prompt_that_the_engine_shortens_is_held_to_a_keys_limit_as_shortened():
    long = chat("word " * 100, truncate_prompt_tokens=80)
    assert run(Engine(300), long, limits=KEY) == 300
    refusal_of(Engine(300), chat("word " * 100, truncate_prompt_tokens=200), limits=KEY)
    refusal_of(Engine(300), chat("word " * 100, truncate_prompt_tokens=-1), limits=PromptLimits(context=512, own=100))


@pytest.mark.parametrize("text", ["word " * 100_000, "é日本 " * 50_000])
@pytest.mark.parametrize("form", ["text", "parts", "prompt"])
def test_no_more_is_sent_than_decides(text, form):
    content = [{"type": "text", "text": text}] if form == "parts" else text
    first, last = {"role": "system", "content": "be short"}, {"role": "user", "content": "again"}
    fields = {"prompt": text} if form == "prompt" else {"messages": [first, {"role": "user", "content": content}, last]}
    data = msgspec.json.encode({"model": "m", **fields})
    engine = Engine(4000)
    assert "at least 4000 tokens" in refusal_of(engine, data, COMPLETIONS if form == "prompt" else CHAT).message
    asked = engine.asked[0][1]
    sent = asked["prompt"] if form == "prompt" else asked["messages"][1]["content"]
    assert text.startswith(sent)
    assert 512 * (ASKED_BYTES_PER_TOKEN - 1) < len(sent.encode()) <= 512 * ASKED_BYTES_PER_TOKEN
    assert form == "prompt" or (asked["messages"][0] == first and len(asked["messages"]) == 2)


@pytest.mark.parametrize(
    ("rest", "route", "passes"),
    [
        ('"max_tokens":512', CHAT, True),  # newer engines cut back what only overshoots
        ('"max_tokens":513', CHAT, False),
        ('"max_tokens":"513"', CHAT, False),
        ('"max_completion_tokens":513', CHAT, False),
        ('"max_tokens":513,"max_completion_tokens":5', CHAT, True),  # which one counts is the engine's choice
        ('"max_tokens":513', COMPLETIONS, False),
        ('"max_output_tokens":513', RESPONSES, False),
        ('"max_tokens":513', EMBEDDINGS, True),
    ],
)
def test_more_than_the_whole_context_as_answer(rest, route, passes):
    data = f'{{"model":"m",{rest}}}'.encode()
    if passes:
        assert run(Engine(), data, route) is None
        return
    refusal = refusal_of(Engine(), data, route)
    name = rest.split('"')[1]
    assert (refusal.decision, refusal.code, refusal.param) == (Decision.CONTEXT_TOO_LONG, "context_length_exceeded", name)
    assert refusal.message == (f"{name} = 513 is over the whole context, the server's max_model_len of 512: lower {name} in the client")
    assert run(Engine(), data, route, PromptLimits()) is None


COUNTED = json.dumps({"count": 600, "max_model_len": 512}).encode()


@pytest.mark.parametrize(
    ("status", "body", "pause_s"),
    [
        (404, b'{"detail":"Not Found"}', CANNOT_COUNT_S),
        (405, b"", CANNOT_COUNT_S),
        (501, b"", CANNOT_COUNT_S),
        (200, b'{"tokens":[]}', CANNOT_COUNT_S),  # llama.cpp
        (200, b'[{"id":1}]', CANNOT_COUNT_S),  # TGI
        (200, b'{"count":[3],"max_model_len":5}', CANNOT_COUNT_S),
        (200, b"\xff", CANNOT_COUNT_S),
        (400, b'{"error":{}}', 0),
        (401, b'{"error":"Unauthorized"}', 0),
        (500, b"", 0),
    ],
)
def test_an_engine_that_does_not_count_is_let_be_for_a_while(status, body, pause_s):
    async def scenario():
        engine, clock = Engine(status=status, body=body), Clock()
        check = ContextCheck(engine, clock_ns=clock)
        data = chat("word " * 400)

        async def once(root=ROOT):
            before = len(engine.asked)
            assert await check.check(read_body(data, CHAT), data, CHAT, root, SERVER) is None
            return len(engine.asked) - before

        assert await once() == 1
        assert await once() == (0 if pause_s else 1)
        assert await once("http://127.0.0.1:8001") == 1
        clock.seconds += max(pause_s - 1, 0)
        assert await once() == (0 if pause_s else 1)
        clock.seconds += 1
        engine.status, engine.body = 200, COUNTED
        with pytest.raises(Refused):
            await once()

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", [OSError("refused"), TimeoutError(), RuntimeError("a bug"), None])
def test_no_answer_lets_the_request_go_on(fault):
    asked = []

    async def ask(root, body):
        asked.append(root)
        if fault is None:
            await asyncio.Event().wait()
        raise fault

    async def scenario():
        clock = Clock()
        check = ContextCheck(ask, clock_ns=clock, within_s=0)
        data = chat("word " * 400)
        for wait_s, questions in ((0, 1), (NO_ANSWER_S - 1, 1), (1, 2)):
            clock.seconds += wait_s
            assert await check.check(read_body(data, CHAT), data, CHAT, ROOT, SERVER) is None
            assert len(asked) == questions

    asyncio.run(scenario())


def test_a_caller_who_leaves_ends_the_question():
    async def scenario():
        begun = asyncio.Event()

        async def ask(root, body):
            begun.set()
            await asyncio.Event().wait()

        check = ContextCheck(ask)
        data = chat("word " * 400)
        task = asyncio.create_task(check.check(read_body(data, CHAT), data, CHAT, ROOT, SERVER))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=300)}),
    min_size=1, max_size=6,
)  # fmt: skip


@given(messages, st.integers(1, 2000), st.booleans())
@settings(max_examples=150)
def test_what_is_taken_to_fit_a_keys_limit_fits_it_even_at_a_token_a_byte(given_messages, own, ascii_only):
    """The worst tokenizer there is, with a template that adds 16 tokens a message and 64 to all."""
    data = json.dumps({"model": "m", "messages": given_messages}, ensure_ascii=ascii_only).encode()
    worst = sum(len(each["content"].encode()) + 16 for each in given_messages) + 64
    found = need(Asked(model="m", streaming=False), data, CHAT, PromptLimits(own=own))
    assert found.verdict is Verdict.ASK or worst <= own
    if found.verdict is Verdict.ASK and not found.at_least:
        assert json.loads(found.question)["messages"] == given_messages


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=50),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)
names = st.sampled_from(
    ["messages", "prompt", "input", "instructions", "tools", "tool_choice", "truncation", "truncate_prompt_tokens", "stop"]
)


@given(
    st.dictionaries(names, anything, max_size=6),
    st.sampled_from([CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS]),
    st.sampled_from([PromptLimits(own=1), PromptLimits(context=1), PromptLimits(context=8, own=4)]),
)
@settings(max_examples=300)
def test_whatever_the_body_nothing_else_than_a_refusal_is_raised(fields, route, limits):
    data = json.dumps({"model": "m", **fields}).encode()
    found = need(Asked(model="m", streaming=False), data, route, limits)
    assert found.verdict is not Verdict.ASK or json.loads(found.question)["model"] == "m"


@pytest.mark.parametrize(("data", "tokens"), [(b"", 1), (b"x" * 7, 1), (b"x" * 4000, 1000)])
def test_the_cheap_estimate(data, tokens):
    assert estimate(data) == tokens
