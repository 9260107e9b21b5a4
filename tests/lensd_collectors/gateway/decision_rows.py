"""What the gateway decides, a row a case; first what a caller got wrong."""

from typing import Any

from decision_row import CHAT, MODELS, NARROW, Ask, Row, call, chat, complete, pieces, post, retrieve, unknown, words
from engine_decision_rows import ENGINE_ROWS, SERVER_ROWS
from gateway_house import CUT_OFF, HIDDEN, HIDDEN_ALIAS, MODEL, PROMPT


def _no(name: str, decision: str, code: str, says: str, **more: Any) -> Row:
    given = {"ask": chat(), "known": False, "more": (("www-authenticate", "Bearer"),), **more}
    return Row(name=name, decision=decision, status=401, code=code, says=says, kind="authentication_error", **given)


def _missing(name: str, **more: Any) -> Row:
    return _no(name, "key_missing", "missing_api_key", "no API key: send it as 'Authorization: Bearer KEY'", **more)


def _malformed(name: str, value: str | bytes, says: str) -> Row:
    says = f"{says}: send 'Authorization: Bearer KEY'"
    return _no(name, "key_malformed", "malformed_api_key", says, headers=(("Authorization", value),))


def _elsewhere(header: str) -> Row:
    says = f"the API key is in the header '{header}': send it as 'Authorization: Bearer KEY'"
    return _no(f"key in {header}", "key_wrong_header", "api_key_in_wrong_header", says, headers=((header, NARROW),))


def _wrong(name: str, key: str, says: str, *, decision: str = "key_unknown", code: str = "invalid_api_key") -> Row:
    return _no(name, decision, code, says, headers=(("Authorization", f"Bearer {key}"),))


def _foreign(key: str, whose: str) -> Row:
    says = f"this is an API key of {whose}, which is not valid here"
    return _wrong(f"a key of {whose}", key, says, decision="key_foreign", code="foreign_api_key")


KEY_ROWS = (
    _missing("no header", headers=()),
    _missing("an empty header", headers=(("Authorization", ""),)),
    _missing("no header, asking for models", headers=(), ask=lambda client: client.models.list(), route=MODELS),
    _malformed("no Bearer", NARROW, "the Authorization header has no 'Bearer' before the key"),
    _malformed("Bearer alone", "Bearer", "there is no key after 'Bearer'"),
    _malformed("Basic", "Basic bmFycm93OmtleQ==", "the Authorization header says 'Basic', not 'Bearer'"),
    _malformed("Token", f"Token {NARROW}", "the Authorization header says 'Token', not 'Bearer'"),
    _malformed("a colon", f"Bearer: {NARROW}", "there is a colon after 'Bearer'"),
    _malformed("the key in quotes", f'Bearer "{NARROW}"', "the key is in quotes"),
    _malformed("all of it in quotes", f"'Bearer {NARROW}'", "the Authorization header is in quotes"),
    _malformed("white space", f"Bearer {NARROW[:20]} {NARROW[20:]}", "the key has white space in it"),
    _malformed("Bearer twice", f"Bearer Bearer {NARROW}", "the Authorization header says 'Bearer' twice"),
    _malformed("two keys", f"Bearer {NARROW}, Bearer {NARROW}", "the Authorization header holds more than one key"),
    _malformed("not ASCII", f"Bearer {NARROW}é".encode(), "the key has characters that are not printable ASCII"),
    _malformed("odd bytes", b"Bearer \xff\xfe", "the Authorization header has characters that are not printable ASCII"),
    _no(
        "several headers",
        "key_malformed",
        "malformed_api_key",
        "Authorization was sent 2 times: send it once",
        headers=(("Authorization", f"Bearer {NARROW}"),) * 2,
    ),
    *map(_elsewhere, ("x-api-key", "api-key", "openai-api-key")),
    _foreign("sk-proj-" + "A" * 40, "OpenAI"),
    _foreign("sk-ant-api03-" + "A" * 40, "Anthropic"),
    _foreign("hf_" + "A" * 34, "Hugging Face"),
    _wrong("unknown", NARROW[:-1] + "Z", "the API key is not valid"),
    _wrong("cut off", CUT_OFF, "the API key is not valid: it is cut off"),
    _wrong("a placeholder", "$OPENAI_API_KEY", "the API key is not valid: it is a placeholder that was never filled in"),
    _no(
        "expired",
        "key_expired",
        "expired_api_key",
        "the API key has expired",
        key="expired",
        known=True,
        reason="key plant-key-expired expired at 2026-01-01 00:00:00 UTC",
    ),
    _no(
        "disabled",
        "key_disabled",
        "disabled_api_key",
        "the API key is disabled",
        key="disabled",
        known=True,
        reason="key plant-key-disabled is disabled",
    ),
)


def _denied(name: str, ask: Ask, **more: Any) -> Row:
    return Row(
        name=name,
        decision="model_not_allowed",
        status=403,
        code="model_not_allowed",
        kind="permission_error",
        says="this API key may not use the model",
        reason=f"key plant-key-narrow may not use {HIDDEN}",
        ask=ask,
        param="model",
        **more,
    )


RIGHTS_ROWS = (
    Row(
        name="a path that the key may not use",
        decision="route_not_allowed",
        status=403,
        code="route_not_allowed",
        kind="permission_error",
        says="this API key may not use this path",
        reason="key plant-key-embeds may not use /v1/chat/completions",
        ask=chat(),
        key="embeds",
    ),
    _denied("a model of others", chat(HIDDEN)),
    _denied("a model of others, by its alias", chat(HIDDEN_ALIAS)),
    _denied("a model of others, streaming", chat(HIDDEN, stream=True)),
    _denied("the card of a model of others", retrieve(HIDDEN), route="/v1/models/{model}"),
    unknown("a model that is not there", "gpt-4o"),
    unknown("a model that is nearly there", "tiny-lama", f"; did you mean `{MODEL}`?"),
    unknown("a model in capitals", "Tiny-Llama", f"; did you mean `{MODEL}`?"),
    unknown("a model that is nearly one of others", f"{HIDDEN}9", repeats=HIDDEN),
    unknown("the same, of one who may use it", f"{HIDDEN}9", f"; did you mean `{HIDDEN}`?", key="wide", repeats=HIDDEN),
    unknown("the card of a model that is not there", "nope", ask=retrieve("nope"), route="/v1/models/{model}"),
    unknown("a model with odd characters", "a?b", ask=chat("a\0b")),
)


def _path(base: str, path: str, meant: str = "", ask: Ask | None = None) -> Row:
    return Row(
        name=f"path {base}{path}",
        decision="path_unknown",
        status=404,
        code="route_not_found",
        says=f"there is no path {base}{path}" + (f"; did you mean {meant}?" if meant else ""),
        ask=ask or chat(),
        base=base,
        route=base + path,
        known=False,
    )


def _method(name: str, ask: Ask, says: str, route: str, allow: str) -> Row:
    return Row(
        name=name,
        decision="method_not_allowed",
        status=405,
        code="method_not_allowed",
        says=says,
        ask=ask,
        route=route,
        known=False,
        more=(("allow", allow),),
    )


PATH_ROWS = (
    _path("", "/chat/completions", CHAT),
    _path("/v1/v1", "/chat/completions", CHAT),
    _path("/openai/v1", "/chat/completions", CHAT),
    _path("", "/models", MODELS, lambda client: client.models.list()),
    _path("/v1", "/chat/completions/", CHAT, post(b"{}", "/chat/completions/")),
    _path("/v1", "/chat/completion", CHAT, post(b"{}", "/chat/completion")),
    _path("/v1", "/files", "", lambda client: client.files.list()),
    _method("GET where POST belongs", call("get", "/chat/completions"), f"{CHAT} takes POST, not GET", CHAT, "POST"),
    _method("POST where GET belongs", post(b"{}", "/models"), f"{MODELS} takes GET, not POST", MODELS, "GET"),
    _method(
        "DELETE of a model",
        lambda client: client.models.delete(MODEL),
        "/v1/models/{model} takes GET, not DELETE",
        f"/v1/models/{MODEL}",
        "GET",
    ),
)


def _bad(name: str, content: bytes, says: str, *, param: str | None = None, **more: Any) -> Row:
    given = {"decision": "body_malformed", "code": "invalid_body", "ask": post(content), "param": param, **more}
    return Row(name=name, status=400, says=says, **given)


def _twice(name: str, content: bytes, says: str, what: str = "model", **more: Any) -> Row:
    return _bad(name, content, says, param=what, decision="body_ambiguous", code=f"ambiguous_{what}", **more)


def _large(name: str, content: Any) -> Row:
    return Row(
        name=name,
        decision="body_too_large",
        status=413,
        code="request_too_large",
        says="the body is larger than 20000 bytes",
        ask=post(content),
    )


_ASK = b'{"model":"tiny-llama","messages":[{"role":"user","content":"%s"}]' % PROMPT.encode()

BODY_ROWS = (
    _large("too large by its length", b"x" * 30_000),
    _large("too large by what comes", pieces),
    _bad("empty", b"", "the request has no body"),
    _bad("not JSON", b"model=tiny-llama", "the body is not valid JSON: it goes wrong near byte 0"),
    _bad("JSON that breaks off", _ASK, f"the body breaks off: its {len(_ASK)} bytes are not the whole of a JSON object"),
    _bad("JSON and more", _ASK + b"} x", f"the body is not valid JSON: it goes wrong near byte {len(_ASK) + 3}"),
    _bad("a list", b"[%s}]" % _ASK, "the body is JSON but not an object"),
    _bad("a byte order mark", b"\xef\xbb\xbf" + _ASK + b"}", "the body begins with a byte order mark: send UTF-8 without one"),
    _bad("UTF-16", (_ASK + b"}").decode().encode("utf-16"), "the body is UTF-16 or UTF-32: send UTF-8"),
    _bad("nested without end", b'{"model":"tiny-llama","x":' + b"[" * 9000, "the body is nested too deep"),
    _bad("no model", b'{"messages":[]}', "the body names no model", param="model"),
    _bad("a null model", b'{"model":null}', "the body names no model", param="model"),
    _bad("a number for a model", b'{"model":7}', "model must be a non-empty string", param="model"),
    _bad("an empty model", b'{"model":""}', "model must be a non-empty string", param="model"),
    _twice("two models", _ASK + b',"model":"plant"}', "the body names model more than once"),
    _twice("two models, one escaped", _ASK + b',"mod\\u0065l":"plant"}', "the body names model more than once"),
    _twice("two models, one in capitals", _ASK + b',"Model":"plant"}', "the body names model more than once"),
    _twice("two limits", _ASK + b',"max_tokens":1,"max_tokens":2}', "the body names max_tokens more than once", "max_tokens"),
    _twice(
        "a model in the query too",
        b"",
        "the URL's query names a model: name it in the body only",
        ask=chat(extra_query={"model": "plant-model"}),
    ),
)


def _too_long(name: str, ask: Ask, says: str, param: str = "messages", **more: Any) -> Row:
    given = {"decision": "context_too_long", "code": "context_length_exceeded", "reached": ("/tokenize",), **more}
    return Row(name=name, status=400, says=says, ask=ask, param=param, **given)


LENGTH_ROWS = (
    _too_long(
        "a prompt over the context",
        chat(content=words(600)),
        "the prompt has 600 tokens, the server's max_model_len is 512, which is too small for it: shorten the prompt",
    ),
    _too_long(
        "a prompt that fills the context",
        complete(words(512)),
        "the prompt has 512 tokens, the server's max_model_len is 512, which leaves no room for an answer: shorten the prompt",
        "prompt",
        route="/v1/completions",
    ),
    _too_long(
        "token ids, which need no counting",
        complete([7] * 600),
        "the prompt has 600 tokens, the server's max_model_len is 512, which is too small for it: shorten the prompt",
        "prompt",
        route="/v1/completions",
        reached=(),
    ),
    _too_long(
        "max_tokens over the context",
        chat(max_tokens=5000),
        "max_tokens = 5000 is over the whole context, the server's max_model_len of 512: lower max_tokens in the client",
        "max_tokens",
        reached=(),
    ),
    _too_long(
        "a prompt over the key's own limit",
        chat(content=words(100)),
        "the prompt has 100 tokens, this key's max_prompt_tokens is 50: shorten the prompt",
        decision="prompt_too_long",
        code="prompt_too_long",
        key="short",
    ),
    _too_long(
        "max_tokens over the key's",
        chat(max_tokens=65),
        "max_tokens = 65 is over the 64 that this API key may ask for",
        "max_tokens",
        decision="max_tokens_too_large",
        code="max_tokens_too_large",
        key="brief",
        reached=(),
    ),
    _too_long(
        "max_completion_tokens over the key's",
        chat(max_completion_tokens=65, max_tokens=5),
        "max_completion_tokens = 65 is over the 64 that this API key may ask for",
        "max_completion_tokens",
        decision="max_tokens_too_large",
        code="max_tokens_too_large",
        key="brief",
        reached=(),
    ),
)

ROWS = (*KEY_ROWS, *RIGHTS_ROWS, *PATH_ROWS, *BODY_ROWS, *LENGTH_ROWS, *SERVER_ROWS, *ENGINE_ROWS)
