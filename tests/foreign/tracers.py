"""What libraries in the calling application emit: OpenLLMetry, OpenInference, LangChain, LlamaIndex, Langfuse, Helicone, AI SDK, MLflow."""

import json

from canaries import Planted
from otlp import Log, Metric, Said, Span


def openllmetry(p: Planted) -> Said:
    """OpenLLMetry (Traceloop): indexed prompts and completions, workflow and tool spans, vector stores, streamed chunks as events."""
    model = {"gen_ai.system": "OpenAI", "gen_ai.request.model": "tiny", "gen_ai.response.model": "tiny-2026", "llm.request.type": "chat"}
    usage = {"gen_ai.usage.prompt_tokens": 12, "gen_ai.usage.completion_tokens": 34, "llm.usage.total_tokens": 46}
    return Said(
        "openllmetry", "opentelemetry.instrumentation.openai.v1",
        resource={"service.name": "assistant", "traceloop.workflow.name": "support"},
        spans=[
            Span("support.workflow", {"traceloop.span.kind": "workflow"}, {
                "traceloop.entity.input": json.dumps({"args": [p.said("traceloop.entity.input")]}),
                "traceloop.entity.output": json.dumps(p.said("traceloop.entity.output")),
                "traceloop.association.properties.authorization": p.key("bearer", "association property"),
                "traceloop.prompt.template": p.said("traceloop.prompt.template"),
                "traceloop.prompt.template_variables": json.dumps({"name": p.said("traceloop.prompt.template_variables")}),
            }, kind=1),
            Span("openai.chat", model | usage | {"llm.is_streaming": True, "gen_ai.request.max_tokens": 64}, {
                "gen_ai.prompt.0.role": "system", "gen_ai.prompt.0.content": p.said("gen_ai.prompt.0.content"),
                "gen_ai.prompt.1.content": json.dumps([{"type": "image_url", "image_url": {"url": p.image("gen_ai.prompt.1.content")}}]),
                "gen_ai.prompt.2.tool_calls.0.arguments": json.dumps({"city": p.said("gen_ai.prompt tool_calls arguments")}),
                "gen_ai.completion.0.content": p.said("gen_ai.completion.0.content"),
                "gen_ai.completion.0.reasoning": p.said("gen_ai.completion.0.reasoning"),
                "gen_ai.completion.0.tool_calls.0.arguments": json.dumps({"city": p.said("gen_ai.completion tool_calls arguments")}),
                "llm.prompts.0.content": p.said("llm.prompts.0.content"), "llm.completions.0.content": p.said("llm.completions.0.content"),
                "llm.request.functions.0.parameters": json.dumps({"note": p.said("llm.request.functions.0.parameters")}),
                "llm.headers": str({"x-api-key": p.key("opaque", "llm.headers")}),
                "gen_ai.openai.api_base": p.key("url_user", "gen_ai.openai.api_base"),
            }, events=[("llm.content.completion.chunk", {"content": p.said("chunk event")})]),
            Span("search.tool", {"traceloop.span.kind": "tool"}, {
                "traceloop.entity.input": json.dumps({"input_str": p.said("tool traceloop.entity.input")}),
                "traceloop.entity.output": p.said("tool traceloop.entity.output"),
            }, kind=1),
            Span("chroma.query", {"db.system": "chroma", "db.operation": "query"}, {
                "db.query.text": p.said("db.query.text"),
            }, events=[("db.query.result", {"db.query.result.id": "7", "db.query.result.document": p.said("db.query.result.document")})]),
        ],
        metrics=[Metric("gen_ai.client.operation.duration", "histogram", {"gen_ai.request.model": "tiny", "server.address": "llm"},
                        exemplar={"traceloop.entity.input": p.said("exemplar")})],
    )  # fmt: skip


def openinference(p: Planted) -> Said:
    """OpenInference, as Phoenix's instrumentors emit it: LLM, retriever, reranker, embedding, tool and agent spans."""
    counts = {"llm.token_count.prompt": 21, "llm.token_count.completion": 8, "llm.token_count.total": 29}
    first, second = "llm.input_messages.0.message", "llm.input_messages.1.message"
    return Said(
        "openinference", "openinference.instrumentation.langchain",
        resource={"service.name": "rag", "openinference.project.name": "default"},
        spans=[
            Span("RunnableSequence", {"openinference.span.kind": "CHAIN", "session.id": "s-1"}, {
                "input.value": p.said("chain input.value"), "output.value": p.said("chain output.value"),
                "metadata": json.dumps({"openai_api_key": p.key("openai_project", "metadata")}),
            }, kind=1),
            Span("ChatOpenAI", {"openinference.span.kind": "LLM", "llm.model_name": "tiny", "llm.provider": "openai"} | counts, {
                "input.value": json.dumps({"messages": [[{"kwargs": {"content": p.said("llm input.value")}}]]}),
                "output.value": json.dumps({"generations": [[{"text": p.said("llm output.value")}]]}),
                f"{first}.content": p.said("message.content"),
                f"{second}.contents.0.message_content.text": p.said("message_content.text"),
                f"{second}.contents.1.message_content.image.image.url": p.image("message_content.image"),
                f"{second}.tool_calls.0.tool_call.function.arguments": json.dumps({"q": p.said("input tool_call arguments")}),
                f"{second}.function_call_arguments_json": json.dumps({"q": p.said("function_call_arguments_json")}),
                "llm.output_messages.0.message.content": p.said("output message.content"),
                "llm.prompt_template.template": p.said("llm.prompt_template.template"),
                "llm.prompt_template.variables": json.dumps({"who": p.said("llm.prompt_template.variables")}),
                "llm.prompts.0.prompt.text": p.said("llm.prompts"), "llm.choices.0.completion.text": p.said("llm.choices"),
                "llm.function_call": json.dumps({"arguments": p.said("llm.function_call")}),
                "llm.invocation_parameters": json.dumps({"temperature": 0, "api_key": p.key("opaque", "llm.invocation_parameters")}),
                "llm.tools.0.tool.json_schema": json.dumps({"description": p.said("llm.tools")}),
                "input.images.0.image.url": p.image("input.images"), "input.audio.url": p.key("url_signature", "input.audio.url"),
            }),
            Span("Retriever", {"openinference.span.kind": "RETRIEVER"}, {
                "retrieval.documents.0.document.content": p.said("document.content"),
                "retrieval.documents.0.document.metadata": json.dumps({"title": p.said("document.metadata")}),
                "input.value": p.said("retriever input.value"),
            }),
            Span("CohereRerank", {"openinference.span.kind": "RERANKER", "reranker.model_name": "rr", "reranker.top_k": 3}, {
                "reranker.query": p.said("reranker.query"),
                "reranker.input_documents.0.document.content": p.said("reranker.input_documents"),
                "reranker.output_documents.0.document.content": p.said("reranker.output_documents"),
            }),
            Span("find", {"openinference.span.kind": "TOOL", "tool.name": "find"}, {
                "tool.parameters": json.dumps({"q": p.said("tool.parameters")}), "tool.description": p.said("tool.description"),
                "input.value": p.said("tool input.value"), "output.value": p.said("tool output.value"),
            }),
            Span("OpenAIEmbeddings", {"openinference.span.kind": "EMBEDDING", "embedding.model_name": "e5"}, {
                "embedding.embeddings.0.embedding.text": p.said("embedding.text"),
            }, error=f"Error code: 401 for {p.key('openai', 'status message')}",
                events=[("exception", {"exception.message": f"401 {p.key('huggingface', 'exception.message')}",
                                       "exception.stacktrace": f"  key = '{p.key('langsmith', 'exception.stacktrace')}'"})]),
        ],
    )  # fmt: skip


def langchain(p: Planted) -> Said:
    """LangSmith's OpenTelemetry exporter: runs with inputs and outputs as JSON, events of prompt and completion."""
    return Said(
        "langchain", "langsmith",
        resource={"service.name": "langsmith", "langsmith.project": "default"},
        spans=[
            Span("AgentExecutor", {"langsmith.span.kind": "chain", "langsmith.trace.name": "AgentExecutor"}, {
                "gen_ai.prompt": json.dumps({"input": p.said("gen_ai.prompt")}),
                "gen_ai.completion": json.dumps(p.said("gen_ai.completion")),
                "langsmith.metadata.LANGSMITH_API_KEY": p.key("langsmith", "langsmith.metadata"),
            }, kind=1),
            Span("ChatOpenAI", {"langsmith.span.kind": "llm", "gen_ai.request.model": "tiny", "gen_ai.usage.input_tokens": 5,
                                "gen_ai.usage.output_tokens": 6, "gen_ai.operation.name": "chat"}, {
                "langsmith.request.headers": str({"api-key": p.key("opaque", "headers")}),
            }, events=[("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps({"messages": p.said("event gen_ai.prompt")})}),
                       ("gen_ai.content.completion", {"gen_ai.completion": p.said("event gen_ai.completion")})]),
            Span("tavily_search", {"langsmith.span.kind": "tool"}, {"gen_ai.prompt": p.said("tool gen_ai.prompt"),
                "gen_ai.completion": p.said("tool result")}),
        ],
    )  # fmt: skip


def llama_index(p: Planted) -> Said:
    """LlamaIndex's own OpenTelemetry integration: dispatcher events as span events with flattened fields."""
    return Said(
        "llamaindex", "llamaindex.opentelemetry.tracer",
        resource={"service.name": "llamaindex.opentelemetry"},
        spans=[
            Span("BaseQueryEngine.query", {"class": "RetrieverQueryEngine"}, kind=1, events=[
                ("QueryStartEvent", {"class_name": "QueryStartEvent", "query": p.said("QueryStartEvent query")}),
                ("RetrievalEndEvent", {"nodes": p.said("RetrievalEndEvent nodes"), "str_or_query_bundle": p.said("str_or_query_bundle")}),
                ("LLMChatStartEvent", {"messages": p.said("LLMChatStartEvent messages"), "model_dict.model": "tiny",
                                       "model_dict.api_key": p.key("opaque", "model_dict.api_key")}),
                ("LLMChatEndEvent", {"response": p.said("LLMChatEndEvent response")}),
                ("AgentToolCallEvent", {"arguments": p.said("AgentToolCallEvent arguments"), "tool.name": "find"}),
                ("EmbeddingEndEvent", {"chunks": p.said("EmbeddingEndEvent chunks")}),
                ("LLMPredictStartEvent", {"template_args": p.said("template_args"), "template": p.said("template")}),
                ("QueryEndEvent", {"response": p.said("QueryEndEvent response")}),
            ]),
        ],
    )  # fmt: skip


def langfuse(p: Planted) -> Said:
    """Langfuse's SDK: trace and observation inputs and outputs, prompt names, model parameters, usage as JSON."""
    return Said(
        "langfuse", "langfuse-sdk", scope_attributes={"public_key": "pk-lf-1"},
        resource={"service.name": "chat"},
        spans=[
            Span("answer", {"langfuse.observation.type": "span", "langfuse.trace.name": "answer", "session.id": "s-9"}, {
                "langfuse.trace.input": json.dumps({"q": p.said("langfuse.trace.input")}),
                "langfuse.trace.output": json.dumps(p.said("langfuse.trace.output")),
                "langfuse.trace.metadata.secret_key": p.key("langfuse", "langfuse.trace.metadata"),
            }, kind=1),
            Span("generation", {"langfuse.observation.type": "generation", "langfuse.observation.model.name": "tiny",
                                "langfuse.observation.usage_details": '{"input":12,"output":34}'}, {
                "langfuse.observation.input": json.dumps([{"role": "user", "content": p.said("langfuse.observation.input")}]),
                "langfuse.observation.output": p.said("langfuse.observation.output"),
                "langfuse.observation.model.parameters": json.dumps({"api_key": p.key("opaque", "langfuse.observation.model.parameters")}),
                "langfuse.observation.status_message": f"refused {p.key('anthropic', 'langfuse.observation.status_message')}",
            }),
            Span("tool", {"langfuse.observation.type": "tool"}, {"langfuse.observation.input": p.said("tool langfuse.observation.input")}),
        ],
    )  # fmt: skip


def helicone(p: Planted) -> Said:
    """Helicone's asynchronous logger: OpenLLMetry's spans, Helicone's headers as attributes."""
    return Said(
        "helicone", "@traceloop/instrumentation-openai",
        resource={"service.name": "helicone", "helicone.auth": p.key("helicone", "resource helicone.auth")},
        spans=[
            Span("openai.chat", {"gen_ai.system": "openai", "gen_ai.request.model": "tiny", "llm.usage.total_tokens": 7}, {
                "gen_ai.prompt.0.content": p.said("gen_ai.prompt.0.content"),
                "gen_ai.completion.0.content": p.said("gen_ai.completion.0.content"),
                "http.request.header.helicone-auth": f"Bearer {p.key('helicone', 'helicone-auth header')}",
                "traceloop.association.properties.Helicone-Auth": f"Bearer {p.key('helicone', 'association property')}",
                "http.request.body": json.dumps({"messages": [{"content": p.said("http.request.body")}]}),
                "http.response.body": json.dumps({"choices": [{"message": {"content": p.said("http.response.body")}}]}),
            }),
        ],
    )  # fmt: skip


def ai_sdk(p: Planted) -> Said:
    """The Vercel AI SDK: outer and inner spans, tool calls, objects, embeddings, request headers."""
    model = {"ai.model.id": "tiny", "ai.model.provider": "openai.chat", "ai.usage.promptTokens": 10, "ai.usage.completionTokens": 20}
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": p.said("ai.prompt.messages")},
                {"type": "image", "image": p.image("ai.prompt.messages image")},
            ],
        }
    ]
    return Said(
        "vercel ai sdk", "ai",
        resource={"service.name": "web"},
        spans=[
            Span("ai.streamText", {"operation.name": "ai.streamText", "ai.operationId": "ai.streamText",
                "ai.settings.maxRetries": 2} | model, {
                "ai.prompt": json.dumps({"system": p.said("ai.prompt system"), "prompt": p.said("ai.prompt")}),
                "ai.response.text": p.said("ai.response.text"), "ai.response.reasoning": p.said("ai.response.reasoning"),
                "ai.request.headers.authorization": p.key("bearer", "ai.request.headers.authorization"),
                "ai.request.headers.x-custom-key": p.key("openai", "ai.request.headers.x-custom-key"),
                "ai.telemetry.metadata.apiKey": p.key("opaque", "ai.telemetry.metadata.apiKey"),
            }, kind=1),
            Span("ai.streamText.doStream", {"ai.response.model": "tiny-2026", "ai.response.msToFirstChunk": 210.5,
                "gen_ai.usage.input_tokens": 10} | model, {
                "ai.prompt.messages": json.dumps(messages), "ai.prompt.tools": [json.dumps({"name": "find",
                "description": p.said("ai.prompt.tools")})],
                "ai.response.toolCalls": json.dumps([{"toolName": "find", "input": p.said("ai.response.toolCalls")}]),
                "ai.response.providerMetadata": json.dumps({"openai": {"reasoning": p.said("ai.response.providerMetadata")}}),
            }),
            Span("ai.toolCall", {"ai.toolCall.name": "find", "ai.toolCall.id": "call_1"}, {
                "ai.toolCall.args": json.dumps({"q": p.said("ai.toolCall.args")}), "ai.toolCall.input": p.said("ai.toolCall.input"),
                "ai.toolCall.result": p.said("ai.toolCall.result"), "ai.toolCall.output": p.said("ai.toolCall.output"),
            }, kind=1),
            Span("ai.generateObject", model, {"ai.response.object": json.dumps({"name": p.said("ai.response.object")}),
                                              "ai.schema": json.dumps({"description": p.said("ai.schema")})}, kind=1),
            Span("ai.embedMany", {"ai.model.id": "e5"}, {"ai.values": [json.dumps(p.said("ai.values"))], "ai.value": p.said("ai.value")},
                kind=1),
        ],
    )  # fmt: skip


def mlflow(p: Planted) -> Said:
    """MLflow's tracing through an OTLP exporter: every value as JSON."""
    return Said(
        "mlflow", "mlflow.openai.autolog",
        resource={"service.name": "mlflow"},
        spans=[
            Span("Completions", {"mlflow.spanType": '"CHAT_MODEL"', "mlflow.llm.model": '"tiny"',
                                 "mlflow.chat.tokenUsage": '{"input_tokens":3,"output_tokens":4,"total_tokens":7}'}, {
                "mlflow.spanInputs": json.dumps({"messages": [{"role": "user", "content": p.said("mlflow.spanInputs")}]}),
                "mlflow.spanOutputs": json.dumps({"choices": [{"message": {"content": p.said("mlflow.spanOutputs")}}]}),
                "mlflow.chat.messages": json.dumps([{"content": p.said("mlflow.chat.messages")}]),
                "mlflow.chat.tools": json.dumps([{"function": {"description": p.said("mlflow.chat.tools")}}]),
                "mlflow.trace.tags": json.dumps({"databricks_token": p.key("opaque", "mlflow.trace.tags")}),
            }, kind=1, error="Exception: 401", events=[("exception", {"exception.message": p.key("jwt", "exception.message"),
                "exception.stacktrace": f'  raise Error("https://h.example/v1?token={p.key("opaque", "exception.stacktrace query")}")'})]),
            Span("find", {"mlflow.spanType": '"TOOL"'}, {"mlflow.spanInputs": json.dumps({"q": p.said("tool mlflow.spanInputs")}),
                                                         "mlflow.spanOutputs": json.dumps(p.said("tool mlflow.spanOutputs"))}, kind=1),
        ],
        logs=[Log(f"mlflow.exceptions.MlflowException: 401 for Bearer {p.key('opaque', 'log line')}", severity=17)],
    )  # fmt: skip
