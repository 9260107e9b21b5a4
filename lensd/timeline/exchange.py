"""Requests that are known only from an HTTP exchange somebody kept: a curl transcript, a client's traceback."""

from collections.abc import Mapping, Sequence
from typing import Final

from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.rows import HttpExchange, Instant, RequestRow

from lensd.timeline.assemble import request_key

REFUSALS = frozenset(range(400, 500))
COLUMNS: Final[Mapping[str, str]] = {
    "route": "path",
    "decision": "body_shape",
    "outcome": "error_code",
    "total_ms": "duration_ms",
    "client_timeout_ms": "limit_ms",
    "ttft_ms": "ttfb_ms",
    "bytes_sent": "bytes",
}
"""Columns of such a request that are called otherwise in the exchange it was made from."""
_GAVE_UP = ("timeout", "read_timeout")
_NOT_REQUESTS = ("/health", "/metrics", "/ping", "/version", "/load")
_HOPS_THAT_SAW_IT_WHOLE = ("client", "gateway", None)
"""A proxy's access log says too little of a request: who was refused, and by whom, it does not know."""


def requests_of(exchanges: Sequence[HttpExchange], known_ids: set[str], undated_at: int) -> list[RequestRow]:
    """A request for each exchange of an inference path that no span or event told of; lines of an access log are none.

    `undated_at`: the instant (microseconds since the epoch) of an exchange that has none.
    """
    return [
        _request(exchange, number, undated_at)
        for number, exchange in enumerate(exchanges)
        if _saw_it_whole(exchange) and exchange.request_id not in known_ids and _is_request(exchange)
    ]


def _saw_it_whole(exchange: HttpExchange) -> bool:
    """An engine that tells how an answer ended saw it, unlike one that tells of the line alone."""
    return exchange.hop in _HOPS_THAT_SAW_IT_WHOLE or (exchange.hop == "engine" and exchange.finish_reason is not None)


def _is_request(exchange: HttpExchange) -> bool:
    path = (exchange.path or "").partition("?")[0]
    asked = exchange.method != "GET" or (exchange.status or 0) >= 400
    told = exchange.status is not None or exchange.limit_ms is not None or (exchange.hop == "engine" and exchange.finish_reason is not None)
    return asked and not path.endswith(_NOT_REQUESTS) and told


def _request(exchange: HttpExchange, number: int, undated_at: int) -> RequestRow:
    started = exchange.seen_at if exchange.seen_at is not None else Instant(undated_at)
    if exchange.hop == "engine" and exchange.seen_at is not None:  # it tells of the answer when that is over
        started = Instant(started - int((exchange.duration_ms or 0.0) * 1000))
    outcome = _outcome(exchange)
    decision = exchange.body_shape if exchange.body_shape in set(Decision) else None
    return RequestRow(
        request_key=request_key(exchange.src or "", str(number)),
        revision=0,
        request_id=exchange.request_id or exchange.src,
        model=exchange.model,
        engine=exchange.engine,
        key_id=exchange.key_id,
        route=exchange.path,
        started_at=started,
        ended_at=Instant(started + int((exchange.duration_ms or 0.0) * 1000)),
        settled=True,
        outcome=outcome,
        status=exchange.status,
        error_code=exchange.error_code,
        error_message=exchange.error_message,
        said_by=SaidBy.CLIENT if outcome == Outcome.CALLER_GONE else SaidBy.UNKNOWN,
        decision=decision or (Decision.CALLER_GONE if outcome == Outcome.CALLER_GONE else None),
        client_timeout_ms=exchange.limit_ms,
        total_ms=exchange.duration_ms,
        ttft_ms=exchange.ttfb_ms if exchange.streaming else None,
        streaming=exchange.streaming,
        done_seen=exchange.done_seen,
        finish_reason=exchange.finish_reason,
        prompt_tokens=exchange.prompt_tokens,
        cached_tokens=exchange.cached_tokens,
        completion_tokens=exchange.completion_tokens,
        reasoning_tokens=exchange.reasoning_tokens,
        max_tokens=exchange.max_tokens,
        context_limit=exchange.context_limit,
        structured=exchange.structured,
        chunks=exchange.chunks,
        max_gap_ms=exchange.max_gap_ms,
        bytes_sent=exchange.bytes,
        peer=exchange.peer,
        upstream=exchange.upstream,
        auth_routing_state="failed" if outcome == Outcome.REFUSED else None,
        src=exchange.src,
    )


def _outcome(exchange: HttpExchange) -> str:
    if exchange.status is None and exchange.hop == "engine" and exchange.finish_reason is not None:
        return Outcome.CALLER_GONE if exchange.finish_reason == "abort" else Outcome.OK
    if exchange.status is None:
        return Outcome.CALLER_GONE if exchange.error_code in (None, *_GAVE_UP) else Outcome.FAILED
    if exchange.status in (408, 504):
        return Outcome.TIMED_OUT
    if exchange.status in REFUSALS:
        return Outcome.REFUSED
    return Outcome.FAILED if exchange.status >= 500 or exchange.error_code or exchange.body_shape else Outcome.OK
