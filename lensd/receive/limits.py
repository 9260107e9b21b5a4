"""What the OTLP door takes: `[serve.limits]` in lensd.toml."""

from typing import Annotated

import msgspec

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class DoorLimits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Of all OTLP doors. A body over a limit of bytes is refused; of one with too many records the rest is left out, and the sender told.

    A body that is sent again within 24 h is acknowledged and counts once, also over a restart: the latest 1.4 million bodies are known
    again, in at most 16 MiB.
    """

    max_body_bytes: AtLeastOne = 16 << 20  # as it comes over the wire
    max_decoded_bytes: AtLeastOne = 64 << 20  # after gzip
    max_in_flight: AtLeastOne = 64  # bodies at work; more are answered 429
    retry_after_s: int = 1
    max_records: AtLeastOne = 20_000  # spans, data points or log records of a body; the rest is left out and counted
    max_attributes: AtLeastOne = 128  # of a span, data point, log record, resource; the rest is dropped and counted
    max_value_chars: AtLeastOne = 16 << 10  # of a text, or bytes; longer ones are cut and counted
