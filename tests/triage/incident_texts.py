# ruff: noqa: E501  (lines as programs print them)
"""What servers, proxies and clients print, as small builders, so that an incident reads as what happened and not as boilerplate."""

import json
from datetime import UTC, datetime, timedelta

DAY = "2026-11-18"
OK, ABORTED = "200 OK", "abort"


def seconds_after(clock: str, seconds: float) -> datetime:
    return datetime.fromisoformat(f"{DAY}T{clock}+00:00").astimezone(UTC) + timedelta(seconds=seconds)


def log(clock: str, text: str, *, level: str = "INFO", source: str = "loggers.py:257", process: str = "APIServer pid=1") -> str:
    """One line of vLLM 0.10 to 0.32."""
    return f"({process}) {level} {DAY[5:]} {clock} [{source}] {text}"


def core(clock: str, text: str, level: str = "ERROR") -> str:
    return log(clock, text, level=level, source="core.py:1512", process="EngineCore pid=77")


def stats(clock: str, *, running: int, waiting: int, kv: float = 40.0, prompt: float = 900.0, generation: float = 700.0) -> str:
    said = f"Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {generation} tokens/s"
    return log(
        clock,
        f"Engine 000: {said}, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {kv}%, Prefix cache hit rate: 0.0%",
    )


def access(request: str = "POST /v1/chat/completions", answer: str = OK, peer: str = "10.8.0.5:41482") -> str:
    return f'(APIServer pid=1) INFO:     {peer} - "{request} HTTP/1.1" {answer}'


def started(clock: str, version: str = "0.13.0") -> str:
    return log(clock, f"vLLM API server version {version}", source="api_server.py:1352")


def ready() -> str:
    return "(APIServer pid=1) INFO:     Application startup complete."


def lines(*parts: str) -> str:
    return "\n".join(parts) + "\n"


def scrape(clock: str | None = None, *, model: str = "qwen3-32b", **values: float) -> str:
    """A scrape of vLLM; names without the prefix. `clock` None: nobody noted when it was taken."""
    head = [f"# scraped_at {DAY}T{clock}Z"] if clock else []
    body = [f'vllm:{name}{{engine="0",model_name="{model}"}} {value}' for name, value in values.items()]
    return lines(*head, *(line for one in body for line in (f"# TYPE {one.partition('{')[0]} gauge", one)))


def answer(status: str, body: str, *, asked: str | None = None, headers: tuple[str, ...] = ("content-type: application/json",)) -> str:
    """What `curl -i` shows."""
    return lines(*([f"$ {asked}"] if asked else []), f"HTTP/1.1 {status}", *headers, "", body)


def error(message: str, kind: str, code: int | str, param: str | None = None) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def engine_span(request_id: str = "chatcmpl-7d0c", **attributes: object) -> dict[str, object]:
    """A span written down by hand, without instants: `queue`, `prefill`, `decode` in seconds."""
    names = {
        "queue": "gen_ai.latency.time_in_queue",
        "prefill": "gen_ai.latency.time_in_model_prefill",
        "decode": "gen_ai.latency.time_in_model_decode",
        "e2e": "gen_ai.latency.e2e",
        "prompt_tokens": "gen_ai.usage.prompt_tokens",
        "completion_tokens": "gen_ai.usage.completion_tokens",
    }
    given = {names.get(name, name): value for name, value in attributes.items()}
    return {
        "trace_id": TRACE,
        "span_id": "00f067aa0ba902b7",
        "name": "llm_request",
        "service.name": "vllm-server",
        "attributes": {"gen_ai.request.id": request_id, **given},
    }


def client_span(seconds: float, message: str | None = None, **attributes: object) -> dict[str, object]:
    status = {"status": "ERROR", "status_message": message} if message else {"status": "OK"}
    return {
        "trace_id": TRACE,
        "span_id": "b7ad6b7169203331",
        "name": "chat.completions.create",
        "service.name": "client-app",
        "duration_s": seconds,
        **status,
        "attributes": {"gen_ai.request.model": "qwen3-32b", **attributes},
    }


def spans(*given: dict[str, object]) -> str:
    return "[\n" + ",\n".join(json.dumps(span) for span in given) + "\n]\n"


def otlp_span(
    clock: str, seconds: float, *, name: str = "llm_request", span_id: str = "00f067aa0ba902b7", kind: int = 2, **attributes: object
) -> str:
    """One span as OTLP JSON, with its instants."""
    begin, end = (round(seconds_after(clock, offset).timestamp() * 1e9) for offset in (0, seconds))
    typed = {str: "stringValue", int: "intValue", float: "doubleValue", bool: "boolValue"}
    span = {
        "traceId": TRACE,
        "spanId": span_id,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(end),
        "attributes": [
            {"key": key, "value": {typed[type(value)]: str(value) if type(value) is int else value}} for key, value in attributes.items()
        ],
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "vllm"}}]}
    document = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "vllm.tracing.otel"}, "spans": [span]}]}]}
    return json.dumps(document) + "\n"


NGINX_504 = """HTTP/1.1 504 Gateway Time-out
Server: nginx/1.25.3
Content-Type: text/html

<html>
<head><title>504 Gateway Time-out</title></head>
<body><center><h1>504 Gateway Time-out</h1></center><hr><center>nginx/1.25.3</center></body>
</html>
"""

TRACEBACK = (
    core("10:31:07", "EngineCore encountered a fatal error."),
    core("10:31:07", "Traceback (most recent call last):"),
    core("10:31:07", '  File "/usr/lib/python3/vllm/v1/engine/core.py", line 1503, in run_engine_core'),
    core("10:31:07", "    engine_core.run_busy_loop()"),
    core("10:31:07", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    log("10:31:08", "AsyncLLM output_handler failed.", level="ERROR", source="async_llm.py:480"),
    log("10:31:08", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        level="ERROR", source="async_llm.py:480"),
)  # fmt: skip


LIMIT_400 = "This model's maximum context length is {limit} tokens. However, your request has {asked} input tokens. Please reduce the length of the input messages."
QUEUED = engine_span(queue=41.2, prefill=0.3, decode=2.5, e2e=44.1, prompt_tokens=400, completion_tokens=90)
