"""The OpenTelemetry GenAI conventions over their versions, and frameworks that follow them with names of their own."""

import json

from canaries import Planted
from otlp import Log, Metric, Said, Span

_PARTS = [{"type": "text"}, {"type": "tool_call", "name": "find"}, {"type": "tool_call_response", "id": "c"}]


def _messages(p: Planted, place: str) -> list[dict[str, object]]:
    """Messages as version 1.37 writes them: text, a tool's call and result, and an inline image."""
    text, call, result = _PARTS
    return [
        {"role": "user", "parts": [text | {"content": p.said(f"{place} text")}]},
        {"role": "assistant", "parts": [call | {"arguments": {"q": p.said(f"{place} tool_call")}}]},
        {"role": "tool", "parts": [result | {"result": p.said(f"{place} tool_call_response")}]},
        {"role": "user", "parts": [{"type": "blob", "mime_type": "image/png", "data": p.image(place).partition(",")[2]}]},
    ]


def genai_attributes(p: Planted) -> Said:
    """Version 1.37 and later: content in attributes, as JSON text or as structures; tools, retrieval and evaluation."""
    model = {"gen_ai.provider.name": "openai", "gen_ai.request.model": "tiny", "gen_ai.response.model": "tiny-2026", "server.port": 8000}
    usage = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 180, "gen_ai.response.finish_reasons": ["stop"]}
    return Said(
        "genai 1.37 attributes", "opentelemetry.instrumentation.openai_v2",
        resource={"service.name": "app"},
        spans=[
            Span("chat tiny", {"gen_ai.operation.name": "chat", "gen_ai.response.id": "chatcmpl-137"} | model | usage, {
                "gen_ai.input.messages": json.dumps(_messages(p, "gen_ai.input.messages")),
                "gen_ai.output.messages": _messages(p, "gen_ai.output.messages structured"),
                "gen_ai.system_instructions": [{"type": "text", "content": p.said("gen_ai.system_instructions")}],
                "gen_ai.tool.definitions": json.dumps([{"name": "find", "description": p.said("gen_ai.tool.definitions")}]),
                "gen_ai.request.stop_sequences": [p.said("gen_ai.request.stop_sequences")],
            }),
            Span("execute_tool find", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "find", "gen_ai.tool.call.id": "c1"}, {
                "gen_ai.tool.call.arguments": json.dumps({"q": p.said("gen_ai.tool.call.arguments")}),
                "gen_ai.tool.call.result": {"rows": [p.said("gen_ai.tool.call.result")]},
                "gen_ai.tool.description": p.said("gen_ai.tool.description"),
            }, kind=1),
            Span("retrieval docs", {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": "d1"}, {
                "gen_ai.retrieval.query.text": p.said("gen_ai.retrieval.query.text"),
                "gen_ai.retrieval.documents": json.dumps([{"id": "1", "content": p.said("gen_ai.retrieval.documents")}]),
            }),
            Span("invoke_agent helper", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "helper"},
                error="500", events=[("gen_ai.evaluation.result",
                    {"gen_ai.evaluation.explanation": p.said("gen_ai.evaluation.explanation")})]),
        ],
        logs=[
            Log(name="gen_ai.client.inference.operation.details", severity=5, attributes={
                "gen_ai.operation.name": "chat", "gen_ai.input.messages": _messages(p, "details gen_ai.input.messages"),
                "gen_ai.output.messages": json.dumps(_messages(p, "details gen_ai.output.messages")),
                "gen_ai.system_instructions": json.dumps([{"content": p.said("details gen_ai.system_instructions")}]),
            }),
            Log(name="gen_ai.evaluation.result", attributes={"gen_ai.evaluation.explanation": p.said("log gen_ai.evaluation.explanation")}),
        ],
        metrics=[Metric("gen_ai.client.operation.duration", "exponential_histogram", {"gen_ai.request.model": "tiny"},
                        exemplar={"gen_ai.input.messages": json.dumps(_messages(p, "exemplar"))})],
    )  # fmt: skip


def genai_events(p: Planted) -> Said:
    """Versions 1.28 to 1.36: one log record a message, named by `event_name` or the attribute `event.name`, its body a map or text."""
    call = [{"id": "c", "type": "function", "function": {"name": "find", "arguments": json.dumps({"q": p.said("tool_calls arguments")})}}]
    return Said(
        "genai 1.28 events", "opentelemetry.instrumentation.openai_v2",
        resource={"service.name": "app"},
        spans=[Span("chat tiny", {"gen_ai.system": "openai", "gen_ai.request.model": "tiny", "gen_ai.usage.input_tokens": 1})],
        logs=[
            Log({"content": p.said("system message")}, "gen_ai.system.message", {"gen_ai.system": "openai"}),
            Log({"content": p.said("user message"), "role": "user"}, attributes={"event.name": "gen_ai.user.message"}),
            Log({"tool_calls": call}, "gen_ai.assistant.message"),
            Log({"id": "c", "content": p.said("tool message")}, "gen_ai.tool.message"),
            Log({"index": 0, "finish_reason": "stop", "message": {"content": p.said("choice")}}, "gen_ai.choice"),
            Log(p.said("text body"), "gen_ai.user.message"),
            Log([{"role": "user", "content": p.said("list body")}], "gen_ai.user.message"),
            Log(json.dumps({"messages": [{"role": "user", "content": p.said("JSON text body")}]}),
                attributes={"event.name": "gen_ai.choice"}),
            Log(attributes={"event.name": "gen_ai.user.message",
                "gen_ai.event.content": json.dumps({"content": p.said("gen_ai.event.content")})}),
        ],
    )  # fmt: skip


def genai_span_events(p: Planted) -> Said:
    """Versions before 1.28 and Azure's and Semantic Kernel's tracing: messages as events of the span."""
    return Said(
        "genai span events", "azure.ai.inference",
        resource={"service.name": "app"},
        spans=[
            Span("chat tiny", {"gen_ai.system": "az.ai.inference", "gen_ai.request.model": "tiny", "gen_ai.usage.completion_tokens": 3}, {
                "http.request.header.api-key": [p.key("opaque", "api-key header")], "az.client_request_id": "r-1",
            }, events=[
                ("gen_ai.content.prompt", {"gen_ai.prompt": p.said("gen_ai.content.prompt")}),
                ("gen_ai.content.completion", {"gen_ai.completion": p.said("gen_ai.content.completion")}),
                ("gen_ai.user.message", {"gen_ai.event.content": json.dumps({"content": p.said("gen_ai.event.content")})}),
                ("gen_ai.choice", {"gen_ai.event.content": json.dumps({"message": {"content": p.said("choice gen_ai.event.content")}})}),
                ("gen_ai.tool.message", {"content": p.said("tool message"), "id": "c"}),
                ("prompt", {"text": p.said("prompt event")}),
            ]),
        ],
    )  # fmt: skip


def frameworks(p: Planted) -> Said:
    """Pydantic AI, Google ADK, Spring AI, Strands, CrewAI, Semantic Kernel, Haystack and MCP: names of their own beside the conventions."""
    return Said(
        "frameworks", "pydantic-ai",
        resource={"service.name": "agents"},
        spans=[
            Span("agent run", {"agent_name": "helper", "model_name": "tiny", "gen_ai.usage.input_tokens": 2}, {
                "all_messages_events": json.dumps([{"content": p.said("all_messages_events"), "role": "user"}]),
                "pydantic_ai.all_messages": json.dumps([{"parts": [{"content": p.said("pydantic_ai.all_messages")}]}]),
                "final_result": p.said("final_result"), "events": json.dumps([{"content": p.said("events")}]),
            }, kind=1),
            Span("running tool", {"gen_ai.tool.name": "find"}, {
                "tool_arguments": json.dumps({"q": p.said("tool_arguments")}), "tool_response": p.said("tool_response"),
            }, kind=1),
            Span("call_llm", {"gen_ai.system": "gcp.vertex.agent", "gen_ai.request.model": "tiny"}, {
                "gcp.vertex.agent.llm_request": json.dumps({"contents": [{"parts": [{"text": p.said("gcp.vertex.agent.llm_request")}]}]}),
                "gcp.vertex.agent.llm_response": json.dumps({"content": p.said("gcp.vertex.agent.llm_response")}),
                "gcp.vertex.agent.tool_call_args": json.dumps({"q": p.said("gcp.vertex.agent.tool_call_args")}),
                "gcp.vertex.agent.tool_response": json.dumps({"r": p.said("gcp.vertex.agent.tool_response")}),
            }, kind=1),
            Span("spring_ai chat_client", {"spring.ai.kind": "chat_client"}, {
                "spring.ai.chat.client.user.text": p.said("spring.ai.chat.client.user.text"),
                "spring.ai.chat.client.system.text": p.said("spring.ai.chat.client.system.text"),
                "spring.ai.tool.call.arguments": json.dumps({"q": p.said("spring.ai.tool.call.arguments")}),
                "spring.ai.tool.call.result": p.said("spring.ai.tool.call.result"),
                "db.vector.query.content": p.said("db.vector.query.content"),
            }, kind=1),
            Span("chat", {"gen_ai.system": "strands-agents"}, {}, kind=1, events=[
                ("gen_ai.choice", {"message": json.dumps([{"text": p.said("strands message")}]),
                    "tool.result": p.said("strands tool.result")}),
                ("gen_ai.user.message", {"content": json.dumps([{"text": p.said("strands content")}])}),
            ]),
            Span("Crew Created", {"crewai_version": "0.80"}, {
                "crew_tasks": json.dumps([{"description": p.said("crew_tasks")}]),
                "crew_agents": json.dumps([{"goal": p.said("crew_agents")}]),
                "formatted_description": p.said("formatted_description"), "crew_inputs": json.dumps({"topic": p.said("crew_inputs")}),
            }, kind=1),
            Span("haystack.component.run", {"haystack.component.name": "llm"}, {
                "haystack.component.input": json.dumps({"prompt": p.said("haystack.component.input")}),
                "haystack.component.output": json.dumps({"replies": [p.said("haystack.component.output")]}),
            }, kind=1),
            Span("tools/call find", {"mcp.method.name": "tools/call", "rpc.system": "jsonrpc"}, {
                "mcp.request.argument.query": p.said("mcp.request.argument"), "mcp.tool.result.content": p.said("mcp.tool.result.content"),
            }),
        ],
    )  # fmt: skip
