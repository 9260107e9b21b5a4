"""Lines without prompts, completions and keys: what to leave out, the cleaned line, and the parts that may be quoted as they stand."""

import re
from typing import Final

MARK: Final = "[…]"
Span = tuple[int, int]

# Text without which a pattern cannot match, in lower case: most log lines have none of it and meet no pattern.
_KEY_WORDS: Final = (
    "api_key", "api-key", "apikey", "_token", "-token", "authtoken", "hftoken", "accesstoken", "passw", "secret", "cookie", "authorization",
    "bearer", "basic ", "sk-", "hf_", "eyj",
)  # fmt: skip
_CONTENT_WORDS: Final = ("details: prompt: ", "generated response ", "json body: ", "response_body=")

_SECRETS: Final = (  # tried where a key word stands
    re.compile(r"\b(?:Bearer|Basic)\s+(?P<v>[^\s\"',;\\]+)", re.IGNORECASE),
    re.compile(
        r"(?:api[_-]?keys?|(?:hf|access|auth|hub|bearer)[_-]?token|passw(?:or)?d|secret|set-cookie|cookie|authorization)"
        r"(?:[\"'\\]*\s*[=:]\s*[\"'\\]*|[\"'],\s*[\"'])(?P<v>\[[^\]]*\]|(?!bearer\b|basic\b)[^\s\"',;)}\\]+)",
        re.IGNORECASE,
    ),
    re.compile(r"--(?:api-key|hf-token|admin-api-key)(?:\s+|=)[\"']?(?P<v>[^\s\"']+)"),
    re.compile(r"\b(?P<v>sk-[\w-]{6,}|hf_[A-Za-z0-9]{10,}|eyJ[\w-]{8,}\.[\w.-]+)"),
)
_USER_INFO: Final = re.compile(r"://(?P<v>[^/\s@:\"']+:[^/\s@\"']+)@")
_QUERY: Final = re.compile(r"(?<=[\w/])\?(?P<v>[\w.%~\[\]-]+=[^\s\"'<>]*)")
# What people write where a key belongs is no key, and often the very cause.
_PLACEHOLDER: Final = re.compile(
    r"(?i)(?:<.*>|\*+|\$\{?\w+\}?|none|null|empty|dummy|changeme|change-me|x{3,}|your[-_].*|my[-_](?:api[-_])?key|token-abc123|sk-x{3,}|sk-\.\.\..*)"
)

_RECEIVED: Final = re.compile(r"Received request \S+: ")
_TOKEN_IDS: Final = re.compile(r"token_ids['\"]?[:=] ?(?P<v>\[[^\]]*\]?)")
_TO_THE_END: Final = re.compile(
    r"(?:details: prompt: |Generated response \S+(?: \([\w ]+\))?: output: |JSON body: |response_body=)"
    r"(?P<v>.*?)(?=, finish_reason: \w+$|$)",
    re.DOTALL,
)
_CONTENT_KEY: Final = re.compile(
    r"(?P<q>\\*[\"'])(?:content|prompt|prompts|messages|input|text|arguments|reasoning|reasoning_content|system|instructions)(?P=q)\s*:\s*"
)


def is_placeholder(secret: str) -> bool:
    """Whether a "key" is an example value that nobody replaced."""
    return _PLACEHOLDER.fullmatch(secret) is not None


def spans(line: str) -> list[Span]:
    """Parts of the line that must not be kept, in order, not touching."""
    found: list[Span] = []
    lower = line.lower()
    _request_content(line, lower, found)
    if '":' in line or "':" in line:
        _json_content(line, found)
    patterns: list[re.Pattern[str]] = []
    for word in _KEY_WORDS:
        if word in lower:
            patterns += _SECRETS
            break
    if "@" in line:
        patterns.append(_USER_INFO)
    if "?" in line:
        patterns.append(_QUERY)
    for pattern in patterns:
        for match in pattern.finditer(line):
            if not is_placeholder(match["v"]):
                found.append(match.span("v"))
    return _merged(found) if found else found


def clean(line: str) -> str:
    """The line with every such part replaced by a mark."""
    gone = spans(line)
    if not gone:
        return line
    parts, at = [], 0
    for start, end in gone:
        parts += [line[at:start], MARK]
        at = end
    parts.append(line[at:])
    return "".join(parts)


def segments(line: str) -> list[Span]:
    """The parts that stay, in order: each is an exact substring that may be quoted."""
    kept, at = [], 0
    for start, end in spans(line):
        kept.append((at, start))
        at = end
    kept.append((at, len(line)))
    return [(start, end) for start, end in kept if start < end]


def _request_content(line: str, lower: str, found: list[Span]) -> None:
    if "received request " in lower and (received := _RECEIVED.search(line)):
        # Prompt and stop strings are printed as Python literals, so user text only stands between the first and the last quote.
        quotes = [at for at in (line.find("'", received.end()), line.find('"', received.end())) if at >= 0]
        if quotes:
            found.append((min(quotes), max(line.rfind("'"), line.rfind('"')) + 1))
    if "token_ids" in lower:
        found += [match.span("v") for match in _TOKEN_IDS.finditer(line) if match["v"] != "[]"]
    for word in _CONTENT_WORDS:
        if word in lower:
            found += [match.span("v") for match in _TO_THE_END.finditer(line)]
            break


def _json_content(line: str, found: list[Span]) -> None:
    at = 0
    while match := _CONTENT_KEY.search(line, at):
        at = _value_end(line, match.end(), match["q"])
        found.append((match.end(), at))


def _value_end(line: str, start: int, quote: str) -> int:
    """Where the value that begins at `start` ends; the line's end where that cannot be told."""
    opening = quote if line.startswith(quote, start) else line[start : start + 1]
    if opening in ("[", "{"):
        return len(line)
    if opening[-1:] not in ("'", '"'):
        stop = re.compile(r"[,}\]\s]").search(line, start)
        return stop.start() if stop else len(line)
    at = start + len(opening)
    while (at := line.find(opening, at)) >= 0:
        if line[at - 1] != "\\":
            return at + len(opening)
        at += len(opening)
    return len(line)


def _merged(found: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(span for span in found if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
