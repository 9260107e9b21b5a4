"""What the gateway decides when something is wrong with an engine, or when an engine refuses itself."""

from typing import Any

from decision_row import CHAT, Row, chat, unknown
from gateway_house import DEAD, REPLIES, UNLOADED


def _server(name: str, status: int, decision: str, says: str, **more: Any) -> Row:
    given = {"kind": "server_error", "code": decision, "stage": "engine", "outcome": "failed", "reached": (CHAT,), **more}
    return Row(name=name, status=status, decision=decision, says=says, **given)


def _credential(name: str, model: str, says: str, reason: str) -> Row:
    return _server(
        name,
        502,
        "upstream_credential_refused",
        f"between gateway and engine: {says}",
        ask=chat(model),
        outcome="refused",
        reason=f"plant-engine-1 {reason}",
        more=(("x-should-retry", "false"),),
    )


def _nobody(name: str, model: str, reason: str) -> Row:
    return _server(
        name,
        503,
        "no_upstream",
        "no engine for this model can be reached",
        ask=chat(model),
        stage="auth_routing",
        outcome="refused",
        reason=reason,
        more=(("retry-after", "5"),),
        reached=(),
    )


def _late(kind: str, says: str, **more: Any) -> Row:
    return _server(f"the {kind} limit", 504, "upstream_timeout", says, outcome="timed_out", more=(("x-lensd-timeout", kind),), **more)


SERVER_ROWS = (
    _credential(
        "the engine refuses the gateway's key",
        "tiny-locked",
        "the engine does not accept the gateway's own API key",
        "answered 401 to the gateway's own API key",
    ),
    _credential(
        "something before the engine refuses the gateway",
        "tiny-forbidden",
        "the gateway is not let through to the engine",
        "answered 403 to the gateway",
    ),
    _nobody("the engine is loading", "tiny-loading", "no engine for `tiny-loading`: plant-engine-4 is loading: its model list answers 503"),
    _nobody("the engine is gone", "tiny-gone", "plant-engine-3 does not take connections (Connection refused)"),
    _server(
        "the engine breaks off",
        502,
        "engine_error",
        "the engine closed the connection before it answered",
        ask=chat("tiny-breaks"),
        reason="plant-engine-1: closed in the middle of its reply's head",
    ),
    _server(
        "the engine sends somewhere else",
        502,
        "engine_error",
        "the engine answered with a redirect, which is not followed",
        ask=chat("tiny-moved"),
        reason="plant-engine-1 answered 307, a redirect, which is not followed",
    ),
    _late(
        "first_byte",
        "the engine sent no byte within 300 s: its reply comes whole, so the request was in its queue, in prefill or in decode",
        ask=chat("tiny-first-byte"),
    ),
    _late("idle", "the engine's reply stood still for 120 s in decode", ask=chat("tiny-idle")),
    _late("total", "the request was not done within 60 s", ask=chat("tiny-total")),
    _late("connect", "the engine did not take the connection within 0.3 s", ask=chat("tiny-stuck"), reached=()),
    unknown(
        "the engine has unloaded the model",
        UNLOADED,
        reason="plant-engine-1 answered 404: The model `plant-base` does not exist.",
        reached=(CHAT,),
    ),
)


def _engine(name: str, model: str, status: int, decision: str, *, more: tuple[tuple[str, str], ...] = (), **rest: Any) -> Row:
    body = rest.pop("body", None) or REPLIES[model][1]
    given = {"code": "", "says": "", "ask": chat(model), "reached": (CHAT,), "outcome": "refused", **rest}
    return Row(name=name, status=status, decision=decision, body=body, more=more, **given)


ENGINE_ROWS = (
    _engine(
        "the engine is busy",
        "tiny-busy",
        503,
        "engine_busy",
        more=(("retry-after", "7"),),
        reason="The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    ),
    _engine("the engine limits", "tiny-crowded", 429, "rate_limited", more=(("retry-after", "3"),), reason="slow down"),
    _engine("the engine finds the body wrong", "tiny-strict", 422, "body_malformed", reason="no such thing"),
    _engine(
        "the engine finds the prompt too long",
        "tiny-long",
        400,
        "context_too_long",
        reason="This model's maximum context length is 512 tokens.",
    ),
    _engine("the engine fails", "tiny-failing", 500, "engine_error", outcome="failed", reason="boom"),
    _engine("the engine is dead", "tiny-dead", 500, "engine_dead", outcome="failed", reason="EngineCore", body=DEAD, reached=()),
)
