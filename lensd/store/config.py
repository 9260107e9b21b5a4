"""Settings of what becomes of stored days: `[store]` in lensd.toml."""

from typing import Annotated

import msgspec

AtLeastNone = Annotated[int, msgspec.Meta(ge=0)]


class StoreConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How long rows are kept. Whole UTC days are deleted, the oldest first, and never the present one."""

    roll_over_after_s: Annotated[float, msgspec.Meta(ge=0)] = 7200.0  # after its end, a day is packed into a file of about half its size
    keep_days: AtLeastNone = 7  # days before today; 0: all
    keep_bytes: AtLeastNone = 20_000_000_000  # of all database files of the store; 0: any
    keep_incidents_days: AtLeastNone = 90  # for so long, typical requests and samples of an incident outlive their day
