"""The key in an Authorization header, or in which way the header is not 'Bearer KEY'. No message holds any part of a key."""

import re
from typing import Final

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.keys import MAX_KEY, PREFIX

_QUOTES: Final = ("'", '"', "`", "\u2018", "\u2019", "\u201c", "\u201d", "\u201e")
_SCHEMES: Final = ("basic", "digest", "token", "apikey", "api-key", "key", "negotiate", "aws4-hmac-sha256")
_RIGHT: Final = "send 'Authorization: Bearer KEY'"
_MADE_LENGTH: Final = len(PREFIX) + 43  # of 32 random bytes in base64
_PLACEHOLDER: Final = re.compile(
    r"[$%{<\[].*|(none|null|nil|undefined|empty|dummy|changeme|api[_-]?key|your[_-].*|sk-(x+|\.+|\*+|your.*)|[x*.]+)", re.I
)
_PROVIDERS: Final = (
    # prefix, whose keys have it; the first that fits counts
    ("sk-ant-", "Anthropic"),
    ("sk-proj-", "OpenAI"),
    ("sk-svcacct-", "OpenAI"),
    ("sk-admin-", "OpenAI"),
    ("sk-or-", "OpenRouter"),
    ("sk-lf-", "Langfuse"),
    ("hf_", "Hugging Face"),
    ("gsk_", "Groq"),
    ("AIza", "Google"),
    ("xai-", "xAI"),
    ("nvapi-", "NVIDIA"),
    ("pplx-", "Perplexity"),
    ("r8_", "Replicate"),
    ("fw_", "Fireworks"),
    ("csk-", "Cerebras"),
    ("tgp_v1_", "Together"),
    ("esecret_", "Anyscale"),
    ("dapi", "Databricks"),
    ("ABSK", "Amazon Bedrock"),
    ("AKIA", "Amazon Web Services"),
    ("ghp_", "GitHub"),
    ("github_pat_", "GitHub"),
    ("lsv2_", "LangSmith"),
)


def read_bearer(header: bytes) -> bytes:
    """The key; blanks around it and the case of `Bearer` do not count. Raises Refused(KEY_MALFORMED) that says what is wrong."""
    try:
        text = header.decode().strip(" \t")
    except UnicodeDecodeError:
        raise _malformed("the Authorization header has characters that are not printable ASCII") from None
    word, _, secret = text.partition(" ")
    secret = secret.strip(" \t")
    if word.lower() != "bearer":
        raise _malformed(_wrong_start(text))
    if wrong := _wrong_key(secret):
        raise _malformed(wrong)
    return secret.encode()


def judge_unknown(secret: bytes) -> Refused:
    """The refusal for a key that is in no file, with what its form tells about where it went wrong."""
    text = secret.decode()
    if text.startswith(PREFIX):
        if len(text) != _MADE_LENGTH:
            return Refused(Decision.KEY_UNKNOWN, f"the API key is not valid: it is {'cut off' if len(text) < _MADE_LENGTH else 'too long'}")
        return Refused(Decision.KEY_UNKNOWN)
    if _PLACEHOLDER.fullmatch(text):
        return Refused(Decision.KEY_UNKNOWN, "the API key is not valid: it is a placeholder that was never filled in")
    if provider := next((name for prefix, name in _PROVIDERS if text.startswith(prefix)), ""):
        return Refused(Decision.KEY_FOREIGN, f"this is an API key of {provider}, which is not valid here")
    if text.startswith("sk-"):
        return Refused(
            Decision.KEY_FOREIGN, "this looks like an API key of OpenAI, or of a service that makes keys like it, and is not valid here"
        )
    return Refused(Decision.KEY_UNKNOWN)


def _malformed(what: str) -> Refused:
    return Refused(Decision.KEY_MALFORMED, f"{what}: {_RIGHT}")


def _wrong_start(text: str) -> str:
    """What stands where `Bearer` should."""
    lower = text.lower()
    word = lower.partition(" ")[0]
    if lower.startswith(_QUOTES):
        return "the Authorization header is in quotes"
    if lower.startswith("authorization"):
        return "the Authorization header's value begins with the header's name"
    if lower.startswith("bearer"):
        return _WRONG_AFTER.get(lower[6], "there is no blank between 'Bearer' and the key")
    if word in _SCHEMES:
        return f"the Authorization header says '{word.title()}', not 'Bearer'"
    return "the Authorization header has no 'Bearer' before the key"


_WRONG_AFTER: Final = {
    ":": "there is a colon after 'Bearer'",
    "=": "there is an equals sign after 'Bearer'",
    "\t": "there is a tab after 'Bearer'",
    ",": "there is a comma after 'Bearer'",
}


def _wrong_key(secret: str) -> str:
    """What is wrong with what comes after `Bearer`; empty where nothing is."""
    if not secret:
        return "there is no key after 'Bearer'"
    if secret.startswith(_QUOTES) or secret.endswith(_QUOTES):
        return "the key is in quotes"
    if " " in secret or "\t" in secret:
        lower = secret.lower()
        if lower.startswith("bearer "):
            return "the Authorization header says 'Bearer' twice"
        return "the Authorization header holds more than one key" if "bearer " in lower else "the key has white space in it"
    if len(secret) > MAX_KEY:
        return f"the key is longer than {MAX_KEY} characters"
    if not secret.isascii() or not secret.isprintable():
        return "the key has characters that are not printable ASCII"
    return ""
