"""What an engine may call a request, and the request that nobody but an engine tells of."""

import re
from typing import Final

from lensd_collectors import conventions as c
from lensd_collectors.rows import Event

from lensd.timeline.engine_times import prompt_id
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.hours import names_of
from lensd.timeline.life import ABORTED, FAILED

RECEIVED: Final = "request.received"
ENDS: Final = (c.EVENT_ENGINE_REQUEST, ABORTED, FAILED)
"""Events that alone make a request. Of one that an engine's log only says it received, nobody knows whether it has ended."""

_INDEX: Final = re.compile(r"(?<=.)-\d{1,3}$")
_TRACE: Final = "engine:"


def engine_base(engine_id: str) -> str:
    """The id of the reply of which this is one prompt or one of its answers: `cmpl-R-0` → `cmpl-R`, `1_chatcmpl-R` → `chatcmpl-R`."""
    prompt = prompt_id(engine_id)
    return _INDEX.sub("", prompt) if prompt.startswith("cmpl-") else prompt


def engine_ids(request: RequestEvidence) -> list[str]:
    """Names the engine may call this request by: the id of its reply, and the forms vLLM makes of X-Request-Id."""
    response, ours = (told if isinstance(told, str) else None for told in map(request.value, (c.RESPONSE_ID, c.REQUEST_ID)))
    names = [response] if response else []
    if ours:
        names += [f"chatcmpl-{ours}", f"cmpl-{ours}-0"]
    elif response and response.startswith("cmpl-"):
        names.append(f"{response}-0")
    for span in request.engine_spans:
        if span.request_id:
            names.append(span.request_id)
    for record in request.engine_records:
        names += [told for told in (record.fields.get(c.RESPONSE_ID),) if isinstance(told, str)]
    return list(dict.fromkeys(names))


def bases(request: RequestEvidence) -> set[str]:
    """Ids of replies that this request may have got; one of the engine's ids is about it if it, or what it is a prompt of, is here."""
    response, ours = request.value(c.RESPONSE_ID), request.value(c.REQUEST_ID)
    names = {response} if response and isinstance(response, str) else set()
    if ours and isinstance(ours, str):
        names |= {f"chatcmpl-{ours}", f"cmpl-{ours}"}
    for span in request.engine_spans:
        told = span.text(c.ENGINE_REQUEST_ID) or span.request_id
        if told:
            names |= {told, engine_base(told)}
    return names


def trace_of_event(event: Event) -> str | None:
    """The trace under which a request is kept that only this event tells of; None for events that make none."""
    if event.name not in ENDS or event.trace_id or not event.request_id:
        return None
    return engine_trace(event.engine, event.name, event.request_id)


def engine_trace(engine: str | None, name: str, engine_id: str) -> str:
    """Stands for a trace where there is none: `engine:ENGINE/ID OF THE REPLY`. `name`: of the event that tells the id."""
    base = engine_base(engine_id) if name == c.EVENT_ENGINE_REQUEST else names_of(engine_id)[-1]
    return f"{_TRACE}{(engine or '').replace('/', '_')}/{base}"


def is_engine_trace(trace_id: str) -> bool:
    return trace_id.startswith(_TRACE)


def ids_of_trace(trace_id: str) -> tuple[str, ...]:
    """What the request of such a trace may be called: by the engine, in its reply, by its caller."""
    base = trace_id.partition("/")[2]
    caller = tuple(base.removeprefix(prefix) for prefix in ("chatcmpl-", "cmpl-") if base.startswith(prefix))
    return (base, f"{base}-0", *caller) if base.startswith("cmpl-") else (base, *caller)
