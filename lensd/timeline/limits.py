"""From when on a stage that ended well is called slow: `[timeline]` in lensd.toml."""

import msgspec


class Limits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    auth_routing_ms: float = 1000.0
    queue_ms: float = 1000.0
    queue_share_of_ttft: float = 0.5
    prefill_ms: float = 2000.0
    tpot_ms: float = 100.0
