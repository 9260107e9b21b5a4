"""Which paths are served, and what a wrong one is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.routes import GatewayError, Kind, Route, Routes, shown

RERANK = "/v1/rerank"
ROUTES = Routes((RERANK, "/pooling"))


@pytest.mark.parametrize(
    ("method", "path", "template", "kind"),
    [
        ("POST", "/v1/chat/completions", "/v1/chat/completions", Kind.CHAT),
        ("POST", "/v1/completions", "/v1/completions", Kind.COMPLETIONS),
        ("POST", "/v1/responses", "/v1/responses", Kind.RESPONSES),
        ("POST", "/v1/embeddings", "/v1/embeddings", Kind.EMBEDDINGS),
        ("GET", "/v1/models", "/v1/models", Kind.MODELS),
        ("GET", "/v1/models/tiny", "/v1/models/{model}", Kind.MODEL),
        ("GET", "/v1/models/org/name/with/slashes", "/v1/models/{model}", Kind.MODEL),
        ("POST", RERANK, RERANK, Kind.EXTRA),
        ("POST", "/pooling", "/pooling", Kind.EXTRA),
        ("GET", "/healthz", "/healthz", Kind.HEALTH),
        ("HEAD", "/healthz", "/healthz", Kind.HEALTH),
        ("GET", "/health", "/health", Kind.HEALTH),
        ("HEAD", "/readyz", "/readyz", Kind.READY),
        ("GET", "/metrics", "/metrics", Kind.METRICS),
    ],
)
def test_what_is_served(method, path, template, kind):
    route = ROUTES.find(method, path)
    assert isinstance(route, Route)
    assert (route.template, route.kind) == (template, kind)
    assert route.template in ROUTES.templates
    assert route.kind.is_own is (kind in (Kind.HEALTH, Kind.READY, Kind.METRICS))


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/models", "/v1/models"),
        ("/models/tiny", "/v1/models/{model}"),
        ("/v1/v1/models/tiny", "/v1/models/{model}"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/responses", "/v1/responses"),
        ("/v1beta/openai/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/models/", "/v1/models"),
        ("/v1/models//", "/v1/models"),
        ("//v1//chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions ", "/v1/chat/completions"),
        ("/V1/CHAT/COMPLETIONS", "/v1/chat/completions"),
        ("/openai/deployments/gpt-4o/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/ada/embeddings", "/v1/embeddings"),
        ("/v1/engines/davinci/completions", "/v1/completions"),
        ("/v1/engines", "/v1/models"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v1/completion", "/v1/completions"),
        ("/chat/completion", "/v1/chat/completions"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/respones", "/v1/responses"),
        ("/v1/messages", "/v1/chat/completions"),
        ("/api/generate", "/v1/completions"),
        ("/api/tags", "/v1/models"),
        ("/rerank", RERANK),
        ("/v1/pooling", "/pooling"),
        ("/v1/health", "/health"),
        ("/ready", "/readyz"),
        ("/healthz/", "/healthz"),
    ],
)
def test_a_wrong_path_is_told_the_right_one(path, meant):
    refused = ROUTES.find("POST", path)
    assert isinstance(refused, Refused)
    assert (refused.decision, refused.status) == (Decision.PATH_UNKNOWN, 404)
    assert refused.message.endswith(f"; did you mean {meant}?")
    assert ROUTES.allowed(path) == ""


@pytest.mark.parametrize(
    "path", ["/", "", "*", "/v1", "/v1/", "/v1/files", "/favicon.ico", "/wp-login.php", "/v1/audio/transcriptions", "x" * 9999]
)
def test_a_path_like_none_is_told_nothing(path):
    refused = ROUTES.find("GET", path)
    assert isinstance(refused, Refused)
    assert (refused.decision, refused.message) == (Decision.PATH_UNKNOWN, f"there is no path {path[:128]}")


def test_an_added_path_is_served_only_where_it_is_configured():
    assert isinstance(Routes().find("POST", RERANK), Refused)


@pytest.mark.parametrize(
    ("method", "path", "allowed", "says"),
    [
        ("GET", "/v1/chat/completions", "POST", "/v1/chat/completions takes POST, not GET"),
        ("OPTIONS", "/v1/chat/completions", "POST", "/v1/chat/completions takes POST, not OPTIONS"),
        ("HEAD", "/v1/models", "GET", "/v1/models takes GET, not HEAD"),
        ("POST", "/v1/models", "GET", "/v1/models takes GET, not POST"),
        ("DELETE", "/v1/models/tiny", "GET", "/v1/models/{model} takes GET, not DELETE"),
        ("GET", RERANK, "POST", "/v1/rerank takes POST, not GET"),
        ("POST", "/healthz", "GET, HEAD", "/healthz takes GET, not POST"),
        ("HEAD", "/metrics", "GET", "/metrics takes GET, not HEAD"),
        ("\x1b[31m", "/readyz", "GET, HEAD", "/readyz takes GET, not ?[31m"),
    ],
)
def test_a_wrong_method_is_told_the_right_one(method, path, allowed, says):
    refused = ROUTES.find(method, path)
    assert isinstance(refused, Refused)
    assert (refused.decision, refused.status, refused.message) == (Decision.METHOD_NOT_ALLOWED, 405, says)
    assert ROUTES.allowed(path) == allowed


@given(st.text(max_size=200) | st.lists(st.sampled_from(["v1", "api", "chat", "completions", "models", "", " ", "x"])).map("/".join))
def test_any_path_gets_a_route_or_a_printable_refusal(path):
    found = ROUTES.find("POST", "/" + path)
    if isinstance(found, Refused):
        assert found.message.isprintable()
        assert found.decision in (Decision.PATH_UNKNOWN, Decision.METHOD_NOT_ALLOWED)
        assert (found.decision is Decision.METHOD_NOT_ALLOWED) == bool(ROUTES.allowed("/" + path))
    else:
        assert found.template == "/" + path


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("v1/rerank", "with a slash before it"),
        ("", "with a slash before it"),
        ("/", "none after it"),
        ("/v1/rerank/", "none after it"),
        ("/v1/rerank?x=1", "no spaces, query"),
        ("/v1/rerank#x", "no spaces, query"),
        ("/v1/re rank", "no spaces, query"),
        ("/v1/re\nrank", "taken letter by letter"),
        ("/v1/réranker", "taken letter by letter"),
        ("/v1/%72erank", "percent signs"),
        ("/v1/*", "patterns"),
        ("/v1/{x}", "patterns"),
        ("/v1//rerank", "no empty and no dotted parts"),
        ("/v1/../metrics", "no empty and no dotted parts"),
        ("/v1/completions", "one of the gateway's own paths"),
        ("/metrics", "one of the gateway's own paths"),
        ("/v1/models/x", "one of the gateway's own paths"),
        ("/v1/audio/transcriptions", "JSON bodies only"),
    ],
)
def test_an_added_path_that_cannot_be_served_is_named_at_the_start(path, said):
    with pytest.raises(GatewayError, match=r"^routes: ") as caught:
        Routes(("/v1/score", path))
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_path_is_added_once():
    with pytest.raises(GatewayError, match="'/v1/score' is listed twice"):
        Routes(("/v1/score", "/v1/score"))


@pytest.mark.parametrize("text", ["/v1/sk-proj-abcdefghijklmnop1234567890ABCDEFGHIJ/chat", "/sk-lensd-4Jt1kq0ZP0mV3x9Yb7c2Dd8Ee5Ff6Gg1"])
def test_a_key_in_a_path_is_not_repeated(text: str) -> None:
    refusal = ROUTES.find("POST", text)
    assert isinstance(refusal, Refused)
    assert "sk-" not in shown(text) + refusal.message + refusal.reason
