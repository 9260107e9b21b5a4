"""`explain`: each step as the gateway itself would decide it, and what the caller and the record would have."""

import contextlib
import hashlib
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.cards import read_list
from lensd_collectors.gateway.config import GatewayConfig, Upstream
from lensd_collectors.gateway.explain import Question, StepState, explain, read_presented
from lensd_collectors.gateway.fleet import Fleet
from lensd_collectors.gateway.keyring import KeyRing
from lensd_collectors.gateway.keys import KeyEntry, append
from lensd_collectors.gateway.survey import Served, ask_served

GOOD = "gw-Q7Z9-good-key-4K"
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 10**9
SERVED = Served(models=frozenset(("llama-7b", "qwen3")))
PARTLY = Served(models=frozenset(("llama-7b",)), silent=("e1 cannot be asked (Connection refused)",))


@pytest.fixture
def ring(tmp_path):
    path = tmp_path / "keys.toml"
    append(path, KeyEntry(id="team-a", sha256=hashlib.sha256(GOOD.encode()).hexdigest(), last4="y-4K", models=("llama-*",), concurrency=4))
    append(path, KeyEntry(id="old", sha256="b" * 64, models=("*",), expires=NOON))
    append(path, KeyEntry(id="off", sha256="c" * 64, models=("*",), disabled=True))
    append(path, KeyEntry(id="embed", sha256="d" * 64, models=("*",), routes=("/v1/embeddings",)))
    return KeyRing(path)


def told(ring, served=SERVED, config=None, **asked):
    return explain(Question(**asked), ring, config or GatewayConfig(), served, NOON_NS)


def states(explanation):
    return {step.name: step.state.value for step in explanation.steps}


def test_a_request_that_would_be_let_in(ring):
    got = told(ring, key_id="team-a", model="llama-7b")
    assert [(step.name, step.state) for step in got.steps] == [
        (name, StepState.OK)
        for name in (
            "path is served",
            "header form",
            "key known",
            "key valid",
            "path may be used",
            "model exists",
            "key may use it",
            "limits",
        )
    ]
    assert (got.result, got.answer) == (StepState.OK, None)
    assert got.steps[-1].text.startswith("4 at a time; ")


@pytest.mark.parametrize(
    ("asked", "step", "status", "code", "decision"),
    [
        ({"key_id": "nobody"}, "key known", 401, "invalid_api_key", Decision.KEY_UNKNOWN),
        ({"key_id": "old"}, "key valid", 401, "expired_api_key", Decision.KEY_EXPIRED),
        ({"key_id": "off"}, "key valid", 401, "disabled_api_key", Decision.KEY_DISABLED),
        ({"key_id": "embed"}, "path may be used", 403, "route_not_allowed", Decision.ROUTE_NOT_ALLOWED),
        ({"key_id": "team-a", "route": "/chat/completions"}, "path is served", 404, "route_not_found", Decision.PATH_UNKNOWN),
        ({"key_id": "team-a", "model": "llama-70b"}, "model exists", 404, "model_not_found", Decision.MODEL_UNKNOWN),
        ({"key_id": "team-a", "model": "qwen3"}, "key may use it", 403, "model_not_allowed", Decision.MODEL_NOT_ALLOWED),
        ({"key_id": "old", "model": "nope"}, "key valid", 401, "expired_api_key", Decision.KEY_EXPIRED),  # the first one counts
    ],
)
def test_what_would_be_refused_and_how(ring, asked, step, status, code, decision):
    got = told(ring, **asked)
    assert got.result is StepState.REFUSED
    assert next(each.name for each in got.steps if each.state is StepState.REFUSED) == step
    assert got.answer is not None
    assert (got.answer.status, got.answer.code, got.answer.decision, got.answer.is_sure) == (status, code, decision, True)


def test_an_id_that_is_nearly_right_is_named(ring):
    assert told(ring, key_id="team_a").steps[2].text == "no key has this id; did you mean team-a?"


def test_all_that_is_wrong_is_shown_not_only_what_comes_first(ring):
    got = told(ring, key_id="team-a", model="nope", route="/chat/completions")
    assert [step.name for step in got.steps if step.state is StepState.REFUSED] == ["path is served", "model exists", "key may use it"]


def test_an_engine_that_says_nothing_makes_it_unknown_and_not_no(ring):
    got = told(ring, PARTLY, key_id="team-a", model="llama-70b")
    assert (states(got)["model exists"], got.result, got.answer) == ("unknown", StepState.UNKNOWN, None)
    assert "e1 cannot be asked" in got.steps[5].text
    assert told(ring, PARTLY, key_id="team-a", model="llama-7b").result is StepState.OK  # another one has it
    refused = told(ring, PARTLY, key_id="team-a", model="qwen3")
    assert refused.result is StepState.REFUSED
    assert refused.answer is not None
    assert refused.answer.is_sure is False


@pytest.mark.parametrize(
    ("model", "fallback", "state", "result"),
    [
        ("llama-70b", "llama-7b", "ok", "ok"),
        ("llama-70b", "qwen3", "refused", "refused"),  # which the key may not use
        ("qwen4", "llama-7b", "refused", "refused"),
        ("llama-70b", "llama-1b", "refused", "refused"),  # which is not served either
    ],
)
def test_a_fallback_answers_for_a_model_that_is_not_served(ring, model, fallback, state, result):
    got = told(ring, config=GatewayConfig(fallback_models={model: fallback}), key_id="team-a", model=model)
    assert (states(got)["model exists"], got.result) == (state, result)


def test_a_scope_is_held_against_the_model_behind_an_alias(ring):
    config = GatewayConfig(aliases={"fast": "llama-7b", "llama-big": "qwen3"})
    assert told(ring, config=config, key_id="team-a", model="fast").result is StepState.OK
    got = told(ring, config=config, key_id="team-a", model="llama-big")
    assert (states(got)["model exists"], states(got)["key may use it"]) == ("ok", "refused")
    assert got.steps[5].text == "llama-big is an alias of qwen3"


def test_a_hidden_model_is_answered_as_one_that_is_not_there_and_recorded_as_it_is(ring):
    config = GatewayConfig(deny_as=404)
    hidden = told(ring, config=config, key_id="team-a", model="qwen3").answer
    absent = told(ring, Served(models=frozenset(("llama-7b",))), config=config, key_id="team-a", model="qwen3").answer
    assert hidden is not None
    assert absent is not None
    assert (hidden.status, hidden.code, hidden.type, hidden.message) == (absent.status, absent.code, absent.type, absent.message)
    assert (hidden.decision, hidden.reason) == (Decision.MODEL_NOT_ALLOWED, "key team-a may not use qwen3")
    assert absent.decision is Decision.MODEL_UNKNOWN


@pytest.mark.parametrize("name", ["nope", "Llama-7b", "qwen", "fast2"])
def test_the_answer_for_an_unknown_model_is_the_gateways_own(ring, name):
    config = GatewayConfig(aliases={"fast": "llama-7b"}, upstreams=(Upstream(url="http://127.0.0.1:9"),))
    fleet = Fleet(config, lambda *_: None, lambda: 0)
    fleet._learn(fleet.targets[0], read_list(b'{"data": [{"id": "llama-7b"}, {"id": "qwen3"}]}'))
    key = ring.get("team-a")
    assert key is not None
    got = told(ring, config=config, key_id="team-a", model=name).answer
    assert got is not None
    assert got.message == fleet.unknown(name, key.allows).message


@pytest.mark.parametrize(
    ("pasted", "decision", "said"),
    [
        (f"Authorization: Bearer {GOOD}", None, ""),
        (f"authorization:Bearer {GOOD}\r\nHost: x\r\n", None, ""),
        (f"Bearer {GOOD}", None, ""),
        (f"-H 'Authorization: Bearer {GOOD}' \\", None, ""),
        (f'--header "Authorization: Bearer {GOOD}"', None, ""),
        (f"> POST /v1/chat/completions HTTP/1.1\n> Host: x\n> Authorization: Bearer {GOOD}\n", None, ""),
        (f"Authorization: {GOOD}", Decision.KEY_MALFORMED, "no 'Bearer'"),
        (GOOD, Decision.KEY_MALFORMED, "no 'Bearer'"),
        (f"Bearer: {GOOD}", Decision.KEY_MALFORMED, "a colon after 'Bearer'"),
        (f'Authorization: Bearer "{GOOD}"', Decision.KEY_MALFORMED, "in quotes"),
        (f'"Authorization: Bearer {GOOD}"', Decision.KEY_MALFORMED, "in quotes"),
        (f"Authorization: Bearer {GOOD}\nAuthorization: Bearer {GOOD}", Decision.KEY_MALFORMED, "sent 2 times"),
        (f"X-Api-Key: {GOOD}\nHost: x", Decision.KEY_WRONG_HEADER, "'x-api-key'"),
        ("Host: x\nContent-Type: application/json", Decision.KEY_MISSING, "no API key"),
        ("\n", Decision.KEY_MISSING, "no API key"),
        ("Authorization: Bearer gsk_abc", Decision.KEY_FOREIGN, "of Groq"),
        ("Authorization: Bearer gw-other", Decision.KEY_UNKNOWN, "not valid"),
    ],
)
def test_the_header_that_a_client_sends(ring, pasted, decision, said):
    got = told(ring, presented=read_presented(pasted))
    assert GOOD not in repr(got)
    if decision is None:
        assert (got.result, got.key_id) == (StepState.OK, "team-a")
        return
    assert got.answer is not None
    assert got.answer.decision is decision
    assert said in got.answer.message
    of_key = decision in (Decision.KEY_FOREIGN, Decision.KEY_UNKNOWN)
    assert states(got)["header form"] == ("ok" if of_key else "refused")
    assert states(got).get("key known") == ("refused" if of_key else None)


def test_a_named_key_is_looked_at_behind_a_header_that_cannot_be_read(ring):
    got = told(ring, key_id="team-a", model="llama-7b", presented=read_presented(GOOD))
    assert (states(got)["header form"], states(got)["key known"], states(got)["key may use it"]) == ("refused", "ok", "ok")


def test_a_header_with_another_key_than_the_one_named(ring):
    got = told(ring, key_id="old", presented=read_presented(f"Bearer {GOOD}"))
    assert got.steps[2].text == "team-a, ...y-4K; it is not old"
    assert got.key_id == "team-a"


LIST = b'{"object": "list", "data": [{"id": "llama-7b"}, {"id": "adapter", "parent": "llama-7b"}]}'


@contextlib.contextmanager
def engine(status=200, body=LIST, silent=False, headers=()):
    """A model list on a free port, and the requests it got."""
    got = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            got.append((self.path, self.headers.get("Authorization")))
            if silent:
                ended.wait(10)
                return
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_engines_are_asked_once_and_with_their_own_key(tmp_path):
    (tmp_path / "key").write_text("engine-key\n")
    with engine() as (url, got), engine(body=b'{"data": [{"id": "qwen3"}]}') as (other, _):
        served = ask_served(
            [
                Upstream(url=url + "/v1/", api_key_file=str(tmp_path / "key")),
                Upstream(url=other),
                Upstream(url="http://127.0.0.1:9", models=("named",)),  # says it in the configuration, and is not asked
            ]
        )
    assert (served.models, served.is_complete) == ({"llama-7b", "adapter", "qwen3", "named"}, True)
    assert got == [("/v1/models", "Bearer engine-key")]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 401}, "answers 401: it does not accept a request without a key"),
        ({"status": 503}, "answers 503 when it is asked for its models"),
        ({"status": 302, "headers": (("Location", "http://127.0.0.1:9/"),)}, "answers 302"),
        ({"body": b"<html>"}, "cannot be asked (DecodeError)"),
        ({"body": b"[1]"}, "cannot be asked (ValidationError)"),
    ],
)
def test_an_engine_that_gives_no_list_is_named(answer, said):
    with engine(**answer) as (url, _):
        served = ask_served([Upstream(url=url, name="e0")])
    assert (served.models, served.is_complete) == (frozenset(), False)
    assert served.silent[0].startswith(f"e0 {said}")


@pytest.mark.parametrize(
    ("upstream", "said"),
    [
        (Upstream(url="http://user:s3cr3t@127.0.0.1:9"), "127.0.0.1:9 cannot be asked"),
        (Upstream(url="http://127.0.0.1:9", api_key_file="/nowhere/key"), "cannot be asked (upstream '127.0.0.1:9': cannot read"),
        (Upstream(url="http://127.0.0.1:99999"), "cannot be asked (ValueError)"),
        (Upstream(url="nonsense"), "cannot be asked"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_named(upstream, said):
    served = ask_served([upstream])
    assert said in served.silent[0]
    assert "s3cr3t" not in served.silent[0]


def test_no_engine_is_no_complete_list():
    assert ask_served([]).silent == ("no engine is configured: gateway.upstreams is empty",)


def test_an_engine_that_is_silent_does_not_hold_up_the_others():
    begun = time.monotonic()
    with engine(silent=True) as (silent, _), engine() as (url, _):
        served = ask_served([Upstream(url=silent, name="slow"), Upstream(url=url)], timeout_s=0.3)
        assert time.monotonic() - begun < 2
    assert (served.models, served.silent) == ({"llama-7b", "adapter"}, ("slow does not answer within 0.3 s",))
