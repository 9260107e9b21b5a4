# ruff: noqa: E501  (lines as programs print them)
"""Small incidents that happened to nobody in particular, whose cause must be named."""

import json

import incident_texts as t
from incident_shape import Incident

NAMED = [
    Incident(
        "a line of forty behind eight slots",
        {
            "vllm.log": t.lines(
                t.started("10:00:00"),
                t.ready(),
                *(t.stats(f"10:20:{s}0", running=8, waiting=w) for s, w in ((0, 11), (1, 22), (2, 37), (3, 40), (4, 38))),
                t.access(),
            ),
            "spans.json": t.otlp_span(
                "10:20:02",
                44.1,
                **{
                    "gen_ai.request.id": "chatcmpl-81ab",
                    "gen_ai.latency.time_in_queue": 41.2,
                    "gen_ai.latency.time_in_model_prefill": 0.31,
                    "gen_ai.latency.time_in_model_decode": 2.51,
                    "gen_ai.latency.e2e": 44.1,
                    "gen_ai.usage.completion_tokens": 90,
                },
            ),
        },
        "queue-saturation",
        "queue",
        ("Running: 8 reqs, Waiting: 40 reqs", "gen_ai.latency.time_in_queue"),
    ),
    Incident(
        "an impatient client, known to the engine's log by its id",
        {
            "trace.json": t.spans(
                t.client_span(20.0, "httpx.ReadTimeout: The read operation timed out", timeout_s=20),
                t.engine_span("chatcmpl-7d0c", queue=0.02, prefill=0.4, completion_tokens=310, finish_reason="abort"),
            ),
            "server.log": t.lines(
                t.log(
                    "09:12:00",
                    "Received request chatcmpl-7d0c: params: SamplingParams(n=1, max_tokens=4096), lora_request: None.",
                    source="logger.py:47",
                ),
                t.stats("09:12:05", running=3, waiting=0),
                t.stats("09:12:15", running=3, waiting=0),
                t.log("09:12:20", "Aborted request(s) chatcmpl-7d0c-1a2b3c4d.", source="async_llm.py:652"),
                t.stats("09:12:25", running=2, waiting=0),
            ),
        },
        "client-read-timeout-too-short",
        "client",
        ("timeout_s", "Aborted request(s) chatcmpl-7d0c", '"gen_ai.usage.completion_tokens": 310'),
    ),
    Incident(
        "LiteLLM has never seen the key",
        {
            "curl.txt": t.answer(
                "401 Unauthorized",
                t.error(
                    "Authentication Error, Invalid proxy server token passed. Unable to find token in cache or `LiteLLM_VerificationTokenTable`",
                    "token_not_found_in_db",
                    "401",
                    "key",
                ),
                asked="curl -i https://llm.example/v1/chat/completions -H 'Authorization: Bearer sk-xxxx' -d '{\"model\":\"qwen3-32b\"}'",
            )
        },
        "auth-wrong-key",
        "auth_routing",
        ("token_not_found_in_db",),
    ),
    Incident(
        "a key left in the environment of an engine that was to have none",
        {
            "start.sh": "export VLLM_API_KEY=changeme\nvllm serve Qwen/Qwen3-32B --max-model-len 8192\n",
            "refused.txt": t.answer("401 Unauthorized", '{"error":"Unauthorized"}'),
            "server.log": t.lines(
                t.access("GET /health"),
                t.access(answer="401 Unauthorized"),
                t.access("GET /v1/models", "401 Unauthorized"),
                t.access("GET /metrics"),
            ),
        },
        "auth-wrong-key",
        "auth_routing",
        ("VLLM_API_KEY=changeme", '"POST /v1/chat/completions HTTP/1.1" 401 Unauthorized', '"GET /health HTTP/1.1" 200 OK'),
    ),
    Incident(
        "LiteLLM: the team's key may not use this model",
        {
            "resp.json": json.dumps(
                {
                    "request": {
                        "method": "POST",
                        "path": "/v1/chat/completions",
                        "headers": {},
                        "body": '{"model": "llama-70b", "max_tokens": 5}',
                    },
                    "status": 401,
                    "headers": [["content-type", "application/json"]],
                    "body": t.error(
                        "team not allowed to access model. This team can only access models=['qwen3-32b']. Tried to access llama-70b",
                        "team_model_access_denied",
                        "401",
                        "model",
                    ),
                },
                indent=1,
            ),
            "proxy.log": t.lines(
                'INFO:     10.7.3.3:40100 - "GET /health/liveliness HTTP/1.1" 200 OK',
                'INFO:     10.7.3.3:40118 - "GET /v1/models HTTP/1.1" 200 OK',
                'INFO:     10.7.3.3:40120 - "POST /v1/chat/completions HTTP/1.1" 401 Unauthorized',
            ),
        },
        "auth-key-scope-denied",
        "auth_routing",
        ("team_model_access_denied", "Tried to access llama-70b", '"GET /v1/models HTTP/1.1" 200 OK'),
    ),
    Incident(
        "a name with the wrong case",
        {
            "out.txt": t.answer(
                "404 Not Found",
                t.error("The model `qwen3-32B` does not exist. Valid aliases: qwen3-32b.", "NotFoundError", 404, "model"),
                asked='curl -si $BASE/v1/chat/completions -d \'{"model":"qwen3-32B","messages":[]}\'',
            ),
            "args.txt": "vllm serve /srv/Qwen3-32B --served-model-name qwen3-32b\n",
        },
        "route-wrong-model-name",
        "auth_routing",
        ("The model `qwen3-32B` does not exist", "--served-model-name qwen3-32b"),
    ),
    Incident(
        "sixteen thousand allowed where the model can do forty",
        {
            "engine.log": t.lines(
                t.started("10:00:00"),
                t.log("10:00:01", "non-default args: {'model_tag': '/srv/Qwen3-32B', 'max_model_len': 16384}", source="utils.py:233"),
                t.log("10:00:02", "Using max model len 16384", source="model.py:1510"),
                t.ready(),
                t.access(answer="400 Bad Request"),
            ),
            "config.json": json.dumps(
                {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40960, "model_type": "qwen3"}, indent=2
            ),
            "answer.txt": t.answer(
                "400 Bad Request", t.error(t.LIMIT_400.format(limit=16384, asked=30211), "BadRequestError", 400, "input_tokens")
            ),
        },
        "context-length-server-limit-low",
        "auth_routing",
        ("maximum context length is 16384 tokens", '"max_position_embeddings": 40960', "16384"),
    ),
    Incident(
        "a crash in the middle of the day, and a second start that serves",
        {
            "engine.log": t.lines(
                t.started("09:00:00"),
                t.ready(),
                t.stats("10:31:00", running=5, waiting=0),
                *t.TRACEBACK,
                t.access(answer="500 Internal Server Error"),
                t.started("10:32:30"),
                t.ready(),
                t.access(),
                t.stats("10:40:00", running=4, waiting=0),
            )
        },
        "engine-crash",
        "engine",
        ("EngineCore encountered a fatal error", "Application startup complete."),
    ),
    Incident(
        "a worker killed from outside",
        {
            "engine.log": t.lines(
                t.stats("10:31:00", running=5, waiting=0),
                t.core("10:31:05", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."),
                t.access(answer="500 Internal Server Error"),
            )
        },
        "engine-crash",
        "engine",
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: -9)",),
    ),
    Incident(
        "a stream that began with 200 and ended with the engine's death",
        {
            "stream.txt": t.lines(
                "HTTP/1.1 200 OK",
                "content-type: text/event-stream; charset=utf-8",
                "",
                'data: {"id":"chatcmpl-9","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}',
                "",
                'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, "code": 500}}',
                "",
                "data: [DONE]",
            )
        },
        "engine-crash",
        "engine",
        ("EngineCore encountered an issue",),
    ),
    Incident(
        "one replica was stopped in order, another crashed five minutes later",
        {
            "replica-0.log": t.lines(
                t.stats("10:25:00", running=0, waiting=0),
                t.log("10:26:00", "[shutdown] API server: shutdown triggered", source="launcher.py:260"),
                "(APIServer pid=1) INFO:     Shutting down",
            ),
            "replica-1.log": t.lines(t.stats("10:31:00", running=5, waiting=0), *t.TRACEBACK, t.access(answer="500 Internal Server Error")),
        },
        "engine-crash",
        "engine",
        ("EngineCore encountered a fatal error",),
    ),
    Incident(
        "an engine that stands still while a client waits",
        {
            "trace.json": t.spans(t.client_span(30.0, "httpx.ReadTimeout: The read operation timed out", timeout_s=30)),
            "m1.prom": t.scrape(
                "10:20:00", num_requests_running=14.0, num_requests_waiting=2.0, generation_tokens_total=812.0, prompt_tokens_total=9000.0
            ),
            "m2.prom": t.scrape(
                "10:24:00", num_requests_running=14.0, num_requests_waiting=9.0, generation_tokens_total=812.0, prompt_tokens_total=9000.0
            ),
            "engine.log": t.lines(
                *(t.stats(f"10:2{m}:00", running=14, waiting=2 * m, prompt=0.0, generation=0.0) for m in range(5)), t.access("GET /health")
            ),
        },
        label="engine-silent-stall",
        stage="engine",
    ),
    Incident(
        "a line that is there because running requests are thrown out",
        {
            "trace.json": t.spans(t.QUEUED),
            "m1.prom": t.scrape(
                "10:20:00",
                num_requests_running=22.0,
                num_requests_waiting=4.0,
                kv_cache_usage_perc=0.97,
                num_preemptions_total=3.0,
                generation_tokens_total=1000.0,
            ),
            "m2.prom": t.scrape(
                "10:21:00",
                num_requests_running=19.0,
                num_requests_waiting=9.0,
                kv_cache_usage_perc=0.99,
                num_preemptions_total=161.0,
                generation_tokens_total=3000.0,
            ),
            "engine.log": t.lines(*(t.stats(f"10:20:{s}0", running=20, waiting=6, kv=99.0) for s in range(6))),
        },
        label="kv-preemption-thrash",
        stage="decode",
    ),
]
