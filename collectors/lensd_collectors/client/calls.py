"""One call and its attempts: what they share is a trace and a request id, made before the first one is sent."""

import contextlib
import secrets
import sys
from collections.abc import Iterator
from contextvars import ContextVar

import msgspec

from lensd_collectors.gateway.ids import Parent


class Call(msgspec.Struct, eq=False):
    """`attempts` counts those that were watched; `has_content`: bytes of an answer came, so that it may not be asked for again."""

    trace_id: str
    parent_span_id: str | None
    request_id: str
    attempts: int = 0
    has_content: bool = False


_current: ContextVar[Call | None] = ContextVar("lensd_call", default=None)


def new_call() -> Call:
    """A call in the trace that OpenTelemetry has open here, where it is loaded, else in a trace of its own."""
    above = current_span()
    if above is None:
        trace_id = secrets.token_hex(16)
        return Call(trace_id, None, trace_id)
    return Call(above.trace_id, above.span_id, secrets.token_hex(16))


def current_call() -> Call | None:
    return _current.get()


@contextlib.contextmanager
def one_call() -> Iterator[Call]:
    """Whatever is sent inside is an attempt of one call; inside another one, of that."""
    call = _current.get() or new_call()
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)


def current_span() -> Parent | None:
    """OpenTelemetry's current span; None where there is none, or where OpenTelemetry is not loaded: it is not loaded for this."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    return Parent(f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None
