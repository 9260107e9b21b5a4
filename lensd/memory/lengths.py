"""How long the requests of a store were, how many ran at once, and how quick the answers: what a plan can stand on instead of guesses."""

from typing import Final

import msgspec

LEAST_REQUESTS: Final = 30
"""Below so many a percentile is not given: it would be one request's figure."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Of settled requests that ended well and say their tokens. A percentile is None where fewer than 30 carry it."""

    requests: int = 0
    tokens_p50: int | None = None
    """Prompt and answer together, as the KV cache holds them at a request's end."""
    tokens_p95: int | None = None
    tokens_p99: int | None = None
    tokens_max: int | None = None
    answer_p99: int | None = None
    samples: int = 0
    """Scrapes that say how many ran at once."""
    running_p99: int | None = None
    running_max: int | None = None
    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None

    @property
    def is_measured(self) -> bool:
        return self.tokens_p99 is not None

    @property
    def told(self) -> str:
        """In words, for people."""
        if self.tokens_p99 is None:
            return f"not measured: {self.requests} settled requests say their tokens, {LEAST_REQUESTS} are needed"
        return f"measured over {self.requests:,} requests: 99 of 100 took at most {self.tokens_p99:,} tokens"
