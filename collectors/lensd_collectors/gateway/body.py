"""What the gateway needs to know of a request's body (model, streaming, token limit), and the body with those values set anew.

The rest stays unread, and is written back as it came.
"""

import re
from typing import Any, Final
from urllib.parse import unquote_plus

import msgspec
from msgspec import Raw

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.routes import CHAT, COMPLETIONS, RESPONSES

Fields = dict[str, Raw]  # a body's outermost keys, and their values as they came

LIMIT_NAMES: Final[dict[str, tuple[str, ...]]] = {
    # by what keys a caller limits the answer; n_predict is llama.cpp's, and wins there
    CHAT: ("max_completion_tokens", "max_tokens", "n_predict"),
    COMPLETIONS: ("max_tokens", "n_predict"),
    RESPONSES: ("max_output_tokens",),
}
_WRITTEN: Final = {route: "max_tokens" if "max_tokens" in names else names[0] for route, names in LIMIT_NAMES.items()}
_SAME_LIMIT: Final = frozenset(LIMIT_NAMES[CHAT])
_WATCHED: Final = frozenset({"model", "stream"}.union(*LIMIT_NAMES.values()))
_MOST: Final = 2**63 - 1
_FREE: Final = re.compile(rb'\{\s*"type"\s*:\s*"text"')
_BOUND: Final = frozenset(
    ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema", "ebnf")
)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """`max_tokens` is the larger where two keys differ (limits hold whichever the engine takes), `max_tokens_least` the smaller.

    None: the caller sets no bound. `max_tokens_name` is the key that gave it, or the one to write on this route; "": there is none.
    """

    model: str
    streaming: bool
    max_tokens: int | None = None
    max_tokens_least: int | None = None
    max_tokens_name: str = ""
    structured: bool = False  # the answer is bound to a schema or grammar


class _Name:
    """A key, unlike every other: a dict of these keeps a key that is there twice."""

    __slots__ = ("text",)

    def __init__(self, _: type, text: str) -> None:
        self.text = text


read_fields: Final = msgspec.json.Decoder(Fields).decode
_read_names: Final = msgspec.json.Decoder(dict[_Name, Raw], dec_hook=_Name).decode
_read_text: Final = msgspec.json.Decoder(str).decode
_read_value: Final = msgspec.json.Decoder(Any).decode
_write: Final = msgspec.json.Encoder().encode
_NULL: Final = Raw(b"null")


def read_body(data: bytes, route: str, query: bytes = b"") -> Asked:
    """Raises Refused for what is not a JSON object that names exactly one model, and for keys that parsers read differently.

    `query` is the URL's, undecoded. The time it takes grows with the body: one over a megabyte is for a thread.
    """
    if query:
        _check_query(query)
    try:
        fields = read_fields(data)
        # Written back byte for byte the same: no key was there twice. That is cheaper to see than by counting them.
        if _write(fields) != data and len(names := _read_names(data)) != len(fields):
            _check_names([name.text for name in names])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(data, error) from None
    spelled = "".join(fields)
    if not (spelled.islower() and spelled.isascii()):
        _check_names(list(fields))
    most, least, name = _read_limit(fields, route)
    return Asked(
        model=_read_model(fields),
        streaming=bytes(fields.get("stream", b"")) == b"true",
        max_tokens=most,
        max_tokens_least=least,
        max_tokens_name=name,
        structured=_is_bound(fields),
    )


def _is_bound(fields: Fields) -> bool:
    form = bytes(fields.get("response_format", b"null"))
    return (form != b"null" and not _FREE.match(form)) or any(
        bytes(fields[name]) not in (b"null", b"false") for name in _BOUND.intersection(fields)
    )


def rewrite(data: bytes, *, model: str | None = None, max_tokens: int | None = None, max_tokens_name: str = "") -> bytes:
    """The same body with these values set or added; None leaves one as it is. `data` is a body that `read_body` has passed.

    Every key there that limits the answer is set, so that it does not matter which of them the engine takes.
    """
    if model is None and (max_tokens is None or not max_tokens_name):
        return data
    fields: dict[str, Raw | str | int] = {**read_fields(data)}
    if model is not None:
        fields["model"] = model
    if max_tokens is not None and max_tokens_name:
        fields[max_tokens_name] = max_tokens
        if max_tokens_name in _SAME_LIMIT:
            fields.update(dict.fromkeys(_SAME_LIMIT & fields.keys(), max_tokens))
    return _write(fields)


def _read_model(fields: Fields) -> str:
    raw = fields.get("model", _NULL)
    try:
        if model := _read_text(raw):
            return model
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    message = "the body names no model" if bytes(raw) == b"null" else "model must be a non-empty string"
    raise Refused(Decision.BODY_MALFORMED, message, param="model")


def _read_limit(fields: Fields, route: str) -> tuple[int | None, int | None, str]:
    """Largest and smallest limit on the answer that the body sets, and the key of the largest."""
    most = least = None
    most_name = _WRITTEN.get(route, "")
    for name in LIMIT_NAMES.get(route, ()):
        if (raw := fields.get(name)) is None or (limit := _count(raw)) is None:
            continue
        if most is None or limit > most:
            most, most_name = limit, name
        if least is None or limit < least:
            least = limit
    return most, least, most_name


def _count(raw: Raw) -> int | None:
    """A number of tokens, also one that engines turn into a number ("7", 7.0); None for what bounds nothing (-1 in llama.cpp)."""
    try:
        value = _read_value(raw)
        if isinstance(value, str) and len(value) <= 32:
            value = float(value) if "." in value else int(value)
        if isinstance(value, float):
            value = int(value) if value.is_integer() else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return min(value, _MOST) if type(value) is int and value >= 0 else None


def _check_names(names: list[str]) -> None:
    """Parsers differ in which of two equal keys they take, and some do not tell capitals apart."""
    seen = set()
    for name in names:
        folded = name.casefold()
        if folded in _WATCHED:
            if folded in seen:
                raise _ambiguous(folded, f"the body names {folded} more than once")
            if name != folded:
                raise _ambiguous(
                    folded, f"the body spells {folded} with capitals: engines differ in whether they read it, write it in lower case"
                )
            seen.add(folded)


def _check_query(query: bytes) -> None:
    """A model in the URL may be the one that is served, while the body's is the one that was checked."""
    for part in query.decode("latin-1").replace(";", "&").split("&"):
        if unquote_plus(part.partition("=")[0]).strip().casefold() == "model":
            raise _ambiguous("model", "the URL's query names a model: name it in the body only")


def _ambiguous(name: str, message: str) -> Refused:
    return Refused(Decision.BODY_AMBIGUOUS, message, param=name, code=f"ambiguous_{name}")


def _malformed(data: bytes, error: Exception) -> Refused:
    """Says where and how, never what: a parser's own text can quote the body."""
    if not data.strip():
        message = "the request has no body"
    elif data.startswith(b"\xef\xbb\xbf"):
        message = "the body begins with a byte order mark: send UTF-8 without one"
    elif b"\0" in data[:4] or data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        message = "the body is UTF-16 or UTF-32: send UTF-8"
    elif isinstance(error, RecursionError):
        message = "the body is nested too deep"
    elif isinstance(error, msgspec.ValidationError):
        message = "the body is JSON but not an object"
    elif "truncated" in str(error):
        message = f"the body breaks off: its {len(data)} bytes are not the whole of a JSON object"
    else:
        place = re.search(r"\(byte (\d+)\)$", str(error))
        message = "the body is not valid JSON" + (f": it goes wrong near byte {place[1]}" if place else "")
    return Refused(Decision.BODY_MALFORMED, message)
