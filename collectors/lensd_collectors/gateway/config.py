"""Settings of the gateway: `[gateway]` in lensd.toml."""

import msgspec


class Upstream(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One engine. `name` is what its samples and requests are joined by; the agent's engine has the same."""

    url: str
    name: str = ""  # default: host:port of the URL
    models: tuple[str, ...] = ()  # served names; empty: learned from its /v1/models
    api_key_file: str = ""  # credential the engine wants from us


class GatewayConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    listen: str = "127.0.0.1:8080"
    upstreams: tuple[Upstream, ...] = ()
    keys_file: str = "keys.toml"
    require_key: bool = True
    max_body_bytes: int = 8 * 1024 * 1024
    max_in_flight: int = 2048
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 300.0
    idle_timeout_s: float = 120.0
    total_timeout_s: float = 900.0
    open_event_after_s: float = 1.0
    progress_every_s: float = 5.0
    max_records: int = 10_000  # finished requests kept for export; over it the oldest are dropped and counted
    export_url: str = "http://127.0.0.1:4318"
    token_file: str = ""  # bearer token of the OTLP door; default: the one in the store's folder
