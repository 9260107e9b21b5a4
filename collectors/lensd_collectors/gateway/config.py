"""Settings of the gateway: `[gateway]` in lensd.toml."""

from enum import StrEnum
from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class Upstream(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One engine. `name` is what its samples and requests are joined by; the agent's engine has the same."""

    url: str
    name: str = ""  # default: host:port of the URL
    models: tuple[str, ...] = ()  # served names; empty: learned from its /v1/models, adapters too
    api_key_file: str = ""  # credential the engine wants from us; read again when it changes
    kind: str = "vllm"  # dialect of its metrics, where load shedding reads them


class Retry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Another attempt, only while no byte has reached the caller. Another engine of the same model is tried without waiting."""

    most: Annotated[int, msgspec.Meta(ge=0, le=10)] = 3  # attempts after the first; 0: never
    first_s: Seconds = 1.0  # wait before the first, doubled for each next, with jitter
    busy_s: Seconds = 2.0  # least wait after 429 or 503
    longest_s: Seconds = 15.0  # an engine's Retry-After beyond this ends the trying


class Act(StrEnum):
    """What load shedding does to a new request."""

    REFUSE = "refuse"  # 503 with Retry-After
    CAP = "cap"  # lower max_tokens, refuse prompts that are too long
    REROUTE = "reroute"  # send it to a smaller model


class Degrade(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Load shedding, a model at a time. Of the thresholds, 0 is one that is not looked at."""

    enabled: bool = False
    act: Act = Act.REFUSE
    in_flight: Count = 0  # requests that the gateway has with the engines of the model
    waiting: Count = 0  # requests in its engines' queues
    kv_usage: Share = 0.0  # highest KV cache usage among its engines, 0 to 1
    leave_at: Share = 0.8  # it ends when all are below this share of their threshold
    enter_after_s: Annotated[float, msgspec.Meta(ge=0)] = 2.0  # over a threshold for so long begins it
    leave_after_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0  # below for so long ends it
    retry_after_s: AtLeastOne = 5  # of a refusal
    max_tokens: Count = 256  # cap: a request gets at most so many; 0: as it asks
    max_prompt_tokens: Count = 0  # cap: longer prompts are refused; 0: any length
    models: dict[str, str] = {}  # reroute: model -> smaller model
    scrape_every_s: Seconds = 2.0  # how often the engines' metrics are read, while a threshold needs them

    def __post_init__(self) -> None:
        if not self.enabled:
            return
        if not (self.in_flight or self.waiting or self.kv_usage):
            raise ValueError("enabled = true without a threshold: set in_flight, waiting or kv_usage")
        if self.kv_usage == 1.0:
            raise ValueError("kv_usage = 1.0 is never exceeded: write less, such as 0.95")
        if self.act is Act.REROUTE and not self.models:
            raise ValueError('act = "reroute" without models: write models = { big = "small" }')


class GatewayConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    listen: str = "127.0.0.1:8080"  # HOST:PORT that callers reach
    upstreams: tuple[Upstream, ...] = ()  # the engines
    aliases: dict[str, str] = {}  # name that callers may use -> served name
    fallback_models: dict[str, str] = {}  # model -> model that answers while no engine has the first
    routes: tuple[str, ...] = ()  # more POST paths to pass on, such as /v1/rerank; a key's limits on a request's tokens do not hold there
    keys_file: str = "keys.toml"  # what `lensd keys add` writes; read again when it changes
    require_key: bool = True  # false: anybody may call; on loopback only
    deny_as: int = 403  # 404: a model that a key may not use looks unknown; the record still tells them apart
    max_body_bytes: AtLeastOne = 8 * 1024 * 1024  # larger bodies are answered 413
    max_in_flight: AtLeastOne = 2048  # more are answered 503
    check_context: bool = True  # refuse prompts longer than the model's context before the engine is asked
    connect_timeout_s: Seconds = 5.0  # until the engine takes the connection
    first_byte_timeout_s: Seconds = 300.0  # until its first body byte
    idle_timeout_s: Seconds = 120.0  # between two bytes of a reply
    total_timeout_s: Seconds = 900.0  # of the whole request
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0)] = 15.0  # a comment into a stream that is silent for so long; 0: never
    heartbeat_before_first_byte: bool = False  # commits the 200: an engine's later error can only be a frame in the stream
    stall_after_s: Seconds = 30.0  # an engine with requests in flight and no byte for so long is passed over while others can answer
    drain_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0  # how long open requests may run on after SIGTERM
    retry: Retry = Retry()
    degrade: Degrade = Degrade()
    metrics: bool = True  # /metrics, for callers on this machine only
    open_event_after_s: Seconds = 1.0  # a request open for longer is told of before it ends
    progress_every_s: Seconds = 5.0  # and again this often
    max_records: AtLeastOne = 10_000  # finished requests kept for export; over it the oldest are dropped and counted
    export_url: str = "http://127.0.0.1:4318"  # the OTLP door of `lensd serve`
    token_file: str = ""  # bearer token of the OTLP door; default: the one in the store's folder

    def __post_init__(self) -> None:
        if self.deny_as not in (403, 404):
            raise ValueError(f"deny_as = {self.deny_as}: write 403 or 404")
