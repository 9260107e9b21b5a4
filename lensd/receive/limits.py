"""What the OTLP door takes: `[serve.limits]` in lensd.toml."""

import msgspec


class DoorLimits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    max_body_bytes: int = 16 << 20  # as it comes over the wire
    max_decoded_bytes: int = 64 << 20  # after gzip
    max_in_flight: int = 64  # bodies at work; more are answered 429
    retry_after_s: int = 1
