"""The rungs of attaching lensd to an engine that runs already, as data: what each adds, from which source, and the line that adds it.

`docs/coverage.md` is made from this module and the runbooks' `needs` by `tools/docs.py`, which has the standard library only: so has this.
"""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote


class Rung(NamedTuple):
    """`key` orders them; rung 3 has two parts, of which the first may stand alone."""

    key: str
    name: str
    collector: str  # who writes what it gives
    adds: str  # for people, after "adds"
    requests: str  # which requests it shows
    stages: dict[str, str]  # stage -> the word in `{stage}_source`; "frontend" is the first part of prefill
    ids: tuple[str, ...]  # what `lensd diagnose` finds a request by
    gives: tuple[str, ...]  # columns that have values from here on
    since: tuple[int, ...]  # first vLLM of which this holds
    line: str  # the line that adds it: fields {engine} {attributes} {otlp} {token_file} {url}
    where: str  # what the line belongs into


RUNGS: Final = (
    Rung(
        key="0",
        name="scrape of /metrics",
        collector="the agent's scrape",
        adds="load, KV cache and reach of the engine: causes that hold for the engine as a whole",
        requests="none",
        stages={},
        ids=(),
        gives=(
            "engine_samples.running",
            "engine_samples.waiting",
            "engine_samples.waiting_capacity",
            "engine_samples.waiting_deferred",
            "engine_samples.kv_usage",
            "engine_samples.preemptions_total",
            "engine_samples.prompt_tokens_total",
            "engine_samples.generation_tokens_total",
            "engine_samples.prefix_queries_total",
            "engine_samples.prefix_hits_total",
            "engine_samples.finished_total",
            "engine_samples.aborted_total",
            "engine_samples.retracted_total",
            "engine_samples.rejected_total",
            "engine_samples.spec_drafted_total",
            "engine_samples.spec_accepted_total",
            "engine_samples.up",
            "engine_samples.start_at",
            "events.name",
            "config_facts.value",
            "points.name",
            "points.value",
            "points.buckets",
            "points.counts",
        ),
        since=(0, 6),
        line="lensd attach {url}",
        where="shell",
    ),
    Rung(
        key="1",
        name="engine log",
        collector="the agent's tail of the log",
        adds="starts, stops, deaths and errors in the engine's own words",
        requests="none; ids that vLLM writes with --enable-log-requests are kept, without times",
        stages={},
        ids=(),
        gives=("events.line", "events.fields", "engine_samples.prompt_tps", "engine_samples.generation_tps"),
        since=(0, 6),
        line='log = "/var/log/vllm.log"',
        where="the engine's entry in lensd.toml, and vLLM's output into that file: vllm serve ... >> /var/log/vllm.log 2>&1",
    ),
    Rung(
        key="2",
        name="vLLM's own spans",
        collector="vLLM itself",
        adds="front end, queue, prefill and decode of each request, and its id",
        requests="those that ended by themselves; none for a caller that left, a refusal, or a request that died with the engine",
        stages={"queue": "llm_request", "prefill": "llm_request", "decode": "llm_request", "frontend": "llm_request"},
        ids=("chatcmpl-ID, cmpl-ID-0 as vLLM calls it", "ID where the caller sent it as X-Request-Id", "trace id"),
        gives=(
            "subjects.request_id",
            "subjects.engine_request_id",
            "subjects.outcome",
            "subjects.total_ms",
            "subjects.frontend_ms",
            "subjects.queue_ms",
            "subjects.prefill_ms",
            "subjects.decode_ms",
            "subjects.ttft_ms",
            "subjects.tpot_ms",
            "subjects.prompt_tokens",
            "subjects.completion_tokens",
            "subjects.max_tokens",
            "spans.name",
        ),
        since=(0, 10, 2),
        line="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf "
        'OTEL_EXPORTER_OTLP_TRACES_HEADERS="authorization=Bearer%20$(cat {token_file})" '
        "OTEL_RESOURCE_ATTRIBUTES={attributes} vllm serve ... --otlp-traces-endpoint {otlp}/v1/traces",
        where="shell",
    ),
    Rung(
        key="3a",
        name="plugin",
        collector="lensd_collectors.vllm.plugin",
        adds="preemptions, cached tokens and finish reason beside the stages",
        requests="those that ended by themselves",
        stages={"queue": "plugin", "prefill": "plugin", "decode": "plugin"},
        ids=("chatcmpl-ID, cmpl-ID-0 as vLLM calls it", "ID where the caller sent it as X-Request-Id"),
        gives=(
            "subjects.preemptions",
            "subjects.cached_tokens",
            "subjects.finish_reason",
        ),
        since=(0, 22),
        line="pip install lensd && LENSD_OTLP={otlp} LENSD_TOKEN_FILE={token_file} LENSD_ENGINE={engine} vllm serve ...",
        where="shell in vLLM's own Python environment",
    ),
    Rung(
        key="3b",
        name="middleware",
        collector="lensd_collectors.vllm.middleware",
        adds="every request to the engine with its end: refused, cut, left by its caller, still open; front end and streaming",
        requests="all that reach the engine, also refused, left and open ones",
        stages={"frontend": "middleware", "streaming": "middleware"},
        ids=("chatcmpl-ID, cmpl-ID-0 as vLLM calls it", "X-Request-Id, which it makes where there is none", "trace id"),
        gives=(
            "subjects.status",
            "subjects.decision",
            "subjects.said_by",
            "subjects.error_code",
            "subjects.route",
            "subjects.model",
            "subjects.streaming",
            "subjects.client_timeout_ms",
            "subjects.max_gap_ms",
            "subjects.chunks",
            "subjects.bytes_sent",
            "subjects.done_seen",
            "subjects.session_id",
            "events.request_id",
        ),
        since=(0, 6),
        line="pip install lensd && LENSD_OTLP={otlp} LENSD_TOKEN_FILE={token_file} LENSD_ENGINE={engine} "
        "vllm serve ... --middleware lensd_collectors.vllm.middleware.LensdMiddleware",
        where="shell in vLLM's own Python environment",
    ),
    Rung(
        key="4",
        name="log or spans of the proxy in front",
        collector="the agent's tail of the proxy's log, or the proxy's own spans",
        adds="what nginx, Envoy or LiteLLM answered, and after how long",
        requests="as before",
        stages={},
        ids=(),
        gives=(
            "http_exchanges.status",
            "http_exchanges.method",
            "http_exchanges.path",
            "http_exchanges.duration_ms",
            "http_exchanges.ttfb_ms",
            "http_exchanges.bytes",
            "http_exchanges.peer",
            "http_exchanges.upstream",
            "http_exchanges.upstream_status",
            "http_exchanges.received_bytes",
            "http_exchanges.error_code",
        ),
        since=(0, 6),
        line='access_logs = [{{ log = "/var/log/nginx/access.log", kind = "nginx" }}]',
        where="[agent] of lensd.toml",
    ),
    Rung(
        key="5",
        name="lensd gateway",
        collector="lensd_collectors.gateway",
        adds="keys, limits and routes, and the time before the engine: all but the caller's own side",
        requests="all that reach the gateway",
        stages={"auth_routing": "gateway", "streaming": "gateway"},
        ids=("X-Request-Id, which it makes where there is none and echoes on every reply",),
        gives=(
            "subjects.key_id",
            "subjects.upstream",
            "subjects.attempts",
            "subjects.timeout_ms",
            "subjects.timeout_kind",
            "subjects.structured",
        ),
        since=(0, 6),
        line='upstreams = [{{ name = "{engine}", url = "{url}" }}]',
        where="[gateway] of lensd.toml, then `lensd up`, and callers at the gateway's address",
    ),
)

HOST: Final = Rung(
    key="host",
    name="agent on the engine's host",
    collector="the agent's samplers",
    adds="the host's GPUs and the memory of its processes: no step of the ladder, at any rung",
    requests="as before",
    stages={},
    ids=(),
    gives=(
        "gpu_samples.gpu",
        "gpu_samples.used_bytes",
        "gpu_samples.free_bytes",
        "gpu_samples.total_bytes",
        "gpu_samples.reserved_bytes",
        "gpu_samples.util",
        "gpu_samples.mem_util",
        "gpu_samples.sm_mhz",
        "gpu_samples.sm_max_mhz",
        "gpu_samples.throttle",
        "gpu_samples.temp_c",
        "gpu_samples.temp_slowdown_c",
        "gpu_samples.power_w",
        "gpu_samples.power_limit_w",
        "gpu_samples.ecc",
        "gpu_samples.ecc_corrected",
        "gpu_samples.xid",
        "gpu_samples.retired_pages",
        "gpu_samples.remapped_rows",
        "gpu_samples.remap_pending",
        "gpu_samples.remap_failed",
        "gpu_samples.pcie_gen",
        "gpu_samples.pcie_width",
        "gpu_samples.pcie_replays",
        "gpu_samples.unified",
        "gpu_samples.mig",
        "gpu_samples.pid",
        "gpu_samples.pid_engine",
        "gpu_samples.pid_used_bytes",
        "gpu_samples.process",
        "gpu_samples.rss_bytes",
    ),
    since=(0, 6),
    line="lensd agent",
    where="shell on the GPU's host, with the engine among `agent.engines` of its lensd.toml",
)
"""What a GPU, its driver or a container's limits do not tell stays without a value there too."""

CLIENT: Final = Rung(
    key="client",
    name="instrumentation of the caller",
    collector="lensd_collectors.client, or any OpenTelemetry client span",
    adds="the caller's own side of each request: no step of the ladder, at any rung that has ids",
    requests="as before",
    stages={"client": "client"},
    ids=(),
    gives=("subjects.client_ms", "subjects.client_exclusive_ms"),
    since=(0, 6),
    line="lensd_collectors.client.instrument()",
    where="the calling application, at its start",
)
BESIDE: Final = (HOST, CLIENT)
"""What may be there at any rung, and is a step of none."""

NOTES: Final = (
    "The client stage is seen at any rung that has ids, where the caller is instrumented: `lensd_collectors.client.instrument()`, or any "
    "OpenTelemetry client span.",
    "Of a request that vLLM itself says nothing of (refused, left by its caller, open, lost with the engine), what middleware or gateway "
    "saw is there, and queue, prefill and decode are estimated from the scrapes of those seconds and marked so.",
    "At rung 3b the time of a refused request is auth/routing, from the middleware; of a served one it is not observed below rung 5.",
    "What dies with vLLM's whole process in its first 30 s is told by nobody behind it: a gateway or a client saw it.",
    "What passes before the middleware's first line (HTTP parsing, waiting for the event loop) is seen by a gateway or a client only.",
    "Processes and GPUs are watched at every rung where the agent runs on the engine's host; elsewhere a death is told by the log, or is "
    "as possible as an orderly stop, and nothing is known of its GPUs but what an exporter of theirs tells.",
    "With the Rust front end (`VLLM_USE_RUST_FRONTEND=1`) rungs 2 and 3 are not to be had. Before vLLM 0.10.2 there are no such spans "
    "of requests, before 0.22 the plugin is told no ids.",
    "`--disable-log-stats` takes the metrics away, and with `--otlp-traces-endpoint` vLLM ends at its first finished request.",
)
TOKEN_FILE: Final = "~/.local/share/lensd/token"
OTLP: Final = "http://127.0.0.1:4318"


def rung(key: str) -> Rung:
    return next(each for each in RUNGS if each.key == key)


def below(key: str) -> list[Rung]:
    """The rungs up to this one, it included."""
    keys = [each.key for each in RUNGS]
    return list(RUNGS[: keys.index(key) + 1])


def line(
    key: str, *, engine: str = "NAME", otlp: str = OTLP, token_file: str | Path = TOKEN_FILE, url: str = "", keep_attributes: bool = False
) -> str:
    """The line that adds a rung. `keep_attributes`: vLLM has resource attributes already, to which the engine's name is added.

    The token is named by its file and never written out.
    """
    path = str(token_file) if str(token_file).startswith("~/") else shlex.quote(str(token_file))
    named = f"lensd.engine={quote(engine, safe=':._-')}"
    attributes = f'"$OTEL_RESOURCE_ATTRIBUTES,{named}"' if keep_attributes else named
    in_toml = key in ("1", "4", "5")
    name = engine.replace("\\", "\\\\").replace('"', '\\"') if in_toml else shlex.quote(engine)
    return rung(key).line.format(engine=name, attributes=attributes, otlp=otlp, token_file=path, url=url)


class Claim(NamedTuple):
    """What a runbook says of when it can be told: `rung`, HOST's key for any rung with it, is the first from which it is claimed."""

    needs: Iterable[str] = ()
    needs_any: Iterable[Iterable[str]] = ()
    live: bool = True  # False: only files tell what it needs
    rung: str | None = None
    rung_because: str | None = None


Needs = Mapping[str, Claim]
"""By runbook id."""


def claimed(on: Iterable[Rung], needs: Needs) -> list[str]:
    """The runbooks whose evidence is there with these rungs, those of BESIDE among them or not."""
    rungs = list(on)
    keys = [each.key for each in RUNGS]
    given = {column for each in rungs for column in each.gives}
    highest = max((keys.index(each.key) for each in rungs if each not in BESIDE), default=-1)

    def met(claim: Claim) -> bool:
        choices = [set(map(_as_given, group)) for group in claim.needs_any]
        return set(map(_as_given, claim.needs)) <= given and (not choices or any(choice <= given for choice in choices))

    def held_back(key: str | None) -> bool:
        return key is not None and (HOST not in rungs if key == HOST.key else keys.index(key) > highest)

    return sorted(name for name, claim in needs.items() if claim.live and met(claim) and not held_back(claim.rung))


def first(name: str, needs: Needs) -> tuple[str, tuple[str, ...]] | None:
    """The lowest rung from which on a runbook is claimed, and with what of BESIDE; None where nothing gives what it needs."""
    for beside in ((), (HOST,), (CLIENT,), BESIDE):
        for each in RUNGS:
            if name in claimed((*below(each.key), *beside), needs):
                return each.key, tuple(other.key for other in beside)
    return None


def first_in_words(name: str, needs: Needs) -> str:
    """ "3b", "0 and host"; empty where nothing gives what it needs."""
    found = first(name, needs)
    return " and ".join((found[0], *found[1])) if found is not None else ""


def writers(column: str) -> list[Rung]:
    """The rungs from which a column has values, those of BESIDE last."""
    return [each for each in (*RUNGS, *BESIDE) if _as_given(column) in each.gives]


def _as_given(column: str) -> str:
    """What is known of the requests that are judged is known of all others."""
    return column.replace("requests.", "subjects.", 1)


def stages(on: Iterable[Rung]) -> dict[str, str]:
    """Stage -> the source its time is taken from with these rungs; "frontend" beside the six. Later rungs are better sources."""
    rungs = list(on)
    found: dict[str, str] = {}
    for each in rungs:
        found |= each.stages
    if "prefill" not in found:
        found.pop("frontend", None)  # it is what is left of the time to the first token
        if any(each.key in ("3b", "5") for each in rungs):
            found |= dict.fromkeys(("queue", "prefill", "decode"), "estimate")
    return found
