"""From when on a stage that ended well is called slow: `[timeline]` in lensd.toml."""

import msgspec


class Limits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    auth_routing_ms: float = 1000.0  # longer is slow
    queue_ms: float = 1000.0  # longer is slow, where it is also the next share
    queue_share_of_ttft: float = 0.5  # of queue and prefill together
    prefill_ms: float = 2000.0  # longer is slow
    tpot_ms: float = 100.0  # decode time over tokens; longer is slow
