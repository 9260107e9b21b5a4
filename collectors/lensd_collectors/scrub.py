"""Takes keys, prompts and completions out of a line of text before it leaves the host it was read on.

What goes is replaced by `[key]` or `[content]`, so that a reader sees that something stood there. Scrubbing twice changes nothing.
The time it takes grows with the line's length and no faster, whatever stands in it: log lines hold what callers send.
"""

import re
from typing import Final

KEY: Final = "[key]"
CONTENT: Final = "[content]"

# a quoted text; one that was cut off goes to the end of the line
_QUOTED: Final = r"""(?:'(?:[^'\\]|\\.)*(?:'|\\?$)|"(?:[^"\\]|\\.)*(?:"|\\?$))"""
# no part that repeats stands in front of a name: what a name begins with is left as it is
_SECRET: Final = r"(?:api[_-]?keys?|(?:access|auth|hf|bearer|session|refresh)[_-]?token|password|passwd|secret(?:[_-]?key)?|authorization)"
_TEXT: Final = r"(?:prompts?|system_prompt|output|outputs|messages|content|reasoning_content|arguments|input_value|input_text)"
_TOKENS: Final = r"(?:prompt_token_ids|output_token_ids|new_token_ids|all_token_ids|token_ids)"
_SECRET_HINTS: Final = ("key", "token", "passw", "secret", "authorization")
_TEXT_HINTS: Final = ("prompt", "output", "messages", "content", "arguments", "input", "text")

_RULES: Final[tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...]] = (
    # the body of a request or a reply: to the end of the line
    (("json body: ", "response_body="), re.compile(r"(JSON body: |response_body=)(?!\[content\]).+"), rf"\1{CONTENT}"),
    # pydantic shows the offending input, up to its type
    (("input_value=",), re.compile(r"(input_value=)(?!\[content\]).*?(?=, input_type=|$)"), rf"\1{CONTENT}"),
    # prompt: '...', "content": "...", output='...'
    (
        _TEXT_HINTS,
        re.compile(rf"(?i)(?<![\w.])(['\"]?{_TEXT}['\"]?\s*[:=]\s*|['\"](?:text|input)['\"]\s*:\s*){_QUOTED}"),
        rf"\1{CONTENT}",
    ),
    # prompt_token_ids: [1, 2]; messages=[{...}] goes to the last bracket, since brackets in it may nest
    (("token_ids",), re.compile(rf"(?i)({_TOKENS}['\"]?\s*[:=]\s*)\[(?=\s*-?\d)[\d,.\s-]*\]?"), rf"\1{CONTENT}"),
    (_TEXT_HINTS, re.compile(rf"(?i)(?<![\w.])(['\"]?{_TEXT}['\"]?\s*[:=]\s*)\[(?!\]|content\]).*(?:\]|$)"), rf"\1{CONTENT}"),
    # api_key='...', api_key=['...'], ?api_key=..., --api-key ..., Authorization: Bearer ...
    (_SECRET_HINTS, re.compile(rf"(?i)({_SECRET}['\"]?\s*[:=]\s*)(?:\[(?!key\])[^\]]*(?:\]|$)|{_QUOTED})"), rf"\1{KEY}"),
    (
        _SECRET_HINTS,
        re.compile(rf"(?i)({_SECRET}\s*[:=]\s*)(?!\[key\]|None\b|null\b|true\b|false\b)(?:(?:Bearer|Basic)\s+)?[^\s,;&'\"}})\[]+"),
        rf"\1{KEY}",
    ),
    (("--",), re.compile(rf"(?i)(--[a-z-]{{0,24}}{_SECRET}\s+)(?!\[key\]|-)\S+"), rf"\1{KEY}"),
    (("cookie:",), re.compile(r"(?i)(cookie:)(?!\s*\[key\]).+"), rf"\1 {KEY}"),
    (
        ("bearer", "basic"),
        re.compile(r"(?i)\b(?:Bearer|Basic)\s+(?=[^\s]*[\d_.=+/-])[A-Za-z0-9._~+/=-]{4,}|\bBearer\s+[A-Za-z]{16,}"),
        f"Bearer {KEY}",
    ),
    # keys that show what they are by their form
    (
        ("sk-", "pk-", "rk-", "hf_", "gh", "akia"),
        re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{6,}|\bhf_[A-Za-z0-9]{12,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[A-Z0-9]{16}\b"),
        KEY,
    ),
    (("eyj",), re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), KEY),
    # a query string in an access line; a URL's user and password
    (("?",), re.compile(r"(\"[A-Z]{3,7} /[^ ?\"]*)\?[^ \"]*(?= HTTP/)"), r"\1"),
    (("://",), re.compile(r"(://)[^\s/@:'\"]+:[^\s/@'\"]+@"), rf"\1{KEY}@"),
)


def scrub(line: str) -> str:
    """The line without key-looking text, prompts and completions."""
    lower = line.lower()
    for hints, pattern, instead in _RULES:
        for hint in hints:
            if hint in lower:
                line = pattern.sub(instead, line)
                break
    return line
