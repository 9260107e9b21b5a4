"""Plugin and middleware inside a real engine: what they tell joins what vLLM tells itself, and is the same."""

import json
import re

import pytest
from gateway_real import Caller, ask, count, running, seconds_until
from plugged import Told

pytestmark = pytest.mark.engine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = {"model": "tiny-llama", "max_tokens": 16, "ignore_eos": True}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ODD = re.compile(r"\bERROR\b|Traceback|Failed to load plugin|lensd does not understand|lensd could not")
STAGES = {"queue": "time_in_queue", "prefill": "time_in_model_prefill", "decode": "time_in_model_decode"}


@pytest.fixture(scope="module")
def told(engine_otlp_port):
    made = Told(engine_otlp_port)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def engine(engine_plugged, told):
    return engine_plugged.ready()


@pytest.fixture(scope="module", autouse=True)
def log_before(engine):
    """How long the engine's log was before these tests: others make it write of errors."""
    return engine.log.stat().st_size


def chat(engine, request_id, *, headers=None, path=CHAT, **more):
    asked = {**ASKED, **({"prompt": "the trace"} if path == TEXT else {"messages": [{"role": "user", "content": "the trace"}]}), **more}
    if more.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    answer = ask(engine, path, asked, headers={"X-Request-Id": request_id, **(headers or {})})
    assert answer.status == 200, answer.body
    return answer


def inside(told, request_id):
    """The middleware's span of a request."""

    def found():
        return [each for each in told.spans if each.scope == "lensd.vllm" and each.attributes["lensd.request.id"] == request_id]

    return told.wait(found, f"the middleware's span of {request_id}")[0]


def vllms(told, engine_id, times=1):
    """vLLM's own spans of a request."""

    def found():
        mine = [each for each in told.spans if each.name == "llm_request" and each.attributes["gen_ai.request.id"] == engine_id]
        return mine if len(mine) == times else None

    return told.wait(found, f"llm_request of {engine_id}")


def records(told, engine_id, times=1):
    """The plugin's records of a request."""

    def found():
        named = [each for each in told.events if each.name == "lensd.engine.request"]
        mine = [each for each in named if each.attributes["gen_ai.response.id"] == engine_id]
        return mine if len(mine) == times else None

    return told.wait(found, f"the plugin's record of {engine_id}")


@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize(("path", "before", "after"), [(CHAT, "chatcmpl-", ""), (TEXT, "cmpl-", "-0")], ids=["chat", "text"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_vllms_span_is_below_ours_which_is_below_the_callers(engine, told, stream, path, before, after, flags):
    request_id = f"traced-{stream}-{before}{flags}"
    answer = chat(engine, request_id, headers={"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}, path=path, stream=stream)
    assert answer.headers["x-request-id"] == request_id
    ours = inside(told, request_id)
    [engines] = vllms(told, f"{before}{request_id}{after}")
    assert (ours.trace_id, ours.parent_span_id) == (TRACE, PARENT)
    assert (engines.trace_id, engines.parent_span_id) == (TRACE, ours.span_id)
    assert ours.attributes["gen_ai.response.id"] == f"{before}{request_id}"
    assert records(told, f"{before}{request_id}{after}")


def test_a_caller_without_ids_is_joined_all_the_same(engine, told):
    answer = ask(engine, CHAT, {**ASKED, "messages": [{"role": "user", "content": "the trace"}]})
    request_id = answer.headers["x-request-id"]
    ours = inside(told, request_id)
    [engines] = vllms(told, f"chatcmpl-{request_id}")
    assert (ours.trace_id, ours.parent_span_id, engines.parent_span_id) == (request_id, "", ours.span_id)
    assert answer.json["id"] == ours.attributes["gen_ai.response.id"] == f"chatcmpl-{request_id}"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_plugin_span_and_reply_have_one_time_for_each_stage(engine, told, stream):
    request_id = f"times-{stream}"
    chat(engine, request_id, stream=stream)
    [record], [engines], ours = (
        records(told, f"chatcmpl-{request_id}"), vllms(told, f"chatcmpl-{request_id}"), inside(told, request_id),
    )  # fmt: skip
    for stage, name in STAGES.items():
        measured = pytest.approx(1000 * engines.attributes[f"gen_ai.latency.{name}"])
        assert (record.attributes[f"lensd.engine.{stage}_ms"], ours.attributes[f"lensd.engine.{stage}_ms"]) == (measured, measured), stage
    arrival = record.at_ns - record.attributes["lensd.engine.e2e_ms"] * 1e6
    assert arrival == pytest.approx(engines.start_ns, abs=1e6)
    assert ours.start_ns < engines.start_ns
    assert record.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert (record.attributes["lensd.engine.preemptions"], record.attributes["gen_ai.usage.output_tokens"]) == (0, 16)
    if stream:
        first, last = (ours.attributes[f"lensd.upstream.{which}_content_ms"] for which in ("first", "last"))
        assert 0 < first < last <= ours.attributes["lensd.upstream.last_byte_ms"]


def test_two_answers_to_one_prompt_are_two_records_of_one_id(engine, told):
    chat(engine, "twice", n=2)
    assert len(records(told, "chatcmpl-twice", 2)) == len(vllms(told, "chatcmpl-twice", 2)) == 2
    assert not any(name.startswith("lensd.engine.") and name.endswith("_ms") for name in inside(told, "twice").attributes)


def test_what_no_metric_counts_is_told_by_the_middleware_alone(engine, told):
    assert ask(engine, CHAT, {**ASKED, "model": "other", "messages": []}, headers={"X-Request-Id": "no-model"}).status in (400, 404)
    caller = Caller(
        engine, CHAT, {**ASKED, "max_tokens": 400, "stream": True, "messages": [{"role": "user", "content": "the trace"}]},
        headers={"X-Request-Id": "leaves"},
    )  # fmt: skip
    next(caller.events())
    caller.leave()
    assert inside(told, "no-model").attributes["lensd.outcome"] == "refused"
    assert inside(told, "leaves").attributes["lensd.outcome"] == "caller_gone"
    assert not [each for each in told.events if each.attributes.get("gen_ai.response.id") == "chatcmpl-leaves"]


def test_its_load_and_counters_are_those_of_vllms_own_page(engine, told):
    chat(engine, "counted", stream=True)
    seconds_until(lambda: running(engine) == 0)
    names = ("prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits")

    def same():
        page = {name: count(engine, f"vllm:{name}_total") for name in names}
        page["finished"] = count(engine, "vllm:request_success_total", finished_reason="length")
        own = {name: told.value(f"vllm:{name}_total") for name in names}
        own["finished"] = told.value("vllm:request_success_total", finished_reason="length")
        return page == own and told.value("vllm:num_requests_running") == 0

    told.wait(same, "the counters of vLLM's page from the plugin", within_s=30)  # at the latest at vLLM's own interval of 10 s
    assert told.value("vllm:generation_tokens_total") > 16
    for reason in ("capacity", "deferred"):
        assert told.value("vllm:num_requests_waiting_by_reason", reason=reason) == 0
    assert told.value("vllm:num_requests_running", model_name="tiny-llama", engine="0", **{"lensd.engine": engine.host}) == 0


def test_everything_is_under_the_name_that_the_agent_has_for_the_engine(engine, told):
    chat(engine, "named")
    assert inside(told, "named").attributes["lensd.engine"] == records(told, "chatcmpl-named")[0].attributes["lensd.engine"] == engine.host


def test_the_engines_log_knows_the_plugin_and_no_error(engine, told, log_before):
    chat(engine, "logged")
    log = engine.log.read_bytes().decode(errors="replace")
    start, own = log[: log.index("Application startup complete")], engine.log.read_bytes()[log_before:].decode(errors="replace")
    assert "- lensd -> lensd_collectors.vllm.plugin:LensdStatLogger" in start
    asked_for = "`other` does not exist"
    odd = [line for line in (start + own).splitlines() if ODD.search(line) and asked_for not in line]
    assert odd == []
    assert json.loads(ask(engine, "/v1/models").body)["data"]
