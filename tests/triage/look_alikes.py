# ruff: noqa: E501  (lines as programs print them)
"""What only looks like one of the causes: nothing here may be named."""

import json

import incident_texts as t
from incident_shape import Incident

UNNAMED = [
    Incident(
        "a scanner's 401 and 404 among answers of 200",
        {
            "server.log": t.lines(
                *(t.access() for _ in range(20)),
                t.access("GET /v1/models", "401 Unauthorized", "203.0.113.9:5012"),
                t.access("GET /.git/config", "404 Not Found", "203.0.113.9:5013"),
                t.access("POST /v1/chat/completions", "401 Unauthorized", "203.0.113.9:5014"),
                t.stats("10:00:00", running=2, waiting=0),
                *(t.access() for _ in range(20)),
            )
        },
    ),
    Incident(
        "v1 twice in the base url",
        {
            "curl.txt": t.answer(
                "404 Not Found",
                '{"detail":"Not Found"}',
                asked='curl -i http://llm:8000/v1/v1/chat/completions -d \'{"model":"qwen3-32b"}\'',
            ),
            "server.log": t.lines(t.access("POST /v1/v1/chat/completions", "404 Not Found"), t.access("GET /v1/models")),
        },
        label="route-wrong-path",
    ),
    Incident(
        "a name that the list of models shows is not a wrong name",
        {
            "out.txt": t.answer("404 Not Found", t.error("The model `qwen3-32b` does not exist.", "NotFoundError", 404, "model")),
            "models.json": json.dumps(
                {
                    "request": {"method": "GET", "path": "/v1/models"},
                    "status": 200,
                    "headers": [],
                    "body": json.dumps({"object": "list", "data": [{"id": "qwen3-32b", "object": "model", "max_model_len": 16384}]}),
                }
            ),
        },
    ),
    Incident(
        "the model cannot do the length either",
        {
            "answer.txt": t.answer(
                "400 Bad Request", t.error(t.LIMIT_400.format(limit=40960, asked=90000), "BadRequestError", 400, "input_tokens")
            ),
            "config.json": json.dumps({"model_type": "qwen3", "max_position_embeddings": 40960}),
            "serve.args": "vllm serve Qwen/Qwen3-32B --max-model-len 40960\n",
        },
        label="context-length-client-overflow",
    ),
    Incident(
        "the configurations of two models, and nobody says which refused",
        {
            "answer.txt": t.answer(
                "400 Bad Request", t.error(t.LIMIT_400.format(limit=16384, asked=30000), "BadRequestError", 400, "input_tokens")
            ),
            "a/config.json": json.dumps({"model_type": "qwen3", "max_position_embeddings": 16384}),
            "b/config.json": json.dumps({"model_type": "llama", "max_position_embeddings": 131072}),
        },
    ),
    Incident(
        "a short prompt and a greedy max_tokens",
        {
            "answer.txt": t.answer(
                "400 Bad Request",
                t.error(
                    "'max_tokens' or 'max_completion_tokens' is too large: 60000. This model's maximum context length is 16384 tokens and your request has 300 input tokens (60000 > 16384 - 300).",
                    "BadRequestError",
                    400,
                    "max_tokens",
                ),
            ),
            "config.json": json.dumps({"model_type": "qwen3", "max_position_embeddings": 131072}),
        },
        label="context-length-client-overflow",
    ),
    Incident(
        "a user pressed stop in the middle of the stream",
        {
            "trace.json": t.spans(
                t.client_span(7.3, "AbortError: The user aborted a request.", timeout_s=600),
                t.engine_span("chatcmpl-7d0c", queue=0.01, prefill=0.2, completion_tokens=88, finish_reason="abort"),
            ),
            "server.log": t.lines(
                t.stats("09:12:05", running=3, waiting=0), t.log("09:12:20", "Aborted request(s) chatcmpl-7d0c.", source="async_llm.py:652")
            ),
        },
    ),
    Incident(
        "an orderly stop that prints the words of a crash",
        {
            "engine.log": t.lines(
                t.stats("10:31:00", running=1, waiting=0),
                t.log("10:31:05", "[shutdown] API server: shutdown triggered", source="launcher.py:260"),
                t.log(
                    "10:31:05",
                    "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
                    level="WARNING",
                    source="core_client.py:817",
                ),
                t.log("10:31:06", "AsyncLLM output_handler failed.", level="ERROR", source="async_llm.py:480"),
                "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
                t.access(answer="500 Internal Server Error"),
                "(APIServer pid=1) INFO:     Application shutdown complete.",
            )
        },
    ),
    Incident(
        "requests wait and none runs",
        {
            "trace.json": t.spans(t.QUEUED),
            "engine.log": t.lines(*(t.stats(f"10:20:{s}0", running=0, waiting=1, kv=0.0, prompt=0.0, generation=0.0) for s in range(6))),
        },
    ),
    Incident(
        "an engine that stands still, told by its log alone",
        {
            "trace.json": t.spans(t.QUEUED),
            "engine.log": t.lines(
                *(t.stats(f"10:20:{s}0", running=14, waiting=w, prompt=0.0, generation=0.0) for s, w in enumerate((3, 5, 9, 13, 18, 22)))
            ),
        },
    ),
    Incident(
        "a gateway's 504 at sixty seconds",
        {
            "curl.txt": t.NGINX_504,
            "trace.json": t.spans(t.client_span(60.0, "openai.InternalServerError: Error code: 504", **{"http.response.status_code": 504})),
            "engine.log": t.lines(t.stats("10:20:00", running=3, waiting=0), t.stats("10:21:00", running=3, waiting=0)),
        },
    ),
    Incident(
        "499 lines of nginx",
        {
            "access.log": t.lines(
                *(
                    f'10.0.0.{n} - - [18/Nov/2026:10:20:{n} +0000] "POST /v1/chat/completions HTTP/1.1" 499 0 "-" "OpenAI/Python 1.109.1" rt={n}.002 urt=-'
                    for n in range(10, 20)
                )
            ),
            "engine.log": t.lines(t.stats("10:20:00", running=3, waiting=0), t.access()),
        },
    ),
    Incident(
        "a 401 of a reverse proxy that says nothing of a key",
        {
            "out.txt": t.answer(
                "401 Unauthorized",
                "<html><head><title>401 Authorization Required</title></head></html>",
                headers=("Server: nginx", "Content-Type: text/html"),
            )
        },
    ),
    Incident(
        "one answer of 200 from an engine whose health says it is dead",
        {
            "ok.json": json.dumps(
                {"request": {"method": "POST", "path": "/v1/chat/completions"}, "status": 200, "headers": [], "body": "{}", "elapsed": 0.1}
            ),
            "health.json": json.dumps(
                {"request": {"method": "GET", "path": "/health"}, "status": 503, "headers": [], "body": "", "elapsed": 0.1}
            ),
        },
    ),
    Incident(
        "a healthy trace beside a balancer's log that cut another request",
        {
            "trace.json": t.spans(t.engine_span(queue=0.01, prefill=0.2, decode=1.5, e2e=1.8, completion_tokens=90, finish_reason="stop")),
            "alb.log": 'https 2026-11-18T08:31:20.114Z app/x/1 10.1.2.33:44120 10.1.9.8:4000 0.001 60.002 -1 504 - 2210 334 "POST https://llm.example:443/v1/chat/completions HTTP/1.1" "x"\n',
        },
        label="gateway-idle-timeout",
    ),
    Incident(
        "a healthy trace beside an engine that held its memory once with nobody there",
        {
            "trace.json": t.spans(t.engine_span(queue=0.01, prefill=0.2, decode=1.5, e2e=1.8, completion_tokens=90, finish_reason="stop")),
            "m1.prom": t.scrape("01:00:00", num_requests_running=0.0, num_requests_waiting=0.0, kv_cache_usage_perc=0.91),
        },
    ),
    Incident(
        "a client's timeout of unknown hour, and a day's log with a line in its first minute",
        {
            "trace.json": t.spans(t.client_span(25.0, "httpx.ReadTimeout: The read operation timed out", timeout_s=25)),
            "engine.log": t.lines(
                *(t.stats(f"08:00:{s}0", running=8, waiting=30) for s in range(6)),
                *(t.stats(f"{h}:00:00", running=2, waiting=0) for h in range(10, 20)),
            ),
        },
    ),
    Incident(
        "a prompt that quotes a crash",
        {
            "engine.log": t.lines(
                "INFO 11-18 10:00:00 [logger.py:39] Received request cmpl-1-0: prompt: 'EngineCore encountered a fatal error.\\nvllm.v1.engine.exceptions.EngineDeadError: help', params: SamplingParams(n=1, max_tokens=10), prompt_token_ids: None, lora_request: None.",
                "INFO 11-18 10:00:02 [loggers.py:118] Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%",
                'INFO:     10.8.0.5:41482 - "POST /v1/completions HTTP/1.1" 200 OK',
            )
        },
        never_said=("fatal error",),
    ),
    Incident(
        "eight workers that wait for a compiler",
        {
            "engine.log": t.lines(
                t.started("10:00:00"),
                *(
                    t.core(
                        f"10:0{m}:00",
                        "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation).",
                        "INFO",
                    )
                    for m in range(1, 9)
                ),
            )
        },
    ),
    Incident(
        "a log that simply ends",
        {"engine.log": t.lines(t.started("10:00:00"), t.ready(), *(t.stats(f"10:0{m}:00", running=3, waiting=0) for m in range(1, 9)))},
        label="no-incident",
    ),
    Incident(
        "a port that somebody else has",
        {
            "engine.log": t.lines(
                t.started("10:00:00"),
                "Traceback (most recent call last):",
                '  File "/usr/bin/vllm", line 8, in <module>',
                "OSError: [Errno 98] Address already in use",
            )
        },
        label="engine-start-failed",
    ),
    Incident(
        "a prompt that took the engine the whole of the client's patience",
        {
            "trace.json": t.spans(
                t.client_span(60.0, "httpx.ReadTimeout: The read operation timed out", timeout_s=60),
                t.engine_span("chatcmpl-7d0c", queue=0.02, prefill=71.0, decode=0.4, prompt_tokens=98000, completion_tokens=1),
            ),
            "engine.log": t.lines(*(t.stats(f"10:20:{s}0", running=1, waiting=0, prompt=1370.0, generation=0.0) for s in range(6))),
        },
        label="slow-prefill-long-prompt",
    ),
]
