"""Marks in every place that OTLP has for text, whoever sends it: names, states, links, descriptions, exemplars, bodies of each type."""

import base64
import json
from urllib.parse import quote

from canaries import KEYS, Planted
from otlp import Attributes, Log, Metric, Said, Span

NAMED_KEYS = tuple(kind for kind in KEYS if kind != "opaque")
"""Kinds of keys that can be told by their own form, wherever they stand."""


def _content(p: Planted, place: str) -> Attributes:
    """Content under a name that says so, as text, in a list, in a map and as bytes."""
    return {
        "gen_ai.input.messages": p.said(f"{place} text"),
        "gen_ai.output.messages": [p.said(f"{place} list")],
        "llm.input_messages": {"0": {"content": p.said(f"{place} map")}},
        "input.value": p.said(f"{place} bytes").encode(),
        "http.request.header.authorization": p.key("bearer", f"{place} header"),
        "url.query": p.key("url_key", f"{place} query").partition("?")[2],
    }


def places(p: Planted) -> Said:
    """Content and keys in resource, scope, span, event and link attributes, trace state, names, messages, and every kind of metric."""
    return Said(
        "every place", "anything", _content(p, "resource") | {"service.name": "everywhere"}, _content(p, "scope"),
        spans=[
            Span("kept", {"gen_ai.request.model": "kept-model", "gen_ai.usage.input_tokens": 77}, _content(p, "span"),
                 events=[("any", _content(p, "event")), (f"calling {p.key('openai', 'event name')}", {})], links=[_content(p, "link")],
                 state=f"vendor={p.key('openai', 'trace state').removeprefix('Bearer ')}",
                     error=f"401 {p.key('openai', 'status message')}"),
            Span(f"GET /v1/models?{p.key('url_key', 'span name').partition('?')[2]}", kept_name="GET /v1/models"),
            Span(f"POST {p.key('openai', 'span name')}", {"gen_ai.request.model": "named-by-key"}, kept_name="POST "),
        ],
        logs=[
            Log(_content(p, "log map body"), "app.event", _content(p, "log attributes")),
            Log([_content(p, "log list body")], "app.event"),
            Log(p.said("log bytes body").encode(), "gen_ai.user.message"),
            Log(name="app.event", severity_text=p.key("openai", "severity text")),
        ],
        metrics=[
            Metric(f"app.{kind}", kind, _content(p, kind), _content(p, f"{kind} exemplar"),
                f"as of {p.key('openai', f'{kind} description')}",
                   _content(p, f"{kind} metadata"))
            for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary")
        ] + [Metric("vllm:num_requests_running", "gauge", {"model_name": "tiny", "lensd.engine": "e0", "lensd.engine.kind": "vllm",
            **_content(p, "known metric")}, value=1.0)],
    )  # fmt: skip


def keys(p: Planted) -> Said:
    """Every kind of key in texts whose names say nothing: a status message, an exception, an attribute, a log line, JSON in JSON."""
    spans = [
        Span(f"call {number}", {"gen_ai.request.model": "tiny"}, {
            "note": f"used {p.key(kind, 'attribute')} today", "notes": [f"used {p.key(kind, 'list attribute')}"],
            "config": json.dumps({"inner": json.dumps({"value": f"x {p.key(kind, 'JSON in JSON')} y"})}),
            "error.message": f"upstream said: {p.key(kind, 'error.message')} is not valid",
        }, events=[("exception", {
            "exception.type": "AuthenticationError", "exception.message": f"401: {p.key(kind, 'exception.message')}",
            "exception.stacktrace": f'Traceback:\n  File "a.py", line 3, in call\n    auth="{p.key(kind, "stacktrace")}"\nValueError',
        })], error=f"refused: {p.key(kind, 'status message')}")
        for number, kind in enumerate(NAMED_KEYS)
    ]  # fmt: skip
    logs = [Log(f"ERROR upstream refused {p.key(kind, 'log line')} at once", severity=17) for kind in NAMED_KEYS]
    logs += [Log({"text": [f"see {p.key(kind, 'log map')}"]}, "app.event") for kind in NAMED_KEYS]
    metrics = [Metric("app.calls", "sum", {"url": p.key(kind, "metric attribute")}) for kind in NAMED_KEYS]
    return Said("keys in texts", "app", {"service.name": "keys"}, spans=spans, logs=logs, metrics=metrics)


def named(p: Planted) -> Said:
    """Keys that only their attribute's name tells: headers, settings and environment, however they are spelled."""
    names = (
        "http.request.header.authorization", "http.request.header.Authorization", "http.request.header.proxy_authorization",
        "http.request.header.api-key", "http.request.header.api_key", "http.request.header.x-api-key", "http.request.header.x-goog-api-key",
        "http.request.header.ocp-apim-subscription-key", "http.request.header.cookie", "http.response.header.set-cookie",
        "http.request.header.x-litellm-api-key", "http.request.header.x-portkey-api-key", "http.request.header.anthropic-api-key",
        "rpc.request.metadata.authorization", "rpc.grpc.request.metadata.authorization", "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "azure.api_key", "api_key", "apiKey", "api-key", "x-api-key", "access_token",
        "client_secret", "password", "db.password", "secret", "authorization", "token", "litellm_master_key", "virtual_key",
    )  # fmt: skip
    attributes: Attributes = {name: p.key("opaque", name) for name in names}
    nested: Attributes = {"headers": {name: p.key("opaque", f"nested {name}") for name in names}}
    not_keys: Attributes = {
        "gen_ai.request.model": "tiny", "gen_ai.token.type": "input", "gen_ai.request.max_tokens": 64, "llm.token_count.prompt": 5,
        "llm.usage.cache_read_input_tokens": 3, "session.id": "s-3", "http.request.header.x-request-id": "r-7", "tokens_per_second": 31.5,
    }  # fmt: skip
    text = json.dumps({name.removeprefix("http.request.header."): p.key("opaque", f"JSON text {name}") for name in names})
    return Said(
        "named keys",
        "app",
        {"service.name": "named", "process.command_line": f"serve --api-key {p.key('opaque', 'command line')} --port 1"},
        spans=[Span("call", not_keys, attributes | nested | {"request.headers": text})],
        logs=[Log(attributes | nested, "app.event"), Log(f"request headers: {text}")],
    )


def disguised(p: Planted) -> Said:
    """Content and keys inside other encodings, and spelled so that a plain search for them misses."""
    basic = base64.b64encode(json.dumps({"messages": [{"content": p.said("base64 body")}]}).encode()).decode()
    escaped = p.key("openai", "percent-encoded query")
    return Said(
        "disguised", "app", {"service.name": "disguised"},
        spans=[
            Span("call", {"gen_ai.request.model": "tiny"}, {
                "http.request.body": basic, "http.request.body.content": basic,
                "url.full": f"https://llm.example/v1?api%5Fkey={quote(escaped)}",
                "http.target": f"/v1/chat?prompt={quote(p.said('prompt in a query'))}",
                "url.fragment": f"access_token={p.key('opaque', 'url.fragment')}",
                "GEN_AI.INPUT.MESSAGES": p.said("upper case name"), "gen_ai_input_messages": p.said("underscored name"),
                "app.gen_ai.prompt": p.said("prefixed name"),
                "span.attributes.llm.input_messages.0.message.content": p.said("flattened name"),
                "request": json.dumps({"model": "tiny", "messages": [{"role": "user", "content": p.said("JSON request")}]}),
                "response": json.dumps({"choices": [{"message": {"role": "assistant", "content": p.said("JSON response")}}]}),
                "body": {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": p.said("map request")}]}]},
                "image": p.image("data URL under any name"),
            }),
        ],
        logs=[
            Log(json.dumps({"level": "info", "prompt": p.said("JSON line prompt"), "completion": p.said("JSON line completion")})),
            Log(f"INFO 11-29 14:38:46 [logger.py:39] Received request c-1: prompt: '{p.said('vllm line')}', params: None"),
            Log(f'10.0.0.1 - - [29/Nov/2026:14:38:46 +0000] "GET /v1/models?user={quote(p.said("access line"))} HTTP/1.1" 200 5 "-" "-"'),
            Log(f'POST /v1/chat/completions {{"messages":[{{"role":"user","content":"{p.said("request in a line")}"}}]}}'),
        ],
    )  # fmt: skip
