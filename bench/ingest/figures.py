"""From rounds to figures: medians, ratios to the peers, and whether each budget holds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ingest.client import Sent
from ingest.ours import Result, lags
from ingest.spans import A_REQUEST

OFF, ON = "rules_off", "rules_on"
WIDTH: Final = 58
"""Of the table's first column."""


class Figure(NamedTuple):
    title: str
    unit: str
    digits: int


class Limit(NamedTuple):
    name: str
    figure: str
    limit: float
    is_most: bool = False


FIGURES: Final[Mapping[str, Figure]] = {
    "rate": Figure("spans a second, first sent until the last is queryable", "span/s", 0),
    "judged_rate": Figure("spans a second, until the last request has its verdict", "span/s", 0),
    "ack_p50": Figure("acknowledgement p50, ms", "ms", 1),
    "ack_p99": Figure("acknowledgement p99, ms", "ms", 1),
    "ack_max": Figure("acknowledgement max, ms", "ms", 1),
    "ack_checkpoint_p99": Figure("acknowledgement p99 while DuckDB checkpoints, ms", "ms", 1),
    "checkpoints": Figure("checkpoints", "checkpoint", 0),
    "lag": Figure("most an acknowledged span waited to be queryable, s", "s", 2),
    "request_bytes": Figure("bytes a request in the store", "byte", 0),
    "span_cpu": Figure("the daemon's processor time a span, us", "us", 1),
    "judged_share": Figure("requests with a verdict, %", "%", 2),
    "refused": Figure("bodies answered 429 and sent again", "body", 0),
}

LIMITS: Final = (
    Limit("timeline and rules on: spans/s", f"{ON}_judged_rate", 8_000),
    Limit("acknowledgement p99 while DuckDB checkpoints, ms", f"{OFF}_ack_checkpoint_p99", 250, is_most=True),
    Limit("rules off: lag, s", f"{OFF}_lag", 5, is_most=True),
    Limit("rules on: lag, s", f"{ON}_lag", 5, is_most=True),
    Limit("spans table alone, fresh: bytes a request", f"{OFF}_request_bytes", 950, is_most=True),
    Limit("whole store, fresh: bytes a request", f"{ON}_request_bytes", 1_800, is_most=True),
)
RATE: Final = Limit("door to queryable: spans/s", f"{OFF}_rate", 40_000)
"""Decided by the ratios where peers are measured too."""
PEER_LIMITS: Final = {"phoenix": 100.0, "mlflow": 20.0}


def of_round(result: Result) -> dict[str, float]:
    """The figures of one round; a figure that it does not have is left out."""
    began = min(result.sent.sent_at)
    waits = waits_ms(result.sent)
    during = [
        wait for wait, sent, acked in zip(waits, result.sent.sent_at, result.sent.acked_at, strict=True)
        if any(sent <= end and acked >= begin for begin, end in result.checkpoints)
    ]  # fmt: skip
    found = {
        "rate": result.spans / (result.stored_at - began),
        "ack_p50": quantile(waits, 0.5),
        "ack_p99": quantile(waits, 0.99),
        "ack_max": max(waits),
        "checkpoints": float(len(result.checkpoints)),
        "lag": max(lags(result, result.looks)),
        "request_bytes": result.store_bytes / (result.spans / A_REQUEST),
        "span_cpu": result.cpu_s * 1e6 / result.spans,
        "refused": float(result.sent.refused),
    }
    if during:
        found["ack_checkpoint_p99"] = quantile(during, 0.99)
    if result.judged_at is not None:
        found["judged_rate"] = result.spans / (result.judged_at - began)
        found["judged_share"] = 100.0 * result.judged / max(1, result.requests)
    return found


def waits_ms(sent: Sent) -> list[float]:
    """How long each body waited for its acknowledgement."""
    return [(acked - began) * 1e3 for began, acked in zip(sent.sent_at, sent.acked_at, strict=True)]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def medians(rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """`{mode}_{figure}` over that mode's rounds."""
    return {
        f"{mode}_{name}": statistics.median([each[name] for each in of_mode])
        for mode, of_mode in rounds.items()
        for name in FIGURES
        if of_mode and all(name in each for each in of_mode)
    }


def ratios(found: Mapping[str, float], peers: Mapping[str, float]) -> dict[str, float]:
    """Ours to each peer, in spans/s from the first one sent until the last one is stored."""
    return {f"to_{name}": found[RATE.figure] / rate for name, rate in peers.items() if RATE.figure in found}


def budgets(found: Mapping[str, float], compared: Mapping[str, float], *, with_peers: bool) -> list[dict[str, str | float | bool | None]]:
    """Each budget with its value; one that was not measured has none and does not hold."""
    made = [_budget(limit, found.get(limit.figure)) for limit in LIMITS]
    if not with_peers:
        return [_budget(RATE, found.get(RATE.figure)), *made]
    return [*(_budget(Limit(f"times {name}", "", least), compared.get(f"to_{name}")) for name, least in PEER_LIMITS.items()), *made]


def _budget(limit: Limit, value: float | None) -> dict[str, str | float | bool | None]:
    held = value is not None and (value <= limit.limit if limit.is_most else value >= limit.limit)
    return {"name": limit.name, "limit": limit.limit, "value": None if value is None else round(value, 2), "held": held}


def table(found: Mapping[str, float], peers: Mapping[str, float], compared: Mapping[str, float]) -> str:
    """For people: a line a figure, a mode a column, then the peers."""
    lines = [f"{'':<{WIDTH}}{'rules off':>12}{'rules on':>12}"]
    for name, figure in FIGURES.items():
        cells = [f"{found[key]:,.{figure.digits}f}" if (key := f"{mode}_{name}") in found else "" for mode in (OFF, ON)]
        if any(cells):
            lines.append(f"{figure.title:<{WIDTH}}" + "".join(f"{cell:>12}" for cell in cells))
    for name, rate in peers.items():
        times = f"{compared[f'to_{name}']:,.0f} times" if f"to_{name}" in compared else ""
        lines.append(f"{name + ', the same spans: spans a second':<{WIDTH}}{rate:>12,.1f}{times:>12}")
    return "\n".join(lines)
