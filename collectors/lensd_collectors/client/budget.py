"""How long a caller should wait for an LLM: the one formula that the client, `lensd plan` and `lensd check` use."""

import math
from typing import Final, NamedTuple

CONNECT_S: Final = 5.0
LEAST_READ_S: Final = 10.0


class Budget(NamedTuple):
    """Limits in seconds. `read_s` is the longest silence between two bytes, the wait for the first one included."""

    connect_s: float
    read_s: float
    total_s: float


def budget(max_tokens: int, ttft_p95: float, tpot_p95: float) -> Budget:
    """The limits of a request for at most `max_tokens`, on a server with these 95th percentiles, in seconds.

    connect 5 s; read 3 × `ttft_p95`, at least 10 s; total `max_tokens` × `tpot_p95` × 1.5 + `ttft_p95`. Raises ValueError for
    a number that is negative or not finite.
    """
    for name, value in (("max_tokens", max_tokens), ("ttft_p95", ttft_p95), ("tpot_p95", tpot_p95)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"budget of {name} = {value}: give a number that is 0 or more")
    return Budget(CONNECT_S, max(3 * ttft_p95, LEAST_READ_S), max_tokens * tpot_p95 * 1.5 + ttft_p95)
