"""One request and its answer while it is read, and what the answer's body adds to it."""

import re
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.dialects import Meaning, load
from lensd_collectors.read.answer_body import Answer, read_answer
from lensd_collectors.read.error_body import meaning_of, read_error
from lensd_collectors.read.http_lines import ms_of, of_header
from lensd_collectors.read.settings import Origin
from lensd_collectors.read.stream import Stream
from lensd_collectors.rows import ConfigFact, HttpExchange, Row

MODEL: Final = re.compile(r"\\?\"model\\?\"\s*:\s*\\?\"(?P<model>[^\"\\]+)\\?\"")


class Exchange(msgspec.Struct, kw_only=True):
    """A row while it is read, with the line of each of its columns."""

    row: HttpExchange
    places: dict[str, int] = {}
    body: list[str] = []
    body_lines: list[int] = []  # of each part of the body, blank ones left out
    body_line: int = 0  # of its first part
    in_body: bool = False
    stream: Stream | None = None
    asked: list[str] = []  # what stands of the request, and the line of each
    asked_lines: list[int] = []
    events: list[Row] = []


class HttpRows(msgspec.Struct, frozen=True, kw_only=True):
    exchanges: list[Exchange]
    facts: list[Row]
    unread_lines: int

    @property
    def rows(self) -> list[Row]:
        return [*(one.row for one in self.exchanges), *(event for one in self.exchanges for event in one.events), *self.facts]


_NUMBERS: Final = {
    "prompt_tokens": "prompt_tokens", "length": "prompt_tokens", "limit": "context_limit", "most": "context_limit", "cap": "context_limit",
    "completion_tokens": "max_tokens", "max_tokens": "max_tokens",
    "requested": "max_tokens",
}  # fmt: skip
_HEADERS: Final = {  # text-generation-inference tells of an answer in its headers
    "x-prompt-tokens": "prompt_tokens", "x-generated-tokens": "completion_tokens", "x-total-time": "duration_ms", "content-length": "bytes",
    "x-envoy-upstream-service-time": "upstream_ms",
}  # fmt: skip


_USUAL: Final = {  # of an answer of which only the body was copied
    Decision.KEY_MISSING: 401,
    Decision.KEY_UNKNOWN: 401,
    Decision.KEY_EXPIRED: 401,
    Decision.KEY_DISABLED: 401,
    Decision.MODEL_NOT_ALLOWED: 403,
    Decision.MODEL_UNKNOWN: 404,
    Decision.PATH_UNKNOWN: 404,
    Decision.CONTEXT_TOO_LONG: 400,
    Decision.RATE_LIMITED: 429,
    Decision.ENGINE_BUSY: 503,
}
_WAITED_FOR: Final = {"header": "first_byte", "first byte": "first_byte", "idle": "idle", "read": "read"}
_WAITS: Final = ("retry-after", "x-ratelimit-reset", "ratelimit-reset", "x-ratelimit-reset-requests")
_LIMIT: Final = re.compile(r"^(?P<most>\d{1,7})(?:, *\d+)?(?:;w=(?P<window>\d+))?")


def header(exchange: Exchange, name: str, value: str, number: int) -> None:
    """Adds what a header of the answer says."""
    row, lower, value = exchange.row, name.lower(), value.strip()
    if lower == "x-request-id":
        row.request_id = value[:128]
    elif lower == "date" and (at := of_header(value)) is not None:
        row.seen_at = at
    elif lower == "content-type" and "event-stream" in value:
        row.streaming = True
    elif lower in ("x-ratelimit-limit", "ratelimit-limit") and (limit := _LIMIT.search(value)):
        name = "rpm" if limit["window"] in (None, "60") else "rate_limit"
        src = f"{(row.src or '').rpartition(':')[0]}:{number}"
        text = limit["most"] if name == "rpm" else f"{limit['most']};w={limit['window']}"
        exchange.events.append(ConfigFact(subject="gateway", name=name, value=text, src=src, origin=Origin.EFFECTIVE))
    elif lower in _WAITS and value.isdigit() and len(value) < 6:
        row.retry_after_ms, exchange.places["retry_after_ms"] = float(value) * 1000, number
    elif lower in _HEADERS and value.isdigit() and len(value) < 16 and getattr(row, _HEADERS[lower]) is None:
        setattr(row, _HEADERS[lower], int(value))
        exchange.places[_HEADERS[lower]] = number


def finish(exchange: Exchange, body: str) -> None:
    """Adds what the answer's body means and how it is shaped; the body itself is not kept."""
    row = exchange.row
    if exchange.stream is not None:
        exchange.stream.into(row)
        _streamed(exchange, exchange.stream.answer)
    error = read_error(row.status, body, row.path)
    if error is None:
        _answered(exchange, body)
        return
    row.error_code, row.error_message = error.code, error.message
    if row.status is None and error.status is not None:
        row.status = error.status
        exchange.places.setdefault("status", exchange.body_line)
    first = exchange.body_line or exchange.places.get("status", 0)
    parts = zip(exchange.body_lines, exchange.body, strict=True)
    line = next((at for at, part in parts if any(key in part for key in ('"error"', '"message"', '"detail"'))), first)
    exchange.places |= dict.fromkeys(("error_code", "error_message", "body_shape"), line)
    if error.meaning:
        exchange.places |= dict.fromkeys(_mean(row, error.meaning), line)
        if row.status is None and exchange.stream is None and (usual := _USUAL.get(error.meaning.decision)) is not None:
            row.status = usual
            exchange.places.setdefault("status", line)


def say(row: HttpExchange) -> None:
    """Adds what the error text of a call means, that a record or a table has without the answer around it."""
    if row.error_message is not None and row.body_shape is None and (row.status or 0) >= 400:
        meaning = meaning_of(row.status, row.error_message)
        if meaning is not None:
            _mean(row, meaning)
    if row.status is None and row.error_code is not None and "timeout" in row.error_code.lower() and "timeout" not in row.error_code:
        row.error_message = row.error_message or row.error_code  # the name of an exception
        row.error_code = (
            "connect_timeout" if "connect" in row.error_code.lower() else "pool_timeout" if "Pool" in row.error_code else "timeout"
        )
    if row.error_message is not None and row.status is None:
        _failed(row, row.error_message)


def _failed(row: HttpExchange, said: str) -> None:
    """What a call without an answer failed of, and what a hop in front had waited for."""
    failures = load()["client"].failures
    code, match = next(((one.code or "", match) for one in failures if (match := one.regex.search(said))), ("", None))
    if match is None:
        return
    row.error_code = row.error_code or code
    if row.limit_ms is None:
        row.limit_ms = ms_of(match, "limit")
    if row.hop == "proxy" and "timeout" in code and row.limit_kind is None:
        row.limit_kind = waited_for(said)


def waited_for(said: str) -> str | None:
    """What a hop waited for in vain, in its words of a timeout."""
    return next((kind for word, kind in _WAITED_FOR.items() if word in said.lower()), None)


def _mean(row: HttpExchange, meaning: Meaning) -> list[str]:
    """Puts a meaning into its columns; the columns of its numbers."""
    row.body_shape = meaning.decision.value
    row.model = row.model or meaning.named.get("model")
    columns = []
    for name, column in _NUMBERS.items():
        number = meaning.named.get(name, "").replace(",", "")
        if number.isdigit() and len(number) < 16 and (getattr(row, column) is None or name == "prompt_tokens"):
            setattr(row, column, int(number))
            columns.append(column)
    return columns


def joined(exchanges: list[Exchange]) -> list[Exchange]:
    """Without the beginnings of answers whose ends stand further below under the same id, as `head` and `tail` leave them."""
    ends = {one.row.request_id: one for one in exchanges if one.row.request_id and one.row.finish_reason is not None}
    kept = []
    for one in exchanges:
        end = ends.get(one.row.request_id or "")
        if end is None or end is one or one.row.finish_reason is not None or one.row.error_code is not None:
            kept.append(one)
            continue
        for column in ("method", "path", "model", "upstream", "max_tokens", "structured", "peer"):
            if getattr(end.row, column) is None:
                setattr(end.row, column, getattr(one.row, column))
    return kept


def _streamed(exchange: Exchange, answer: Answer) -> None:
    """What a stream's pieces add up to; one without a status was a 200."""
    row = exchange.row
    if answer.is_one and row.status is None and row.error_code is None:
        row.status = 200
        exchange.places.setdefault("status", exchange.places.get("chunks", 0))
    for at, part in zip(exchange.body_lines, exchange.body, strict=True):
        if part.strip() in answer.arguments:  # somebody put the pieces together
            exchange.places["content_chars"] = at
    exchange.events += answer.events(row, exchange.places.get("completion_tokens", exchange.places.get("finish_reason", 0)))


def _answered(exchange: Exchange, body: str) -> None:
    """A body of 200 and the figures in it; one of that form without a status was one."""
    answer = read_answer(body) if exchange.row.status in (None, 200) else None
    if answer is None:
        return
    row, known = exchange.row, {column for column in _SHAPE if getattr(exchange.row, column) is not None}
    row.status = 200
    answer.into(row)
    first = exchange.body_line or exchange.places.get("status", 0)
    exchange.places.setdefault("status", first)
    for column in _SHAPE:
        if column not in known and getattr(row, column) is not None:
            keys = (*_KEYS.get(column, ()), column)
            parts = [*zip(exchange.body_lines, exchange.body, strict=True)]
            exchange.places[column] = next((at for at, part in parts if any(f'"{key}' in part for key in keys)), first)
    said = next((at for at, part in zip(exchange.body_lines, exchange.body, strict=True) if answer.said and answer.said in part), first)
    exchange.events += answer.events(row, said)


_SHAPE: Final = (
    "model", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "finish_reason", "content_chars", "tool_calls",
    "json_broken", "duration_ms", "ttfb_ms",
)  # fmt: skip
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "content_chars": ("content", "generated_text", "response", "text"),
    "json_broken": ("content", "generated_text", "response", "text"),
    "finish_reason": ("finish_reason", "done_reason", "stop_reason", "stop_type"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "prompt_eval_count", "tokens_evaluated"),
    "completion_tokens": ("completion_tokens", "output_tokens", "eval_count", "tokens_predicted", "generated_tokens"),
    "duration_ms": ("total_duration",),
    "ttfb_ms": ("prompt_eval_duration",),
}


def models_listed(body: str, src: str, engine: str | None) -> list[Row]:
    """Facts of a `/v1/models` answer: the ids served and their context lengths."""
    try:
        document = msgspec.json.decode(body.strip() or "null")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    if not isinstance(document, dict) or document.get("object") != "list" or not isinstance(document.get("data"), list):
        return []
    facts: list[Row] = []
    for model in document["data"]:
        if not isinstance(model, dict) or model.get("object") != "model" or not isinstance(model.get("id"), str):
            continue
        facts.append(ConfigFact(subject=engine, name="served_model_name", value=model["id"], src=src, origin=Origin.EFFECTIVE))
        if isinstance(model.get("max_model_len"), int):
            length = str(model["max_model_len"])
            facts.append(ConfigFact(subject=engine, name="max_model_len", value=length, src=src, origin=Origin.EFFECTIVE))
        about = model.get("meta")
        if isinstance(about, dict) and isinstance(trained := about.get("n_ctx_train"), int) and trained > 0:  # llama.cpp
            facts.append(ConfigFact(subject=engine, name="max_position_embeddings", value=str(trained), src=src, origin=Origin.EFFECTIVE))
    return facts
