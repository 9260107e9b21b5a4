"""What proxies emit with tracing as it comes: LiteLLM's `otel` callback, Envoy AI Gateway, Envoy's tracer and access log."""

import json

from canaries import Planted
from otlp import Log, Metric, Said, Span

_TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/litellm/llms/openai/openai.py", line 736, in acompletion
    headers, response = await self.make_openai_chat_completion_request(openai_aclient=client, data=data)
  File "/usr/lib/python3/site-packages/openai/_base_client.py", line 1594, in request
    raise self._make_status_error_from_response(err.response) from None
openai.AuthenticationError: Error code: 401 - {'error': {'message': 'Incorrect API key provided: KEY.', 'code': 'invalid_api_key'}}"""


def litellm(p: Planted) -> Said:
    """LiteLLM: server span, request span with messages, the raw request, a guardrail, a failure, events and metrics."""
    model = {"gen_ai.request.model": "tiny", "gen_ai.response.model": "tiny-2026", "gen_ai.system": "openai", "llm.is_streaming": "True"}
    usage = {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 34, "gen_ai.usage.total_tokens": 46}
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": p.said("gen_ai.output.messages")}], "finish_reason": "stop"}]
    asked = [
        {"role": "user", "parts": [{"type": "text", "content": p.said("gen_ai.input.messages")}]},
        {"role": "user", "parts": [{"type": "image_url", "image_url": {"url": p.image("gen_ai.input.messages image")}}]},
    ]
    failed = _TRACE.replace("KEY", p.key("openai", "exception.stacktrace"))
    return Said(
        "litellm", "litellm",
        resource={"service.name": "litellm", "deployment.environment": "production", "model_id": "litellm"},
        spans=[
            Span("Received Proxy Server Request", {"http.method": "POST", "http.route": "/chat/completions"} | model, kind=2, planted={
                "http.url": p.key("url_key", "http.url"), "http.request.header.authorization": p.key("bearer", "request header"),
                "metadata.requester_metadata": json.dumps({"authorization": p.key("openai", "metadata")}),
            }),
            Span("litellm_request", {"gen_ai.operation.name": "chat", "gen_ai.response.id": "chatcmpl-litellm"} | model | usage, {
                "gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(answer),
                "gen_ai.system_instructions": json.dumps([{"type": "text", "content": p.said("gen_ai.system_instructions")}]),
                "gen_ai.completion.0.function_call.arguments": json.dumps({"query": p.said("function_call.arguments")}),
                "llm.request.functions.0.description": p.said("llm.request.functions description"),
                "llm.request.functions.0.parameters": json.dumps({"default": p.said("llm.request.functions parameters")}),
                "hidden_params": json.dumps({"api_base": p.key("url_google", "hidden_params")}),
                "metadata.user_api_key": p.key("opaque", "metadata.user_api_key"),
            }),
            Span("raw_gen_ai_request", {"llm.openai.model": "tiny", "llm.openai.temperature": 0.2}, {
                "llm.openai.messages": str([{"role": "user", "content": p.said("llm.openai.messages")}]),
                "llm.openai.input": p.said("llm.openai.input"), "llm.openai.prompt": p.said("llm.openai.prompt"),
                "llm.openai.choices": str([{"message": {"role": "assistant", "content": p.said("llm.openai.choices")}}]),
                "llm.openai.tools": str([{"function": {"name": "find", "description": p.said("llm.openai.tools")}}]),
                "llm.openai.extra_headers": str({"api-key": p.key("opaque", "llm.openai.extra_headers")}),
                "llm.openai.api_key": p.key("opaque", "llm.openai.api_key"),
            }),
            Span("guardrail", {"guardrail_name": "pii", "guardrail_mode": "pre_call"}, {
                "guardrail_response": str([{"entity": "PERSON", "text": p.said("guardrail_response")}]),
            }),
            Span("Failed Proxy Server Request", model,
                error=f"litellm.AuthenticationError: Incorrect API key provided: {p.key('openai', 'status')}",
                events=[("exception", {"exception.type": "AuthenticationError", "exception.stacktrace": failed,
                    "exception.message": f"Incorrect API key provided: {p.key('openai_project', 'exception.message')}"})],
                planted={"error.message": f"key {p.key('anthropic', 'error.message')} was refused", "error.stack_trace": failed}),
        ],
        logs=[
            Log({"role": "user", "content": p.said("event body content")}, attributes={
                "event_name": "gen_ai.content.prompt", "gen_ai.system": "openai", "gen_ai.prompt": p.said("event gen_ai.prompt")}),
            Log({"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": p.said("choice body content")}},
                attributes={
                "event_name": "gen_ai.content.completion", "message.content": p.said("event message.content")}),
        ],
        metrics=[
            Metric("gen_ai.client.token.usage", "histogram", {
                "gen_ai.request.model": "tiny",
                "metadata.user_api_key_hash": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b",
                "hidden_params": json.dumps({"additional_headers": {"authorization": p.key("bearer", "metric hidden_params")}}),
            }, exemplar={"gen_ai.prompt": p.said("exemplar gen_ai.prompt")}),
        ],
    )  # fmt: skip


def envoy_ai_gateway(p: Planted) -> Said:
    """Envoy AI Gateway's router: one span a call with OpenInference's attributes, requests and answers in full."""
    request = {"model": "tiny", "messages": [{"role": "user", "content": p.said("input.value")}], "tools": [{"type": "function"}]}
    reply = {"id": "chatcmpl-e", "choices": [{"message": {"content": p.said("output.value")}}]}
    counts = {"llm.token_count.prompt": 9, "llm.token_count.completion": 30, "llm.token_count.total": 39}
    return Said(
        "envoy ai gateway", "envoyproxy/ai-gateway",
        resource={"service.name": "ai-gateway"},
        spans=[
            Span("ChatCompletion", {"llm.system": "openai", "llm.model_name": "tiny", "openinference.span.kind": "LLM"} | counts, {
                "input.value": json.dumps(request), "input.mime_type": "application/json", "output.value": json.dumps(reply),
                "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": p.said("llm.input_messages"),
                "llm.input_messages.1.message.contents.1.message_content.image.image.url": p.image("message_content.image"),
                "llm.output_messages.0.message.content": p.said("llm.output_messages"),
                "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": json.dumps({"q": p.said("tool_call arguments")}),
                "llm.tools.0.tool.json_schema": json.dumps({"function": {"description": p.said("tool.json_schema")}}),
                "llm.invocation_parameters": json.dumps({"model": "tiny", "stop": [p.said("llm.invocation_parameters stop")]}),
            }),
            Span("CreateEmbeddings", {"embedding.model_name": "e5", "llm.token_count.prompt": 4, "openinference.span.kind": "EMBEDDING"}, {
                "embedding.embeddings.0.embedding.text": p.said("embedding.text"), "input.value": p.said("embeddings input.value"),
            }),
        ],
    )  # fmt: skip


def envoy(p: Planted) -> Said:
    """Envoy's tracer and its OpenTelemetry access log: a line, or a map with whatever headers somebody wrote into the format."""
    path = p.key("url_key", "access line").removeprefix("https://llm.example")
    line = (
        f'[2026-11-29T14:38:46.123Z] "POST {path} HTTP/1.1" 401 UAEX 512 87 3 - "-" "openai-python" "req-1" "llm.example" "10.0.0.1:8000"'
    )
    return Said(
        "envoy", "envoy",
        resource={"service.name": "edge", "cluster": "edge", "log_name": "llm"},
        spans=[
            Span("ingress", {"http.method": "POST", "http.status_code": "401", "upstream_cluster": "vllm", "response_flags": "UAEX"},
                kind=2,
                planted={
                    "http.url": p.key("url_signature", "http.url"), "custom.api_key": p.key("opaque", "custom tag"),
                    "request_header.x-goog-api-key": p.key("google", "header tag"), "peer.address": "10.1.2.3",
                    "http.request.header.api-key": [p.key("opaque", "api-key header")],
                    "http.request.header.ocp-apim-subscription-key": [p.key("opaque", "subscription key header")],
                    "http.request.header.cookie": [f"session={p.key('jwt', 'cookie')}"],
                }),
        ],
        logs=[
            Log(line),
            Log({"method": "POST", "path": p.key("url_key", "access map"), "authorization": p.key("bearer", "access map"), "code": "401"}),
            Log(line.replace(path, "/v1/models"), attributes={"x-api-key": p.key("opaque", "access attribute"), "response_code": 401}),
            Log(f'{{"path": "/v1/chat/completions", "request_body": {json.dumps(p.said("access log request_body"))}}}'),
        ],
        metrics=[Metric("envoy_cluster_upstream_rq", "sum", {"envoy_cluster_name": "vllm", "path": p.key("url_google", "metric path")})],
    )  # fmt: skip
