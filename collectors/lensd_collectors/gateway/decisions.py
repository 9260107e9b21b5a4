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


_CALLER, _AUTH, _RIGHTS, _RATE, _SERVER = (
    "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error",
)  # fmt: skip


def _refusal(status: int, kind: str, code: str, reason: str, *, stage: Place = "auth_routing", retry_after_s: int | None = None) -> Answer:
    return Answer(status, kind, code, stage, Outcome.REFUSED, reason, retry_after_s)


def _failure(status: int, code: str, reason: str, *, stage: Place = "engine", outcome: Outcome = Outcome.FAILED) -> Answer:
    return Answer(status, _SERVER, code, stage, outcome, reason)


ANSWERS: Final[dict[Decision, Answer]] = {
    Decision.KEY_MISSING: _refusal(401, _AUTH, "missing_api_key", "no API key: send it as 'Authorization: Bearer KEY'"),
    Decision.KEY_MALFORMED: _refusal(401, _AUTH, "malformed_api_key", "the Authorization header is not 'Bearer KEY'"),
    Decision.KEY_WRONG_HEADER: _refusal(
        401, _AUTH, "api_key_in_wrong_header", "the API key is not in Authorization: send it as 'Authorization: Bearer KEY'"
    ),
    Decision.KEY_FOREIGN: _refusal(401, _AUTH, "foreign_api_key", "this is another provider's API key"),
    Decision.KEY_UNKNOWN: _refusal(401, _AUTH, "invalid_api_key", "the API key is not valid"),
    Decision.KEY_EXPIRED: _refusal(401, _AUTH, "expired_api_key", "the API key has expired"),
    Decision.KEY_DISABLED: _refusal(401, _AUTH, "disabled_api_key", "the API key is disabled"),
    Decision.ROUTE_NOT_ALLOWED: _refusal(403, _RIGHTS, "route_not_allowed", "this API key may not use this path"),
    Decision.MODEL_NOT_ALLOWED: _refusal(403, _RIGHTS, "model_not_allowed", "this API key may not use the model"),
    Decision.MODEL_UNKNOWN: _refusal(404, _CALLER, "model_not_found", "the model is not served here"),
    Decision.PATH_UNKNOWN: _refusal(404, _CALLER, "route_not_found", "there is no such path"),
    Decision.METHOD_NOT_ALLOWED: _refusal(405, _CALLER, "method_not_allowed", "the path does not take this method"),
    Decision.BODY_TOO_LARGE: _refusal(413, _CALLER, "request_too_large", "the body is too large"),
    Decision.BODY_MALFORMED: _refusal(400, _CALLER, "invalid_body", "the body is not valid"),
    Decision.BODY_AMBIGUOUS: _refusal(400, _CALLER, "ambiguous_model", "the request names the model more than once"),
    Decision.BODY_TIMEOUT: _refusal(408, _CALLER, "body_timeout", "the body did not arrive in time", stage="client"),
    Decision.MAX_TOKENS_TOO_LARGE: _refusal(400, _CALLER, "max_tokens_too_large", "max_tokens is over what this API key may ask for"),
    Decision.PROMPT_TOO_LONG: _refusal(400, _CALLER, "prompt_too_long", "the prompt is longer than this API key may send"),
    Decision.CONTEXT_TOO_LONG: _refusal(400, _CALLER, "context_length_exceeded", "the request is longer than the context"),
    Decision.RATE_LIMITED: _refusal(429, _RATE, "rate_limited", "this API key is over its limit", retry_after_s=1),
    Decision.OVERLOADED: _refusal(503, _SERVER, "overloaded", "too much is in flight already", retry_after_s=2),
    Decision.GATEWAY_STOPPING: _refusal(503, _SERVER, "gateway_stopping", "the gateway is stopping", retry_after_s=1),
    Decision.GATEWAY_ERROR: _failure(500, "gateway_error", "the gateway failed on this request", stage="auth_routing"),
    Decision.ENGINE_BUSY: _refusal(503, _SERVER, "engine_busy", "the engine is busy", stage="engine", retry_after_s=2),
    Decision.ENGINE_DEAD: _failure(502, "engine_dead", "the engine has died"),
    Decision.ENGINE_ERROR: _failure(502, "engine_error", "the engine failed"),
    Decision.UPSTREAM_CREDENTIAL_REFUSED: _refusal(
        502,
        _SERVER,
        "upstream_credential_refused",
        "between gateway and engine: the engine does not accept the gateway's own API key",
        stage="engine",
    ),
    Decision.NO_UPSTREAM: _refusal(503, _SERVER, "no_upstream", "no engine for this model can be reached", retry_after_s=5),
    Decision.UPSTREAM_TIMEOUT: _failure(504, "upstream_timeout", "the engine did not answer in time", outcome=Outcome.TIMED_OUT),
    Decision.CALLER_GONE: Answer(499, _CALLER, "caller_gone", "client", Outcome.CALLER_GONE, "the caller left before the end"),
}


class Refused(Exception):
    """The gateway answers this request itself.

    `message` is for the caller and says nothing of other keys, models or engines; `reason` is for the record, and whole.
    `shown_as` makes the reply that of another decision (a model that is hidden from a key looks unknown).
    """

    def __init__(
        self,
        decision: Decision,
        message: str = "",
        *,
        reason: str = "",
        param: str | None = None,
        code: str = "",
        retry_after_s: float | None = None,
        shown_as: Decision | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        self.decision = decision
        self.shown = shown_as or decision
        self.answer = ANSWERS[self.shown]
        self.prompt_tokens = prompt_tokens  # where they were counted
        self.message = message or self.answer.reason
        self.reason = reason or self.message
        self.param = param
        self.code = code or self.answer.code
        self.retry_after_s = self.answer.retry_after_s if retry_after_s is None else retry_after_s
        super().__init__(self.reason)

    @property
    def status(self) -> int:
        return self.answer.status


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
