"""What an answer of 200 says of itself (usage, why it ended) and its shape; never a word of it. Also what a request's body asks for."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lensd_collectors.rows import Event, HttpExchange, Row

LARGEST: Final = 4 << 20  # characters of a body that is decoded
_MASKED: Final = re.compile(r"[<\[(](?:redacted|masked|removed|omitted|hidden|cut|trimmed)\b|^\s*(?:\.\.\.|…)\s*$", re.IGNORECASE)
LONGEST_GAPPED: Final = 64 << 10
_HOLE: Final = r"(?:<[^<>\"{}]{0,80}>|(?:\.\.\.|\u2026)[^\",\[\]{}]{0,80})"
_GAP: Final = re.compile(rf"(?<=[\[:,{{])\s*{_HOLE}(?=\s*[,\]}}])")
_ITEM_GAP: Final = re.compile(rf",\s*{_HOLE}(?=\s*[,\]}}])|(?<=[\[{{])\s*{_HOLE}\s*,?")
_FENCE: Final = re.compile(r"^\s*```(?:json)?\s*\n(?P<inner>.*?)(?:\n\s*```\s*)?$", re.DOTALL)
_STRUCTURED: Final = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar", "json_schema", "regex", "ebnf",
)  # fmt: skip
_MAX_TOKENS: Final = ("max_completion_tokens", "max_tokens", "max_new_tokens", "max_output_tokens", "num_predict", "n_predict")
_KEPT: Final = ("truncate_prompt_tokens", "truncate", "num_ctx")  # how much of the prompt the caller lets the server keep
_LEAKED: Final = re.compile(r"</?tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_call|<function_call>|<\uff5ctool")
_ENDS: Final = {
    "max_tokens": "length", "max_output_tokens": "length", "limit": "length", "eos_token": "stop", "eos": "stop", "word": "stop",
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls",
}  # fmt: skip
_USAGE: Final = {
    "prompt_tokens": ("prompt_tokens", "input_tokens", "prompt_eval_count", "tokens_evaluated"),
    "completion_tokens": ("completion_tokens", "output_tokens", "eval_count", "tokens_predicted", "generated_tokens"),
}


class Answer:
    """Gathers what the documents of one answer say: one of a plain answer, many of a stream."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.model: str | None = None
        self.answer_id: str | None = None
        self.is_one = False  # a document of the form of an answer was among them
        self._text: list[str] = []
        self._chars = 0
        self._masked = False
        self._calls: dict[Any, list[str]] = {}
        self.pace: dict[str, float] = {}  # tpot_ms, and what else it says of its own times
        self.said = ""  # what it calls its time per token
        self.read_tokens = 0  # of the prompt, in the time that it calls the prompt's
        self.stood: dict[str, float] = {}  # of one that says all its times: what is left of the whole, in milliseconds
        self._thought = self._spoke = False

    def take(self, document: Mapping[str, Any]) -> None:
        choices = [one for one in _list(document.get("choices")) if isinstance(one, dict)]
        usage = _mapping(document.get("usage"))
        is_ollama = "done" in document and bool(document.keys() & {"message", "response", "eval_count"})
        is_tgi = "generated_text" in document or isinstance(document.get("token"), dict) or _is_count(document.get("generated_tokens"))
        native = _mapping(document.get("meta_info")) or (document if "tokens_predicted" in document else {})
        is_own = "object" in document and str(document["object"]).startswith(("chat.completion", "text_completion", "response"))
        if not (choices or usage or is_ollama or is_tgi or is_own or native or "stop_reason" in document):
            return
        self.is_one = True
        self.model = self.model or _text(document.get("model"))
        self.answer_id = self.answer_id or _text(document.get("id"))
        details = _mapping(document.get("details")) or (document if is_tgi else {})
        self._usage(usage or native or (document if is_ollama else details))
        self._timings(document)
        self._paced(document, native)
        for choice in choices:
            self._ended(choice.get("finish_reason"))
            self._said(choice.get("message") or choice.get("delta") or choice)
        if is_ollama:
            self._ended(document.get("done_reason"))
            self._said(document.get("message") or ({"content": document["response"]} if "response" in document else {}))
        if is_tgi:
            self._ended(details.get("finish_reason"))
            self._said({"text": document.get("generated_text")})
        if native:
            end = native.get("finish_reason", native.get("stop_type"))
            self._ended(_mapping(end).get("type", end if isinstance(end, str) else None))
            self._said({"text": document.get("text", document.get("content"))})
        self._ended(document.get("stop_reason"))
        if document.get("status") == "incomplete":
            self._ended(_mapping(document.get("incomplete_details")).get("reason"))

    def _usage(self, usage: Mapping[str, Any]) -> None:
        for column, names in _USAGE.items():
            value = next((usage[name] for name in names if _is_count(usage.get(name))), None)
            if value is not None:
                self.found[column] = value
        for names, column in ((("prompt_tokens_details", "input_tokens_details"), "cached_tokens"),
                              (("completion_tokens_details", "output_tokens_details"), "reasoning_tokens")):  # fmt: skip
            value = next((found for name in names if _is_count(found := _mapping(usage.get(name)).get(column))), None)
            if value is not None:
                self.found[column] = value

    def _timings(self, document: Mapping[str, Any]) -> None:
        """llama.cpp's and Ollama's own times."""
        timings = _mapping(document.get("timings"))
        if _is_count(timings.get("cache_n")):
            self.found.setdefault("cached_tokens", timings["cache_n"])
        for name, column in (("prompt_n", "prompt_tokens"), ("predicted_n", "completion_tokens")):
            if _is_count(timings.get(name)):
                self.found.setdefault(column, timings[name])
        if _is_count(document.get("total_duration")):
            self.found["duration_ms"] = document["total_duration"] / 1e6
            if _is_count(document.get("prompt_eval_duration")):
                self.found["ttfb_ms"] = (document["prompt_eval_duration"] + (document.get("load_duration") or 0)) / 1e6

    def _paced(self, document: Mapping[str, Any], native: Mapping[str, Any]) -> None:
        """vLLM's, llama.cpp's, Ollama's and SGLang's own word for the time of a token."""
        vllm, llama = _mapping(document.get("metrics")), _mapping(document.get("timings"))
        self._times("mean_itl_ms", vllm.get("mean_itl_ms"), ms=vllm.get("generation_time_ms"), queue_ms=vllm.get("queue_time_ms"),
                    prefill_ms=vllm.get("time_to_first_token_ms"))  # fmt: skip
        self._times(
            "predicted_per_token_ms", llama.get("predicted_per_token_ms"), ms=llama.get("predicted_ms"), prefill_ms=llama.get("prompt_ms")
        )
        self.read_tokens = next(
            (one for one in (llama.get("prompt_n"), document.get("prompt_eval_count")) if isinstance(one, int)), self.read_tokens
        )
        took, count, before = document.get("eval_duration"), document.get("eval_count"), document.get("prompt_eval_duration")
        if isinstance(took, int) and isinstance(count, int) and count > 0:
            self._times("eval_duration", took / 1e6 / count, ms=took / 1e6, prefill_ms=before / 1e6 if isinstance(before, int) else None)
        whole, load = document.get("total_duration"), document.get("load_duration")
        if isinstance(whole, int) and isinstance(load, int) and isinstance(took, int) and isinstance(before, int):
            self.stood = {
                "queue_ms": round(max(0, whole - load - before - took) / 1e6, 3),
                "total_ms": round(whole / 1e6, 3),
                "inference_ms": round((before + took) / 1e6, 3),
            }
        tps = native.get("decode_throughput")
        if isinstance(tps, int | float) and tps > 0:
            self._times("decode_throughput", 1000 / tps)

    def _times(self, said: str, each: object, **others: object) -> None:
        known = {name: round(value, 3) for name, value in others.items() if isinstance(value, int | float)}
        if isinstance(each, int | float) and not isinstance(each, bool) and 0 < each < 1e7:
            self.said = said
            self.pace |= {**known, "tpot_ms": round(each, 3)}

    def _ended(self, reason: object) -> None:
        if isinstance(reason, list):
            reason = reason[0] if reason else None
        if isinstance(reason, str) and reason:
            self.found["finish_reason"] = _ENDS.get(reason.lower(), reason.lower())[:40]

    def _said(self, message: object) -> None:
        if not isinstance(message, dict):
            return
        self._thought = self._thought or bool(message.get("reasoning_content") or message.get("reasoning") or message.get("thinking"))
        content = message.get("content", message.get("text"))
        self._spoke = self._spoke or "content" in message or isinstance(content, str)
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if isinstance(content, str) and content:
            self._masked = self._masked or _MASKED.search(content) is not None
            self._chars += len(content)
            if self._chars <= LARGEST:
                self._text.append(content)
        for place, call in enumerate(one for one in _list(message.get("tool_calls")) if isinstance(one, dict)):
            arguments = _mapping(call.get("function")).get("arguments")
            parts = self._calls.setdefault(call.get("index", place), [])
            if isinstance(arguments, str):
                self._chars += len(arguments)
                self._masked = self._masked or _MASKED.search(arguments) is not None
                parts.append(arguments)

    def into(self, row: HttpExchange) -> None:
        """Sets the columns that the answer tells of, and its shape."""
        for column, value in self.found.items():
            if getattr(row, column) is None:
                setattr(row, column, value)
        row.model = row.model or self.model
        row.request_id = row.request_id or (self.answer_id or "")[:128] or None
        if self._calls:
            row.tool_calls = len(self._calls)
        if (
            (self._spoke or self._thought)
            and not self._masked
            and not (self._thought and self._chars == 0 and self.found.get("finish_reason") != "length")
        ):
            row.content_chars = self._chars
        broken = [_is_broken(text) for text in ("".join(self._text), *self.arguments)]
        known = [one for one in broken if one is not None]
        row.json_broken = any(known) if known else None

    @property
    def arguments(self) -> list[str]:
        """Of each call, put together."""
        return ["".join(parts) for parts in self._calls.values()]

    def events(self, row: HttpExchange, number: int) -> list[Row]:
        """`request.prefill` and `request.decode` of one that says its times, `request.call_leaked` of one with a call in its text."""
        told: list[tuple[str, dict[str, Any]]] = []
        if self.pace:
            if "prefill_ms" in self.pace and self.read_tokens:
                told.append(("request.prefill", {"ms": self.pace["prefill_ms"], "tokens": self.read_tokens}))
            told.append(("request.decode", {"tokens": row.completion_tokens, **self.pace, "structured": row.structured, "said": self.said}))
        if self.stood:
            told.append(("request.timed", self.stood | ({"token_ms": self.pace["tpot_ms"]} if "tpot_ms" in self.pace else {})))
        if _LEAKED.search("".join(self._text)):
            told.append(("request.call_leaked", {"tokens": row.completion_tokens}))
        return [_event(name, fields, row, number) for name, fields in told]


def _event(name: str, fields: Mapping[str, Any], row: HttpExchange, number: int) -> Event:
    known = {key: value for key, value in fields.items() if value is not None}
    return Event(
        seen_at=row.seen_at,
        seq=number,
        engine=row.engine,
        request_id=row.request_id,
        name=name,
        severity="info",
        fields=msgspec.json.encode(known).decode(),
        src=f"{(row.src or '').rpartition(':')[0]}:{number}",
    )


def read_answer(body: str) -> Answer | None:
    """The answer in a body: JSON, JSON lines, or a stream's events; None where there is none."""
    answer = Answer()
    for document in documents(body):
        answer.take(document)
    return answer if answer.is_one else None


def documents(body: str) -> Iterator[dict[str, Any]]:
    text = body.strip()[:LARGEST]
    if text[:1] == "{":
        one = decoded(text)
        if one is not None:
            yield one
            return
    for line in text.split("\n"):
        line = line.strip().removeprefix("data:").strip()
        if line[:1] == "{" and (one := decoded(line)) is not None:
            yield one


def is_answer(document: Mapping[str, Any]) -> bool:
    """Whether a document is an answer as a server sent it, rather than what somebody logs of a call."""
    keys = document.keys()
    return (
        bool(keys & {"choices", "generated_text", "meta_info"})
        or {"done", "eval_count"} <= keys
        or {"generated_tokens", "finish_reason"} <= keys
    )


def is_whole(document: Mapping[str, Any]) -> bool:
    """Whether it is all of an answer, or the last of a stream's documents, and not a piece."""
    choice = next((one for one in _list(document.get("choices")) if isinstance(one, dict)), {})
    return (
        ("finish_reason" in choice and ("message" in choice or "text" in choice) and not str(document.get("object")).endswith(".chunk"))
        or "generated_text" in document
        or {"done", "eval_count"} <= document.keys()
        or _mapping(document.get("meta_info")).get("finish_reason") is not None
    )


def decoded(text: str) -> dict[str, Any] | None:
    """The object that a text is, also where somebody put `<...>` or three dots in the place of a value; None for any other text."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _with_gaps(text)
    return document if isinstance(document, dict) else None


def _with_gaps(text: str) -> dict[str, Any] | None:
    if len(text) > LONGEST_GAPPED or text.rstrip()[-1:] != "}" or _GAP.search(text) is None:
        return None
    try:
        document = msgspec.json.decode(_GAP.sub("null", _ITEM_GAP.sub("", text)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def is_request(document: Mapping[str, Any]) -> bool:
    """Whether a body asks for something: it says what, and nothing of what came of it."""
    return bool(document.keys() & {"messages", "prompt", "input", "inputs", "text"}) and (
        bool(document.keys() & {"model", "stream", "options", "parameters", "sampling_params", *_MAX_TOKENS})
        and not document.keys() & {"choices", "usage", "done", "object", "error", "response", "generated_text", "msg", "level"}
    )


def asked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of an exchange that a request's body names: model, max_tokens, streaming, structured, context_limit."""
    inner = {
        **_mapping(document.get("extra_body")),
        **_mapping(document.get("options")),
        **_mapping(document.get("parameters")),
        **document,
    }
    inner |= _mapping(document.get("sampling_params"))
    found: dict[str, Any] = {}
    if model := _text(document.get("model")):
        found["model"] = model[:200]
    limit = next((inner[name] for name in _MAX_TOKENS if _is_count(inner.get(name))), None)
    if limit is not None and limit > 0:
        found["max_tokens"] = limit
    kept = next((inner[name] for name in _KEPT if _is_count(inner.get(name))), None)
    if kept:
        found["context_limit"] = kept
    if isinstance(inner.get("stream"), bool):
        found["streaming"] = inner["stream"]
    shape = inner.get("response_format", inner.get("format"))
    kind = shape.get("type") if isinstance(shape, dict) else shape
    if (kind and kind != "text") or any(inner.get(name) for name in _STRUCTURED):
        found["structured"] = True
    return found


def _is_broken(text: str) -> bool | None:
    """Whether a text that begins as JSON is none; None for one that does not begin so."""
    fenced = _FENCE.match(text)
    inner = (fenced["inner"] if fenced else text).strip()
    if inner[:1] not in ("{", "["):
        return None
    if (
        _MASKED.search(inner) or _GAP.search(inner) or _ITEM_GAP.search(inner)
    ):  # somebody took words out: only whether it closes what it opened can be told
        return not inner.endswith(("}", "]"))
    try:
        msgspec.json.decode(inner)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return True
    return False


def asked_by_name(command: str) -> dict[str, Any]:
    """`structured`, of a command whose body stands in a file that is named for its schema."""
    return {"structured": True} if re.search(r"@\S*(?:schema|response_format|guided|grammar)\S*", command) else {}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60


def _mapping(raw: object) -> Mapping[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _list(raw: object) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _text(raw: object) -> str | None:
    return raw if isinstance(raw, str) and raw else None
