"""Every name lensd puts on the wire or reads from it: stages, outcomes, attributes, metrics and events, with type and unit.

OpenTelemetry's names where they exist, `lensd.*` where not. `docs/conventions.md` is generated from this module.
"""

from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """The six stages of a request, in the order a request passes them."""

    CLIENT = "client"
    AUTH_ROUTING = "auth_routing"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    STREAMING = "streaming"


class StageState(StrEnum):
    OK = "ok"
    SLOW = "slow"
    FAILED = "failed"
    NOT_REACHED = "not_reached"
    NOT_OBSERVED = "not_observed"


class Outcome(StrEnum):
    """How a request ended, or that it has not."""

    OK = "ok"
    REFUSED = "refused"  # answered with an error before any work was done for it
    FAILED = "failed"  # an error after the engine took it in, also inside a stream
    TIMED_OUT = "timed_out"  # a limit of ours fired
    CALLER_GONE = "caller_gone"
    CUT = "cut"  # the stream ended without its closing event
    OPEN = "open"
    LOST = "lost"  # its sender fell silent or restarted


class SaidBy(StrEnum):
    """Which party gave the status the caller saw."""

    CLIENT = "client"
    GATEWAY = "gateway"
    PROXY = "proxy"
    ENGINE = "engine"
    UNKNOWN = "unknown"


class TimeoutKind(StrEnum):
    """Which limit of the gateway fired."""

    CONNECT = "connect"
    FIRST_BYTE = "first_byte"
    IDLE = "idle"
    TOTAL = "total"


class Decision(StrEnum):
    """What was decided about a request before or instead of serving it, whoever decided it.

    The gateway sets it for its own answers; for an engine's or proxy's answer it is what the dialect says the status and
    body mean. Rules read this column, never an error text.
    """

    ALLOWED = "allowed"
    KEY_MISSING = "key_missing"
    KEY_MALFORMED = "key_malformed"
    KEY_WRONG_HEADER = "key_wrong_header"  # a key, but not in Authorization
    KEY_FOREIGN = "key_foreign"  # not ours, and of the form another provider gives out
    KEY_UNKNOWN = "key_unknown"  # an engine that answers 401 does not say which of these it was
    KEY_EXPIRED = "key_expired"
    KEY_DISABLED = "key_disabled"
    ROUTE_NOT_ALLOWED = "route_not_allowed"  # the path is served, this key may not use it
    MODEL_NOT_ALLOWED = "model_not_allowed"  # the model exists, this key may not use it
    MODEL_UNKNOWN = "model_unknown"
    PATH_UNKNOWN = "path_unknown"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    BODY_MALFORMED = "body_malformed"
    BODY_AMBIGUOUS = "body_ambiguous"  # two models are named, and parsers differ in which one they take
    BODY_TIMEOUT = "body_timeout"  # it had not arrived when the request's time was over
    MAX_TOKENS_TOO_LARGE = "max_tokens_too_large"  # for this key
    PROMPT_TOO_LONG = "prompt_too_long"  # for this key, or while the gateway sheds load
    CONTEXT_TOO_LONG = "context_too_long"  # for the model as it is served
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"  # the gateway refuses, to keep what is running alive
    GATEWAY_STOPPING = "gateway_stopping"
    GATEWAY_ERROR = "gateway_error"
    ENGINE_BUSY = "engine_busy"
    ENGINE_DEAD = "engine_dead"
    ENGINE_ERROR = "engine_error"
    UPSTREAM_CREDENTIAL_REFUSED = "upstream_credential_refused"
    NO_UPSTREAM = "no_upstream"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    CALLER_GONE = "caller_gone"


class Attribute(str):
    """A name with its type, unit and meaning; equal to the plain string."""

    kind: str
    unit: str
    meaning: str


ATTRIBUTES: Final[dict[str, Attribute]] = {}


def _attribute(name: str, kind: str, unit: str, meaning: str) -> Attribute:
    made = Attribute(name)
    made.kind, made.unit, made.meaning = kind, unit, meaning
    ATTRIBUTES[name] = made
    return made


# Resource
SERVICE_NAME = _attribute(
    "service.name", "string", "", "which of our processes sends: lensd-gateway, lensd-agent, lensd-vllm, lensd-client"
)
SERVICE_INSTANCE_ID = _attribute("service.instance.id", "string", "", "new at each start of the sender; a change means it restarted")
HOST_NAME = _attribute("host.name", "string", "", "host the sender runs on")

# Who and what
ENGINE = _attribute("lensd.engine", "string", "", "name of the engine instance, as configured; host:port of its URL by default")
ENGINE_KIND = _attribute("lensd.engine.kind", "string", "", "dialect that reads this engine: vllm, sglang, llamacpp ...")
REQUEST_ID = _attribute("lensd.request.id", "string", "", "X-Request-Id that the caller saw")
SESSION_ID = _attribute("gen_ai.conversation.id", "string", "", "session the caller names")
KEY_ID = _attribute("lensd.key.id", "string", "", "id of the API key, never the key")
UPSTREAM = _attribute("lensd.upstream", "string", "", "host:port the gateway sent the request to")
HTTP_METHOD = _attribute("http.request.method", "string", "", "")
HTTP_ROUTE = _attribute("http.route", "string", "", "path template, without query")
HTTP_STATUS = _attribute("http.response.status_code", "int", "", "status the caller got; 499 when it left first")
ERROR_TYPE = _attribute("error.type", "string", "", "machine-readable error code of a request that did not end well")
REQUEST_MODEL = _attribute("gen_ai.request.model", "string", "", "model the caller asked for")
RESPONSE_MODEL = _attribute("gen_ai.response.model", "string", "", "model that answered")
RESPONSE_ID = _attribute("gen_ai.response.id", "string", "", "id in the engine's reply: chatcmpl-..., cmpl-...")
ENGINE_REQUEST_ID = _attribute("gen_ai.request.id", "string", "", "vLLM: the engine's own request id; not unique")
FINISH_REASONS = _attribute("gen_ai.response.finish_reasons", "string[]", "", "stop, length, tool_calls ...")
INPUT_TOKENS = _attribute("gen_ai.usage.input_tokens", "int", "token", "prompt tokens")
OUTPUT_TOKENS = _attribute("gen_ai.usage.output_tokens", "int", "token", "completion tokens")
CACHED_TOKENS = _attribute("gen_ai.usage.cache_read.input_tokens", "int", "token", "prompt tokens served from the prefix cache")
MAX_TOKENS = _attribute("gen_ai.request.max_tokens", "int", "token", "completion limit the caller set")

# How the request went, as the gateway or the middleware saw it
OUTCOME = _attribute("lensd.outcome", "string", "", "see Outcome")
SAID_BY = _attribute("lensd.said_by", "string", "", "see SaidBy")
DECISION = _attribute("lensd.decision", "string", "", "what was decided about the request, see Decision")
ERROR_MESSAGE = _attribute("lensd.error.message", "string", "", "error text of the engine or the gateway, scrubbed, at most 500 characters")
IS_STREAMING = _attribute("lensd.request.streaming", "bool", "", "the caller asked for SSE")
IS_STRUCTURED = _attribute("lensd.request.structured", "bool", "", "the answer is bound to a schema or grammar")
TIMEOUT_KIND = _attribute("lensd.timeout.kind", "string", "", "which limit fired, see TimeoutKind")
TIMEOUT_MS = _attribute("lensd.timeout.ms", "double", "ms", "the limit that fired")
CLIENT_TIMEOUT_MS = _attribute(
    "lensd.client.timeout_ms", "double", "ms", "limit the caller announced (client instrumentation, x-stainless-read-timeout)"
)
ATTEMPTS = _attribute("lensd.attempts", "int", "", "upstream attempts")
ATTEMPT = _attribute("lensd.attempt", "int", "", "number of this attempt, from 1")
DISPATCHED_MODEL = _attribute(
    "lensd.request.dispatched_model", "string", "", "model the engine was asked for, where an alias or a fallback made it another"
)
REWRITTEN = _attribute("lensd.request.rewritten", "string[]", "", "what the gateway set in the body: model, max_tokens")
DEGRADED = _attribute("lensd.degraded", "string", "", "what load shedding did to the request: refuse, cap, reroute")
CHUNKS = _attribute("lensd.stream.chunks", "int", "", "SSE data events passed to the caller, without [DONE]")
BYTES_SENT = _attribute("lensd.bytes_sent", "int", "byte", "body bytes passed to the caller")
DONE_SEEN = _attribute("lensd.stream.done_seen", "bool", "", "the closing [DONE] was passed on")
MAX_GAP_MS = _attribute("lensd.stream.max_gap_ms", "double", "ms", "longest silence between two chunks")
FIRST_BYTE_MS = _attribute("lensd.upstream.first_byte_ms", "double", "ms", "from the start of the upstream span to its first body byte")
FIRST_CONTENT_MS = _attribute(
    "lensd.upstream.first_content_ms", "double", "ms", "from the start of the upstream span to the first SSE event with generated text"
)
LAST_BYTE_MS = _attribute("lensd.upstream.last_byte_ms", "double", "ms", "from the start of the upstream span to its last body byte so far")

LAST_CONTENT_MS = _attribute(
    "lensd.upstream.last_content_ms", "double", "ms", "from the start of the upstream span to the last SSE event with generated text"
)

# Events of requests still open
PROGRESS_STAGE = _attribute(
    "lensd.progress.stage", "string", "", "where the sender sees the request: auth_routing, upstream (handed over, no byte yet), streaming"
)
PROGRESS_AGE_MS = _attribute("lensd.progress.age_ms", "double", "ms", "time since the sender had the request line")
PROGRESS_STAGE_AGE_MS = _attribute("lensd.progress.stage_age_ms", "double", "ms", "time since the request entered that stage")
PROGRESS_SILENT_MS = _attribute("lensd.progress.silent_ms", "double", "ms", "time since the last byte from upstream")
PARENT_SPAN_ID = _attribute("lensd.parent_span.id", "string", "", "span id of the caller, where it sent a traceparent")

# Engine's own record of a request (plugin), seconds become milliseconds at the plugin
QUEUE_MS = _attribute("lensd.engine.queue_ms", "double", "ms", "monotonic: queued to first scheduled")
PREFILL_MS = _attribute("lensd.engine.prefill_ms", "double", "ms", "monotonic: first scheduled to first token")
DECODE_MS = _attribute("lensd.engine.decode_ms", "double", "ms", "monotonic: first to last token, re-queueing after preemption included")
E2E_MS = _attribute("lensd.engine.e2e_ms", "double", "ms", "wall clock: arrival to finish")
PREEMPTIONS = _attribute("lensd.engine.preemptions", "int", "", "times the request was evicted and recomputed")

# What the caller's own side saw
CLIENT_HEADERS_MS = _attribute("lensd.client.headers_ms", "double", "ms", "from sending to the reply's headers")
CLIENT_FIRST_CONTENT_MS = _attribute("lensd.client.first_content_ms", "double", "ms", "from sending to the first generated text")
CLIENT_MAX_GAP_MS = _attribute("lensd.client.max_gap_ms", "double", "ms", "longest silence between two reads of the reply")
CLIENT_ATTEMPT = _attribute("lensd.client.attempt", "int", "", "number of this attempt of one call, from 1")

# Logs, processes, facts
EVENT_NAME = _attribute("event.name", "string", "", "name of an OTLP log record that is an event, where the sender does not set event_name")
LOG_FILE = _attribute("log.file.path", "string", "", "file the line was read from")
LOG_LINE = _attribute("lensd.log.line", "int", "", "line number in that file, from 1")
PROCESS_PID = _attribute("process.pid", "int", "", "")
PROCESS_STATE = _attribute("lensd.process.state", "string", "", "running, exited")
PROCESS_EXIT = _attribute("process.exit.code", "int", "", "exit status; negative: ended by that signal")
CONTAINER_RESTARTS = _attribute("lensd.container.restarts", "int", "", "times the container or unit was started again")
CONTAINER_OOM_KILLED = _attribute("lensd.container.oom_killed", "bool", "", "the kernel ended it for its memory limit")
SOURCE_NAME = _attribute("lensd.source.name", "string", "", "what the agent reads or would like to: a log, kmsg, a container's state ...")
SOURCE_STATE = _attribute("lensd.source.state", "string", "", "followed, missing, denied, ended")
SOURCE_REASON = _attribute("lensd.source.reason", "string", "", "why it is not followed, in a few words")
FACT_SUBJECT = _attribute("lensd.config.subject", "string", "", "engine, gateway or host a fact is about")
FACT_NAME = _attribute("lensd.config.name", "string", "", "setting: max_model_len, max_position_embeddings, max_num_seqs ...")
FACT_VALUE = _attribute("lensd.config.value", "string", "", "its value as text")
FACT_ORIGIN = _attribute("lensd.config.origin", "string", "", "who says it: flag, effective, model, measured, derived, device")
ACT = _attribute(
    "lensd.gateway.act",
    "string",
    "",
    "what the gateway did to itself: started, draining, keys_*, credential_*, upstream_*, degrade_on|off, records_dropped",
)
LISTEN = _attribute("lensd.listen", "string", "", "HOST:PORT that a gateway serves; the same again with a new instance: it restarted")
SCRAPE_TARGET = _attribute("lensd.scrape.target", "string", "", "URL that was scraped, without credentials")

# Client span
CLIENT_REQUEST = "lensd.client.request"

# Span names
SPAN_AUTH_ROUTING = "lensd.auth_routing"
SPAN_UPSTREAM = "lensd.upstream"
SPAN_STREAMING = "lensd.streaming"
SPAN_VLLM_REQUEST = "llm_request"

# Event names (OTLP log records)
EVENT_STARTED = "lensd.request.started"
EVENT_PROGRESS = "lensd.request.progress"
EVENT_ENGINE_REQUEST = "lensd.engine.request"
EVENT_ENGINE_LOG = "lensd.engine.log"
EVENT_ENGINE_PROCESS = "lensd.engine.process"
EVENT_ENGINE_REACH = "lensd.engine.reach"  # an engine answers its scrape again, or why it does not (error.type)
EVENT_AGENT_SOURCE = "lensd.agent.source"  # a source of the agent's is followed, or why not
EVENT_CONFIG = "lensd.config"
EVENT_CONFIG_CHANGED = "lensd.config.changed"  # an engine was started with other settings than before
EVENT_GATEWAY_ACT = "lensd.gateway.act"
EVENT_GPU_STATE = "lensd.gpu.state.changed"  # a GPU is found, lost, in need of a reset, ... (lensd.gpu.state)
EVENT_GPU_XID = "gpu.xid"  # as the line of the kernel about the same fault

# Metric names of ours; an engine's own names are forwarded as they are
METRIC_UP = "up"  # 1 while the scrape target answers, else 0
GPU_METRICS: Final[dict[str, str]] = {
    # wire name -> gpu_samples column; each data point has the attributes hw.id and lensd.gpu.index
    "hw.gpu.memory.usage": "used_bytes",
    "hw.gpu.memory.free": "free_bytes",
    "hw.gpu.memory.limit": "total_bytes",
    "lensd.gpu.memory.reserved": "reserved_bytes",
    "hw.gpu.utilization": "util",
    "lensd.gpu.utilization.memory": "mem_util",
    "lensd.gpu.clock.sm": "sm_mhz",
    "lensd.gpu.clock.sm.max": "sm_max_mhz",
    "lensd.gpu.clock.event_reasons": "throttle",  # bit mask, see THROTTLE_REASONS
    "hw.temperature": "temp_c",
    "lensd.gpu.temperature.slowdown": "temp_slowdown_c",
    "hw.power": "power_w",
    "hw.power.limit": "power_limit_w",
    "lensd.gpu.ecc.uncorrected": "ecc",  # over the card's life
    "lensd.gpu.ecc.corrected": "ecc_corrected",
    "lensd.gpu.retired_pages": "retired_pages",
    "lensd.gpu.remapped_rows": "remapped_rows",
    "lensd.gpu.remap.pending": "remap_pending",
    "lensd.gpu.remap.failed": "remap_failed",
    "lensd.gpu.pcie.generation": "pcie_gen",
    "lensd.gpu.pcie.width": "pcie_width",
    "lensd.gpu.pcie.replays": "pcie_replays",
    "lensd.gpu.xid": "xid",  # with the first sample after it
    "lensd.gpu.unified": "unified",
    "lensd.gpu.process.memory": "pid_used_bytes",  # also has process.pid
}
METRIC_PROCESS_MEMORY = "process.memory.usage"  # gpu_samples.rss_bytes of a process of the host; has process.pid
METRIC_HOST_MEMORY_LIMIT = "system.memory.limit"  # gpu_samples.total_bytes of a row without GPU and process
METRIC_HOST_MEMORY_AVAILABLE = "system.linux.memory.available"  # what of the limit is not available is rss_bytes of that row
THROTTLE_REASONS = {
    # NVML's nvmlClocksEventReasons; sw_power_cap is normal at full load
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
GPU_INDEX = _attribute("lensd.gpu.index", "int", "", "the driver's index of the GPU when it was first seen")
MIG = _attribute("lensd.gpu.mig", "string", "", "instance of a GPU that is divided: gi7ci0")
GPU_PCI = _attribute("hw.gpu.pci", "string", "", "domain:bus:device of a GPU, as the kernel writes it")
GPU_STATE = _attribute("lensd.gpu.state", "string", "", "ok, lost, reset_required, failing, denied, unsupported, absent")
GPU_UNSUPPORTED = _attribute("lensd.gpu.unsupported", "string[]", "", "metrics that the GPU or its driver does not tell")
GPU_DENIED = _attribute("lensd.gpu.denied", "string[]", "", "metrics that the agent's user may not ask for")
GPU_UNIFIED = _attribute("lensd.gpu.unified", "bool", "", "the host's memory is the GPU's")
ABOUT_GPU = _attribute("gpu", "string", "", "GPU that an event is about, as gpu_samples has it")
XID_PCI = _attribute("pci", "string", "", "its domain:bus:device, where the event is an Xid: called as in the kernel's line")
XID = _attribute("xid", "int", "", "NVIDIA's number of a GPU fault: called as in the kernel's line")
PROCESS_NAME = _attribute("process.executable.name", "string", "", "a process's name, without arguments")

# Scope names
SCOPE_GATEWAY = "lensd.gateway"
SCOPE_AGENT = "lensd.agent"
SCOPE_VLLM = "lensd.vllm"
SCOPE_CLIENT = "lensd.client"
