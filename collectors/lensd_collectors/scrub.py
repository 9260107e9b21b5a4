"""Takes keys, prompts and completions out of a line of text: what to leave out, the line without it, the parts that may be quoted.

What goes is replaced by `[key]` or `[content]`, so that a reader sees that something stood there; scrubbing twice changes nothing.
What people write where a key belongs (`your-key`, `None`, `***`) is no key and often the very cause, so it stays.
The time it takes grows with the line's length and no faster, whatever stands in it: log lines hold what callers send.
"""

import re
from typing import Final, NamedTuple

KEY: Final = "[key]"
CONTENT: Final = "[content]"
_MARKS: Final = (KEY, CONTENT)
_MOST_PASSES: Final = 4  # where one thing that goes held the end of another, the next pass finds the rest of that


class Span(NamedTuple):
    """A part of a line that must not be kept, and what is written in its stead."""

    start: int
    end: int
    mark: str


# Patterns are looked for in the line in lower case, and begin with plain text where they can: that is found many times faster.
# Prompts and completions under their names: a value in quotes or a list; any value where the name is quoted too
_AFTER_NAME: Final = r"(?P<quote>\\*[\"'])?\s*[:=]\s*"
_TEXTS: Final = tuple(  # a word, the name that holds it, and whether that counts without quotes
    (word, re.compile(name + _AFTER_NAME), bare)
    for word, name, bare in (
        ("prompt", "prompts?", True),
        ("system_prompt", "system_prompt", True),
        ("content", "content", True),
        ("reasoning_content", "reasoning_content", True),
        ("messages", "messages", True),
        ("output", "outputs?", True),
        ("input_", "input_(?:value|text)", True),
        ("arguments", "arguments", True),
        ("input", "input", False),
        ("text", "text", False),
        ("completion", "completions?", False),
        ("generated_text", "generated_text", True),
        ("_body", "(?:request|response)_body", True),
        ("reasoning", "reasoning", False),
        ("system", "system", False),
        ("instructions", "instructions", False),
    )
)
_LIST_VALUE: Final = re.compile(r"\[(?:(?<=[:=]\[)|(?<=[:=\s]\s\[))")  # or what looks like one
_BARE: Final = re.compile(r"[^,}\]\s]*")
_NO_TEXT: Final = re.compile(r"null|none|true|false|-?\d{1,9}(?:\.\d{1,9})?|")

# Lines that engines write about a request
_RECEIVED: Final = re.compile(r"received request \S+: ")
_PROMPT: Final = re.compile(
    r"prompt: (?:'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\")(?=, params: samplingparams\()"
)  # whole, as Python writes it
_TO_THE_END: Final = tuple(
    (word, re.compile(word + rest, re.DOTALL))
    for word, rest in (
        ("json body: ", "(?P<v>.*)"),
        ("response_body=", "(?P<v>.*)"),
        ("details: prompt: ", r"(?P<v>.*?)(?=, finish_reason: \w+$|\Z)"),
        ("generated response ", r"\S+(?: \([\w ]+\))?: output: (?P<v>.*?)(?=, finish_reason: \w+$|\Z)"),
    )
)
_TOKEN_IDS: Final = re.compile(r"token[_ ]ids\\*[\"']?\s*[:=]\s*(?P<v>\[[^\]]*\]?)")
# Pydantic shows the offending input, up to its type
_INPUT_VALUE: Final = re.compile(r"input_value=(?P<v>(?:'(?:[^'\\\n]|\\.)*+'?|\"(?:[^\"\\\n]|\\.)*+\"?)?+[^\n]*?)(?=, input_type=|\n|\Z)")

# Keys under their names: api_key='...', "api_key": [...], --api-key ..., Authorization: Bearer ..., ("cookie", "...")
_KEY_NAME: Final = re.compile(
    r"(?:api[_-]?keys?|(?:master|virtual|subscription|private|access)[_-]key|(?<=[\"'])token(?=[\"'\\])"
    r"|(?:access|auth|hf|hub|bearer|session|refresh|security|databricks|github|api)[_-]?token|passw(?:or)?d"
    r"|secret(?:(?:[_-]access)?[_-]?key)?|cookie|authorization)"
    r"(?:[\"'\\]*\s*[=:]\s*|[\"'],\s*b?(?=[\"'])|(?P<space>\s+))"
)
_COOKIES: Final = re.compile(r"cookie:[ \t]*(?P<v>[^\n]*)")
_FLAG: Final = re.compile(r"--[a-z-]*\Z")
_OPENING: Final = re.compile(r"b?(?P<first>\\*[\"'])(?:[\"'\\]*?(?P<last>\\*[\"'])(?![\"'\\]))?")
_SCHEME: Final = re.compile(r"(?:(?:bearer|basic)\s+)+")
_EXAMPLE: Final = r"<[^<>\n\"']{0,80}>(?![^\s,;'\")}])"
_KEY_VALUE: Final = re.compile(rf"{_EXAMPLE}|(?:(?:token|digest|negotiate|apikey)[ \t]+)?[^\s,;'\")}}]+")
_FLAG_VALUE: Final = re.compile(rf"{_EXAMPLE}|\S*[^\s\"']")
_FLAG_IS_VALUE: Final = re.compile(rf"{_EXAMPLE}|[^\s\"']+")
_LIST: Final = re.compile(r"\[(?:[^\]\"']|'[^']*(?:'|\Z)|\"[^\"]*(?:\"|\Z))*+\]?")
_IN_LIST: Final = re.compile(r"[^\s\[\],'\"]+")
_PLACEHOLDER: Final = re.compile(
    r"(?i)(?:<.*>|\*+|\$\{?\w+\}?|os\.environ/\w+|\{(?:env\.|\$)\w+\}?"
    r"|none|null|true|false|empty|dummy|changeme|change-me|x{3,}|your[-_].*|my[-_](?:api[-_])?key|token-abc123|sk-x{3,}|sk-\.\.\..*)"
)
_TOKEN_END: Final = re.compile(r"token[=:'\"\\\s]")

# Keys by their form or their place
_AUTH: Final = re.compile(r"\b(?:(?:bearer|basic)\s+)+")
_AUTH_VALUE: Final = re.compile(rf"{_EXAMPLE}|[^\s\"',;\\]+")
_AUTH_WORDS: Final = frozenset(  # "basic auth is off" names no credential
    ("and", "auth", "authentication", "authorization", "challenge", "credential", "credentials", "for", "header", "headers", "is", "key",
     "keys", "not", "of", "or", "scheme", "schemes", "token", "tokens", "was")
)  # fmt: skip
_FORMS: Final = (
    re.compile(
        r"\b(?:[spr]k-[\w-]{6,}|hf_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}\b|AIza[\w-]{30,}|gsk_[A-Za-z0-9]{20,}"
        r"|lsv2_(?:pt|sk)_\w{10,}|nvapi-[\w-]{20,}|xox[abeoprs]-[\w-]{10,})"
    ),
    re.compile(r"\beyJ[\w-]{8,}+(?:\.[\w.-]+|(?P<no>))"),  # matches to the end of the word in any case, so as not to begin in it again
)
_OTHERS: Final = re.compile("gh[pousr]_|gsk_|lsv2_")
_DATA: Final = re.compile(r"data:[\w.+/;=-]*;base64,(?P<v>[\w+/=%-]{8,})")  # an image, a sound
_USER: Final = re.compile(r"://(?P<v>[^/\s@:\"']+:(?P<password>[^/\s@\"']+))@")
_QUERIES: Final = (
    re.compile(r"\?(?<=[\w/]\?)(?P<v>[\w.%~\[\]-]+=[^\s\"'<>]*)"),
    re.compile(r"\"[a-z]{3,7} /[^ ?\"]*\?(?P<v>[^ \"]*)(?= http/)"),
)


# A text in which none of these stands loses nothing: each condition in `spans` needs one of them.
_WORDS: Final = (
    "token", "prompt", "content", "message", "put", "argument", "text", "system", "reasoning", "instruction", "received request ",
    "generated response ", "response_body=", "json body: ", "key", "secret", "cookie", "passw", "authorization", "bearer", "basic", "k-",
    "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "eyj", "akia", "aiza", "gsk_", "lsv2_", "nvapi-", "xox", "base64,", "completion",
    "_body", "@", "?",
)  # fmt: skip


def is_suspect(text: str) -> bool:
    """Whether something in the text may have to go. False for several texts joined into one says so of each: that is quick to ask."""
    lower = text.lower()
    return any(word in lower for word in _WORDS)


def is_placeholder(secret: str) -> bool:
    """Whether a "key" is an example value that nobody replaced."""
    return _PLACEHOLDER.fullmatch(secret) is not None


def scrub(line: str) -> str:
    """The line with one mark for each part that must not be kept."""
    for _ in range(_MOST_PASSES):
        gone = spans(line)
        if not gone:
            break
        parts, at = [], 0
        for start, end, mark in gone:
            parts += [line[at:start], mark]
            at = end
        line = "".join(parts) + line[at:]
    return line


def segments(line: str) -> list[tuple[int, int]]:
    """The parts that stay, in order: each is an exact substring that may be quoted."""
    kept, at = [], 0
    for start, end, _ in spans(line):
        kept.append((at, start))
        at = end
    kept.append((at, len(line)))
    return [(start, end) for start, end in kept if start < end]


def spans(line: str) -> list[Span]:
    """The parts of the line that must not be kept, in order, none over another."""
    lower = line.lower()
    if len(lower) != len(line):  # one letter that becomes two
        lower = "".join(low if len(low := letter.lower()) == 1 else letter for letter in line)
    found: list[Span] = []
    # Words without which nothing can match, written out for speed: most lines have none of them and meet no pattern.
    # A word that has a rare letter is looked for where that is, since a letter is found many times faster.
    low_line, token = "_" in lower, "token" in lower
    if (
        token or "prompt" in lower or "content" in lower or "message" in lower or "put" in lower or "argument" in lower
        or "text" in lower or "system" in lower or "reasoning" in lower or "instruction" in lower or "completion" in lower
        or (low_line and "_body" in lower)
    ):  # fmt: skip
        _texts(lower, found)
    if (
        ("d re" in lower and ("received request " in lower or "generated response " in lower)) or "details: prompt: " in lower
        or (token and "token ids" in lower) or (low_line and ("token_ids" in lower or "input_value=" in lower or "response_body=" in lower))
        or ("j" in lower and "json body: " in lower)
    ):  # fmt: skip
        _request_lines(lower, found)
    if (
        "key" in lower or "secret" in lower or "cookie" in lower or (token and _TOKEN_END.search(lower))
        or ("w" in lower and "passw" in lower) or ("z" in lower and "authorization" in lower)
    ):  # fmt: skip
        _named_keys(lower, found)
    if "b" in lower and ("bearer" in lower or "basic" in lower):
        _credentials(lower, found)
    if (
        "k-" in lower or (low_line and ("hf_" in lower or _OTHERS.search(lower)))
        or ("j" in lower and "eyj" in lower) or "akia" in lower or ("z" in lower and "aiza" in lower) or "nvapi-" in lower or "xox" in lower
    ):  # fmt: skip
        for match in (match for pattern in _FORMS for match in pattern.finditer(line)):
            if match.lastgroup is None and not is_placeholder(match[0]):
                found.append(Span(*match.span(), KEY))
    if "base64," in lower:
        found += [Span(*match.span("v"), CONTENT) for match in _DATA.finditer(lower)]
    if "@" in lower:
        found += [Span(*match.span("v"), KEY) for match in _USER.finditer(lower) if not is_placeholder(match["password"])]
    if "?" in lower:
        found += [Span(*match.span("v"), CONTENT) for pattern in _QUERIES for match in pattern.finditer(lower)]
    return _merged(lower, found) if found else []


def _texts(lower: str, found: list[Span]) -> None:
    """Values under the names of prompts and completions; names inside of such a value are not looked at."""
    if not ('"' in lower or "'" in lower or _LIST_VALUE.search(lower)):
        return
    names: list[tuple[int, re.Match[str], bool]] = []
    for word, pattern, bare in _TEXTS:
        if word in lower:
            names += [(match.start(), match, bare) for match in pattern.finditer(lower)]
    if not names:
        return
    names.sort(key=lambda name: name[0])
    covered = 0
    for start, match, bare in names:
        if start < covered:
            continue
        quote = match["quote"] or ""
        quoted = bool(quote) and start >= len(quote) and lower.startswith(quote, start - len(quote))
        if not quoted:
            before = lower[start - 1] if start else " "
            if not (bare or (quote and before in "\"'")) or len(quote) > 1 or before in "._" or before.isalnum():
                continue
        at = match.end()
        end, covered = _text_value(lower, at, quote if quoted else "")
        found.append(Span(at, end, CONTENT))


def _text_value(lower: str, at: int, quote: str) -> tuple[int, int]:
    """Where the value that begins at `at` ends, and where to look on; `quote` is what its name stands in."""
    first = lower[at : at + 1]
    if lower.startswith(("[]", "{}", *_MARKS), at):
        return at, at
    opening = quote if quote and lower.startswith(quote, at) else first
    if opening and opening[-1] in "\"'":
        begin = at + len(opening)
        if lower.startswith(opening, begin) and len(opening) == 1:
            return at, begin + 1
        end = _closing(lower, begin, opening)
        # Text in quotes may have been quoted twice, and then an even number of backslashes does not end it.
        return max(end, _closing(lower, begin, opening, strict=True)) if quote else end, end
    if first == "[" and not quote:  # brackets in it may nest, or it was cut off
        end = lower.find("\n", at)
        end = end if end >= 0 else len(lower)
        return end, end
    if first and first in "[{" and quote:  # it may go on over lines
        return len(lower), len(lower)
    if not quote:
        return at, at
    match = _BARE.match(lower, at)
    end = match.end() if match and not _NO_TEXT.fullmatch(match[0]) else at
    return end, end


def _closing(lower: str, begin: int, opening: str, *, strict: bool = False) -> int:
    """Behind the quote that ends what `opening` opened, else the line's end; a strict one has just its own backslashes before it."""
    quote, own, at = opening[-1], len(opening) - 1, begin
    while (at := lower.find(quote, at)) >= 0:
        before = at
        while before > begin and lower[before - 1] == "\\":
            before -= 1
        if (at - before == own) if strict else ((at - before) % (2 * own + 2) == own):
            return at + 1
        at += 1
    return len(lower)


def _request_lines(lower: str, found: list[Span]) -> None:
    if received := _RECEIVED.search(lower):
        # Prompt and stop strings are printed as Python literals, so user text only stands between the first and the last quote.
        begin = received.end()
        if prompt := _PROMPT.match(lower, begin):
            found.append(Span(begin + len("prompt: "), prompt.end(), CONTENT))
            begin = prompt.end()
        quotes = [at for at in (lower.find("'", begin), lower.find('"', begin)) if at >= 0]
        if quotes:
            last = max(lower.rfind("'"), lower.rfind('"'))
            found.append(Span(min(quotes), last + 1 if last > min(quotes) else len(lower), CONTENT))
    for word, pattern in _TO_THE_END:
        if word in lower:
            found += [Span(*match.span("v"), CONTENT) for match in pattern.finditer(lower)]
    if "token_ids" in lower or "token ids" in lower:
        found += [Span(*match.span("v"), CONTENT) for match in _TOKEN_IDS.finditer(lower) if match["v"] != "[]"]
    if "input_value=" in lower:
        found += [Span(*match.span("v"), CONTENT) for match in _INPUT_VALUE.finditer(lower)]


def _named_keys(lower: str, found: list[Span]) -> None:
    if "cookie:" in lower:
        found += [Span(*match.span("v"), KEY) for match in _COOKIES.finditer(lower)]
    covered = 0
    for match in _KEY_NAME.finditer(lower):
        at, flag = match.end(), _FLAG.search(lower, max(0, match.start() - 26), match.start())
        if at < covered or (match["space"] and not flag):
            continue
        bare = _KEY_VALUE if not flag else _FLAG_VALUE if match["space"] else _FLAG_IS_VALUE
        start, end = _key_value(lower, at, bare)
        covered = end
        value = lower[start:end]
        if value and not _is_no_key(value) and not (value[0] == "[" and all(map(is_placeholder, _IN_LIST.findall(value)))):
            found.append(Span(start, end, KEY))


def _key_value(lower: str, at: int, bare: re.Pattern[str]) -> tuple[int, int]:
    """The value that begins at `at`, without the quotes it stands in and without the word before a credential."""
    opening = _OPENING.match(lower, at)
    if opening:
        at, first, last = opening.end(), opening["first"], opening["last"] or ""
        if first == last and (at == len(lower) or lower[at] in " \t\r\n,;)}]"):
            return at, at  # nothing in quotes
        end = max(_inside(lower, at, quote) for quote in (first, last or first))
        return _end(_SCHEME, lower, at), end
    if bare is not _FLAG_VALUE and lower.startswith("[", at) and not lower.startswith(_MARKS, at):
        return at, max(_end(_LIST, lower, at), _end(bare, lower, at))
    at = _end(_SCHEME, lower, at)
    return at, _end(bare, lower, at)


def _inside(lower: str, begin: int, opening: str) -> int:
    """The end of what `opening` opened, without the quote that closes it."""
    end = _closing(lower, begin, opening)
    return end - len(opening) if lower.endswith(opening, begin, end) else end


def _credentials(lower: str, found: list[Span]) -> None:
    for match in _AUTH.finditer(lower):
        value = _AUTH_VALUE.match(lower, match.end())
        if value and not _is_no_key(value[0]) and value[0].rstrip(".:)") not in _AUTH_WORDS:
            found.append(Span(*value.span(), KEY))


def _is_no_key(value: str) -> bool:
    return is_placeholder(value) or is_placeholder(value.rstrip(".:]>"))


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _merged(lower: str, found: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(found):
        start, end, mark = span
        if start >= end or lower[start:end].strip() in _MARKS:
            continue
        if merged and start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Span(last.start, max(end, last.end), last.mark if last.mark == mark else CONTENT)
        else:
            merged.append(span)
    return merged
