"""The gateway's `/metrics`: what is counted, that it is Prometheus text, and that no caller can add to it or be read in it."""

import time

import pytest
from checkout import ROOT, load_by_path
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.conventions import Decision, Outcome, SaidBy, TimeoutKind
from lensd_collectors.gateway.metrics import MAX_MODELS, METRICS, Metrics, ModelState, State, UpstreamState
from lensd_collectors.gateway.record import Attempt, Record
from lensd_collectors.gateway.sse import Facts
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

S = 1_000_000_000
MS = 1_000_000
CHAT = "/v1/chat/completions"
SERVED = {"big", "small"}
SECRET = "sk-lensd-do-not-show-me"
AT_START = State()


def metrics(served=SERVED):
    return Metrics(
        routes=[CHAT, "/v1/models"],
        is_served=lambda name: name in served,
        aliases={"gpt": "big"},
        upstream_states=["ready", "out"],
        version="1.2.3",
    )


def record(**more):
    given = {
        "wall_ns": 0, "received": 1000 * S, "method": "POST", "route": CHAT, "trace_id": "a" * 32, "span_id": "b" * 16,
        "parent_span_id": None, "request_id": "req-1", "ended": 1000 * S + 1 * MS,
    }  # fmt: skip
    return Record(**{**given, **more})


def at(seconds):
    return int((1000 + seconds) * S)


def streamed(**more):
    given = {
        "model": "big", "dispatched_model": "big", "streaming": True, "is_sse": True, "attempts": 1, "connecting": at(0.001),
        "sent": at(0.004), "first_byte": at(1.5), "first_out": at(1.5), "first_content": at(1.75), "last_byte": at(9), "last_out": at(9),
        "ended": at(9.001), "max_gap": 300 * MS, "status": 200, "outcome": Outcome.OK, "said_by": SaidBy.ENGINE,
        "facts": Facts(prompt_tokens=500, completion_tokens=200),
    }  # fmt: skip
    return record(**{**given, **more})


def refused(decision=Decision.KEY_UNKNOWN, status=401, **more):
    return record(outcome=Outcome.REFUSED, decision=decision, status=status, said_by=SaidBy.GATEWAY, **more)


def samples(counted, state=AT_START):
    """Name and labels to value, as a scraper reads the page."""
    page, _ = counted.render(state)
    return {
        (sample.name.removeprefix("lensd_gateway_"), *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def counted(*records, state=AT_START):
    made = metrics()
    for each in records:
        made.observe(each)
    return samples(made, state)


def times(found, name, **labels):
    """Count and sum of a histogram, rounded to what the stamps can say."""
    key = sorted(labels.items())
    return found.get((f"{name}_count", *key), 0), round(found.get((f"{name}_sum", *key), 0), 6)


ENDED = {"route": CHAT, "model": "none", "outcome": "refused", "decision": "key_unknown", "status": "401", "said_by": "gateway"}
ANSWERED = {"route": CHAT, "model": "big", "outcome": "ok", "decision": "allowed", "status": "200", "said_by": "engine"}


@pytest.mark.parametrize(
    ("one", "labels"),
    [
        (refused(), ENDED),
        (refused(Decision.MODEL_UNKNOWN, 404, model="whose"), {**ENDED, "model": "unknown", "decision": "model_unknown", "status": "404"}),
        (
            refused(Decision.MODEL_NOT_ALLOWED, 404, model="big"),
            {**ENDED, "model": "big", "decision": "model_not_allowed", "status": "404"},
        ),
        (refused(Decision.RATE_LIMITED, 429, model="gpt"), {**ENDED, "model": "big", "decision": "rate_limited", "status": "429"}),
        (refused(Decision.PATH_UNKNOWN, 404, route="/v1/v1/x"), {**ENDED, "route": "other", "decision": "path_unknown", "status": "404"}),
        (streamed(), ANSWERED),
        (
            streamed(outcome=Outcome.CALLER_GONE, decision=Decision.CALLER_GONE, status=499, said_by=SaidBy.CLIENT),
            {**ANSWERED, "outcome": "caller_gone", "decision": "caller_gone", "status": "499", "said_by": "client"},
        ),
        (streamed(status=777), {**ANSWERED, "status": "other"}),
        (record(), {**ENDED, "outcome": "open", "decision": "allowed", "status": "none", "said_by": "unknown"}),
    ],
)
def test_a_request_is_counted_by_what_became_of_it(one, labels):
    found = counted(one, one)
    assert {key[1:]: value for key, value in found.items() if key[0] == "requests_total"} == {tuple(sorted(labels.items())): 2}


def test_the_stages_of_a_stream():
    found = counted(streamed())
    assert times(found, "stage_seconds", stage="auth_routing", model="big") == (1, 0.004)
    assert times(found, "stage_seconds", stage="upstream_first_byte", model="big") == (1, 1.496)
    assert times(found, "stage_seconds", stage="streaming", model="big") == (1, 7.5)
    assert times(found, "stage_seconds", stage="total", model="big") == (1, 9.001)
    assert times(found, "ttft_seconds", model="big") == (1, 1.75)
    assert times(found, "max_gap_seconds", model="big") == (1, 0.3)


def test_what_did_not_happen_is_no_time_of_zero():
    def counts(one):
        return {
            (key[0].removesuffix("_count"), dict(key[1:]).get("stage")): value
            for key, value in counted(one).items()
            if key[0].endswith("_seconds_count")
        }

    assert counts(refused()) == {("stage_seconds", "total"): 1}
    waits = streamed(first_byte=0, first_out=0, first_content=0, last_byte=0, last_out=0, is_sse=False)
    assert counts(waits) == {("stage_seconds", "total"): 1, ("stage_seconds", "auth_routing"): 1}
    whole = streamed(is_sse=False, streaming=False, first_content=0)
    assert counts(whole) == {("stage_seconds", stage): 1 for stage in ("total", "auth_routing", "upstream_first_byte")}
    role_only = streamed(first_content=0, last_out=0)
    assert ("ttft_seconds", None) not in counts(role_only)
    assert times(counted(role_only), "stage_seconds", stage="streaming", model="big") == (1, 7.501)


def test_attempts_before_the_last_are_not_the_time_of_routing():
    failed = Attempt("e", "h:1", "s", at(0.001), at(0.002), 0, at(1), 503, "engine_busy")
    not_taken = Attempt("e", "h:1", "s", at(0.001), 0, 0, at(0.5), 0, "no_upstream")
    found = counted(streamed(earlier=(not_taken, failed), attempts=3, sent=at(3), first_byte=at(4)))
    assert times(found, "stage_seconds", stage="auth_routing", model="big") == (1, 0.002)
    assert times(found, "stage_seconds", stage="upstream_first_byte", model="big") == (1, 1.0)
    assert found["retries_total", ("model", "big")] == 2


def test_buckets_reach_from_milliseconds_to_ten_minutes():
    found = counted(streamed(ended=at(599)), streamed(ended=at(0.004)))
    buckets = {
        float(dict(key[1:])["le"]): value for key, value in found.items() if ("stage", "total") in key and key[0].endswith("_bucket")
    }
    assert (buckets[0.005], buckets[300.0], buckets[600.0], buckets[float("inf")]) == (1, 1, 2, 2)
    assert {1.0, 2.0, 5.0} < set(buckets)  # where the default thresholds of TTFT lie


def test_tokens_timeouts_and_what_load_shedding_did():
    found = counted(
        streamed(),
        streamed(facts=Facts(prompt_tokens=None, completion_tokens=0)),
        streamed(timeout_kind=TimeoutKind.IDLE),
        streamed(model="gpt", dispatched_model="small", degraded="reroute"),
        refused(Decision.OVERLOADED, 503, model="big", degraded="refuse"),
        streamed(degraded="cap"),
    )
    assert found["tokens_total", ("kind", "prompt"), ("model", "big")] == 1500
    assert found["tokens_total", ("kind", "completion"), ("model", "small")] == 200
    assert {dict(key[1:])["kind"]: value for key, value in found.items() if key[0] == "timeouts_total"} == {
        **{kind.value: 0 for kind in TimeoutKind},
        "idle": 1,
    }
    shed = {dict(key[1:])["act"]: (dict(key[1:])["model"], value) for key, value in found.items() if key[0] == "degraded_requests_total"}
    assert shed == {"reroute": ("big", 1), "refuse": ("big", 1), "cap": ("big", 1)}
    assert not [key for key in found if key[0] == "fallbacks_total"]


@pytest.mark.parametrize(("asked", "answers", "fell_back"), [("big", "small", 1), ("gpt", "small", 1), ("gpt", "big", 0), ("big", "", 0)])
def test_a_fallback_is_told_from_an_alias(asked, answers, fell_back):
    found = counted(streamed(model=asked, dispatched_model=answers))
    assert found.get(("fallbacks_total", ("model", "big"), ("to", "small")), 0) == fell_back
    assert sum(key[0] == "fallbacks_total" for key in found) == fell_back


STATE = State(
    open_requests=8,
    key_in_flight=9,
    tasks=10,
    models=(ModelState("big", 3, True), ModelState("small", 0), ModelState("gone", 1, True), ModelState("gone too", 2)),
    upstreams=(UpstreamState("gpu0", "ready", 3), UpstreamState("gpu1", "loading", 0)),
    records_dropped=4,
    export_dropped=5,
    export_failed=6,
    keys_loaded=7,
    is_ready=True,
)


def test_how_the_gateway_stands():
    found = counted(state=STATE)
    expected = {
        ("open_requests",): 8,
        ("key_in_flight",): 9,
        ("tasks",): 10,
        ("in_flight", ("model", "big")): 3,
        ("in_flight", ("model", "small")): 0,
        ("in_flight", ("model", "unknown")): 3,
        ("degraded", ("model", "big")): 1,
        ("degraded", ("model", "small")): 0,
        ("degraded", ("model", "unknown")): 1,
        ("upstream_state", ("state", "ready"), ("upstream", "gpu0")): 1,
        ("upstream_state", ("state", "out"), ("upstream", "gpu0")): 0,
        ("upstream_state", ("state", "ready"), ("upstream", "gpu1")): 0,
        ("upstream_state", ("state", "out"), ("upstream", "gpu1")): 0,
        ("upstream_state", ("state", "loading"), ("upstream", "gpu1")): 1,
        ("upstream_in_flight", ("upstream", "gpu0")): 3,
        ("upstream_in_flight", ("upstream", "gpu1")): 0,
        ("records_dropped_total",): 4,
        ("export_dropped_total",): 5,
        ("export_failed_total",): 6,
        ("keys_loaded",): 7,
        ("ready",): 1,
        ("build_info", ("version", "1.2.3")): 1,
        **{("timeouts_total", ("kind", kind.value)): 0 for kind in TimeoutKind},
    }
    assert found == expected


def test_the_page_is_prometheus_text_and_holds_each_metric_as_it_is_described():
    made = metrics()
    for each in (streamed(attempts=2, timeout_kind=TimeoutKind.TOTAL, degraded="cap"), streamed(dispatched_model="small"), refused()):
        made.observe(each)
    page, content_type = made.render(STATE)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(page.decode()))
    shown = [(f"{each.name}_total" if each.type == "counter" else each.name, each.type, each.documentation) for each in families]
    assert sorted(shown) == sorted((each.name, each.kind, each.help) for each in METRICS)
    labels = {each.name: set(each.labels) for each in METRICS}
    for family in families:
        assert family.samples
        for sample in family.samples:
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert set(sample.labels) - {"le"} == labels[name], sample
    series = [line.rpartition(" ")[0] for line in page.decode().splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_nothing_of_it_is_in_the_registry_of_the_process():
    made = metrics()
    made.observe(streamed())
    made.render(STATE)
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("lensd_gateway")]
    assert not [key for key in samples(made) if key[0].startswith(("process_", "python_")) or key[0].endswith("_created")]


hostile = st.text(max_size=60) | st.sampled_from(['"} 1\nevil 2\n', "\\", "\n", "# TYPE x counter", SECRET, "none", "other", "big "])


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(hostile, hostile, hostile, st.integers(-1, 2000), st.sampled_from(list(Decision)), st.sampled_from(list(Outcome))),
        min_size=1,
        max_size=20,
    )
)
def test_no_caller_and_no_engine_can_add_a_series(requests):
    made = metrics()
    for model, route, text, status, decision, outcome in requests:
        facts = Facts(response_id=text, model=text, prompt_tokens=1, completion_tokens=1, finish_reasons=(text,), error=text.encode())
        made.observe(
            streamed(
                model=model, dispatched_model=model, route=route, status=status, decision=decision, outcome=outcome, facts=facts,
                request_id=text, session_id=text, trace_id=text, key_id=text, error_type=text, error_message=text, method=text,
                degraded=text, engine=text, upstream=text, rewritten=(text,),
            )
        )  # fmt: skip
    found = samples(made)
    values = {name: {dict(key[1:])[name] for key in found if name in dict(key[1:])} for name in ("model", "route", "status", "act", "to")}
    assert values["model"] <= {"none", "unknown"}
    assert values["route"] == {"other"}
    assert all(len(each) <= 5 for each in values["status"])
    assert values["act"] == values["to"] == set()


def test_no_key_and_no_text_of_a_caller_gets_in():
    made = metrics()
    given = {
        "request_id", "session_id", "trace_id", "span_id", "key_id", "model", "route", "method", "engine", "upstream", "degraded",
        "dispatched_model", "error_type", "error_message",
    }  # fmt: skip
    facts = Facts(response_id=SECRET, model=SECRET, finish_reasons=(SECRET,), error=SECRET.encode())
    made.observe(refused(**dict.fromkeys(given, SECRET), facts=facts))
    assert SECRET.encode() not in made.render(STATE)[0]


def test_models_that_come_and_go_leave_a_bounded_page():
    made = metrics(served={f"adapter-{number}" for number in range(10 * MAX_MODELS)})
    for number in range(10 * MAX_MODELS):
        made.observe(streamed(model=f"adapter-{number}", dispatched_model=f"adapter-{number}"))
    found = samples(made)
    by_model = {dict(key[1:])["model"]: value for key, value in found.items() if key[0] == "requests_total"}
    assert len(by_model) == MAX_MODELS + 1
    assert by_model["other"] == 9 * MAX_MODELS


def test_a_model_that_is_not_served_yet_gets_its_name_once_it_is():
    served = set()
    made = metrics(served)
    made.observe(streamed(dispatched_model="", model="late"))
    served.add("late")
    made.observe(streamed(dispatched_model="", model="late"))
    models = {dict(key[1:])["model"]: value for key, value in samples(made).items() if key[0] == "requests_total"}
    assert models == {"unknown": 1, "late": 1}


def test_counting_a_request_costs_little():
    made, one = metrics(), streamed()
    rounds = []
    for _ in range(5):
        before = time.process_time()
        for _ in range(1000):
            made.observe(one)
        rounds.append((time.process_time() - before) / 1000)
    assert min(rounds) < 100e-6  # far above what it takes: it tells a change in kind, on any machine


def test_every_metric_is_on_the_page_of_wire_names():
    docs = load_by_path("tools_docs", ROOT / "tools" / "docs.py")
    section = docs.gateway_metrics((ROOT / docs.GATEWAY_METRICS).read_text()).splitlines()
    rows = [docs.row(f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.help) for each in METRICS]
    assert section[section.index(docs.row("---", "---", "---", "---")) + 1 :] == rows
