"""One table: what the gateway decides about a request, and the status, error body and outcome that follow from it."""

from typing import Final, Literal

import msgspec

from lensd_collectors.conventions import Decision, Outcome

Place = Literal["client", "auth_routing", "engine"]


class Answer(msgspec.Struct, frozen=True):
    """`code` is what a program reads in the error body, `stage` where the request stood when it was decided."""

    status: int
    kind: str  # the error body's "type"
    code: str
    stage: Place
    outcome: Outcome
    reason: str  # the message where the occasion gives no better one
    retry_after_s: int | None = None


_CALLER, _SERVER = "invalid_request_error", "server_error"
_REFUSED, _FAILED = Outcome.REFUSED, Outcome.FAILED

ANSWERS: Final[dict[Decision, Answer]] = {
    Decision.KEY_MISSING: Answer(
        401, _CALLER, "missing_api_key", "auth_routing", _REFUSED, "no API key: send it as 'Authorization: Bearer KEY'"
    ),
    Decision.KEY_MALFORMED: Answer(
        401, _CALLER, "malformed_api_key", "auth_routing", _REFUSED, "the Authorization header is not 'Bearer KEY'"
    ),
    Decision.KEY_UNKNOWN: Answer(401, _CALLER, "invalid_api_key", "auth_routing", _REFUSED, "the API key is not valid"),
    Decision.MODEL_NOT_ALLOWED: Answer(403, _CALLER, "model_not_allowed", "auth_routing", _REFUSED, "this API key may not use the model"),
    Decision.MODEL_UNKNOWN: Answer(404, _CALLER, "model_not_found", "auth_routing", _REFUSED, "the model is not served here"),
    Decision.PATH_UNKNOWN: Answer(404, _CALLER, "route_not_found", "auth_routing", _REFUSED, "there is no such path"),
    Decision.METHOD_NOT_ALLOWED: Answer(405, _CALLER, "method_not_allowed", "auth_routing", _REFUSED, "the path does not take this method"),
    Decision.BODY_TOO_LARGE: Answer(413, _CALLER, "request_too_large", "auth_routing", _REFUSED, "the body is too large"),
    Decision.BODY_MALFORMED: Answer(400, _CALLER, "invalid_body", "auth_routing", _REFUSED, "the body is not valid"),
    Decision.CONTEXT_TOO_LONG: Answer(
        400, _CALLER, "context_length_exceeded", "engine", _REFUSED, "the request is longer than the context"
    ),
    Decision.RATE_LIMITED: Answer(429, "rate_limit_error", "rate_limited", "auth_routing", _REFUSED, "too many requests in flight", 1),
    Decision.ENGINE_BUSY: Answer(503, _SERVER, "engine_busy", "engine", _REFUSED, "the engine is busy", 1),
    Decision.ENGINE_DEAD: Answer(502, _SERVER, "engine_dead", "engine", _FAILED, "the engine has died"),
    Decision.ENGINE_ERROR: Answer(502, _SERVER, "engine_error", "engine", _FAILED, "the engine failed"),
    Decision.UPSTREAM_CREDENTIAL_REFUSED: Answer(
        502, _SERVER, "upstream_credential_refused", "engine", _REFUSED, "the engine does not accept the gateway's own API key"
    ),
    Decision.NO_UPSTREAM: Answer(502, _SERVER, "no_upstream", "auth_routing", _REFUSED, "no engine for this model can be reached"),
    Decision.UPSTREAM_TIMEOUT: Answer(504, _SERVER, "upstream_timeout", "engine", Outcome.TIMED_OUT, "the engine did not answer in time"),
    Decision.CALLER_GONE: Answer(499, _CALLER, "caller_gone", "client", Outcome.CALLER_GONE, "the caller left before the end"),
}


class Refused(Exception):
    """The gateway answers this request itself; `status` and `code` where they differ from the table's."""

    def __init__(
        self, decision: Decision, message: str = "", *, param: str | None = None, status: int | None = None, code: str = ""
    ) -> None:
        self.decision = decision
        self.answer = ANSWERS[decision]
        self.message = message or self.answer.reason
        self.param = param
        self.status = status or self.answer.status
        self.code = code or self.answer.code
        super().__init__(self.message)


class _Error(msgspec.Struct):
    message: str
    type: str
    code: str
    param: str | None


class _ErrorBody(msgspec.Struct):
    error: _Error


def error_body(refusal: Refused) -> bytes:
    """The JSON that OpenAI's clients turn into an exception with this message."""
    return msgspec.json.encode(_ErrorBody(_Error(refusal.message, refusal.answer.kind, refusal.code, refusal.param)))


def error_frames(refusal: Refused, *, at_boundary: bool) -> bytes:
    """The same inside a stream. [DONE] follows for readers that wait for it; a broken-off event is closed first."""
    return (b"" if at_boundary else b"\n\n") + b"data: " + error_body(refusal) + b"\n\ndata: [DONE]\n\n"
