"""Takes keys, prompts and completions out of a line of text before it leaves the host it was read on.

What goes is replaced by `[key]` or `[content]`, so that a reader sees that something stood there. Scrubbing twice changes nothing.
"""

import re
from typing import Final

KEY: Final = "[key]"
CONTENT: Final = "[content]"

# a quoted text; one that was cut off goes to the end of the line
_QUOTED: Final = r"""(?:'(?:[^'\\]|\\.)*(?:'|\\?$)|"(?:[^"\\]|\\.)*(?:"|\\?$))"""
_SECRET: Final = (
    r"(?:[\w-]*api[_-]?keys?|[\w-]*(?:access|auth|hf|bearer|session|refresh)[_-]?token|[\w-]*password|[\w-]*passwd"
    r"|[\w-]*secret(?:[_-]?key)?|(?:proxy-)?authorization)"
)
_TEXT: Final = r"(?:prompts?|system_prompt|output|outputs|messages|content|reasoning_content|arguments|input_value|input_text)"
_TOKENS: Final = r"(?:prompt_token_ids|output_token_ids|new_token_ids|all_token_ids|token_ids)"

_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    # the body of a request or a reply: to the end of the line
    (re.compile(r"(JSON body: |response_body=)(?!\[content\]).+"), rf"\1{CONTENT}"),
    # pydantic shows the offending input, up to its type
    (re.compile(r"(input_value=)(?!\[content\]).*?(?=, input_type=|$)"), rf"\1{CONTENT}"),
    # prompt: '...', "content": "...", output='...'
    (re.compile(rf"(?i)(?<![\w.])(['\"]?{_TEXT}['\"]?\s*[:=]\s*|['\"](?:text|input)['\"]\s*:\s*){_QUOTED}"), rf"\1{CONTENT}"),
    # prompt_token_ids: [1, 2], messages=[{...}]; a list of texts goes to the last bracket, since brackets in it may nest
    (re.compile(rf"(?i)(?<![\w.])(['\"]?{_TOKENS}['\"]?\s*[:=]\s*)\[[\d,.\s-]*\d[\d,.\s-]*(?:\]|$)"), rf"\1{CONTENT}"),
    (re.compile(rf"(?i)(?<![\w.])(['\"]?{_TEXT}['\"]?\s*[:=]\s*)\[(?!\]|content\]).*(?:\]|$)"), rf"\1{CONTENT}"),
    # api_key='...', api_key=['...'], ?api_key=..., --api-key ..., Authorization: Bearer ...
    (re.compile(rf"(?i)(?<!\w)(['\"]?{_SECRET}['\"]?\s*[:=]\s*)(?:\[(?!key\])[^\]]*(?:\]|$)|{_QUOTED})"), rf"\1{KEY}"),
    (
        re.compile(rf"(?i)(?<!\w)({_SECRET}\s*[:=]\s*)(?!\[key\]|None\b|null\b|true\b|false\b)(?:(?:Bearer|Basic)\s+)?[^\s,;&'\"}})\[]+"),
        rf"\1{KEY}",
    ),
    (re.compile(rf"(?i)(--{_SECRET}\s+)(?!\[key\]|-)\S+"), rf"\1{KEY}"),
    (re.compile(r"(?i)(\b(?:set-)?cookie:)(?!\s*\[key\]).+"), rf"\1 {KEY}"),
    (re.compile(r"(?i)\b(Bearer|Basic)\s+(?=[^\s]*[\d_.=+/-])[A-Za-z0-9._~+/=-]{4,}|\b(Bearer)\s+[A-Za-z]{16,}"), rf"Bearer {KEY}"),
    # keys that show what they are by their form
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{6,}|\bhf_[A-Za-z0-9]{12,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[A-Z0-9]{16}\b"), KEY),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), KEY),
    # a query string in an access line
    (re.compile(r"(\"[A-Z]{3,7} /[^ ?\"]*)\?[^ \"]*(?= HTTP/)"), r"\1"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:'\"]+:[^\s/@'\"]+@"), rf"\1{KEY}@"),
)


def scrub(line: str) -> str:
    """The line without key-looking text, prompts and completions."""
    for pattern, instead in _RULES:
        line = pattern.sub(instead, line)
    return line
