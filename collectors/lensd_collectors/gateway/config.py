"""Settings of the gateway: `[gateway]` in lensd.toml."""

import msgspec


class Upstream(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One engine. `name` is what its samples and requests are joined by; the agent's engine has the same."""

    url: str
    name: str = ""  # default: host:port of the URL
    models: tuple[str, ...] = ()  # served names; empty: learned from its /v1/models
    api_key_file: str = ""  # credential the engine wants from us


class GatewayConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    listen: str = "127.0.0.1:8080"  # HOST:PORT that callers reach
    upstreams: tuple[Upstream, ...] = ()  # the engines
    keys_file: str = "keys.toml"  # what `lensd keys add` writes; read again when it changes
    require_key: bool = True  # false: anybody may call; on loopback only
    max_body_bytes: int = 8 * 1024 * 1024  # larger bodies are answered 413
    max_in_flight: int = 2048  # more are answered 429
    connect_timeout_s: float = 5.0  # until the engine takes the connection
    first_byte_timeout_s: float = 300.0  # until its first body byte
    idle_timeout_s: float = 120.0  # between two bytes of a reply
    total_timeout_s: float = 900.0  # of the whole request
    open_event_after_s: float = 1.0  # a request open for longer is told of before it ends
    progress_every_s: float = 5.0  # and again this often
    max_records: int = 10_000  # finished requests kept for export; over it the oldest are dropped and counted
    export_url: str = "http://127.0.0.1:4318"  # the OTLP door of `lensd serve`
    token_file: str = ""  # bearer token of the OTLP door; default: the one in the store's folder
