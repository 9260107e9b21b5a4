"""Forms of the lines that people copy of requests and answers, and what they write around them."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from lensd_collectors.dialects import FailurePattern
from lensd_collectors.read.lines import Clock, dated, rfc3339
from lensd_collectors.rows import Instant

STATUS: Final = re.compile(r"^(?:[<#] | {1,8})?HTTP/\d(?:\.\d)? (?P<status>\d{3})\b(?P<rest>.*)")
_ARROW: Final = re.compile(
    r"^ *(?P<way><{2,3}|<[-=]+|←|>{2,3}|[-=]+>|→) *"
    r"(?:(?P<told>[1-5]\d\d) (?P<reason>[A-Z][A-Za-z]+\b.*)|(?=HTTP/\d|[A-Za-z][\w-]*: |[{\[]|(?:GET|POST|PUT|DELETE|HEAD) |$))"
)  # as proxies and loggers draw which way a line went
REQUEST: Final = re.compile(
    r"^(?:[>#=-]+ ?)?(?:(?P<at>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*) )?(?:(?P<peer>\d{1,3}(?:\.\d{1,3}){3}) ?-+> ?)?"
    r"(?P<method>GET|POST|PUT|DELETE|PATCH|OPTIONS|HEAD) (?P<target>(?:https?://|/|\$)\S*)"
    r"(?:.*? from (?P<from>\d{1,3}(?:\.\d{1,3}){3}|\[?[0-9a-f:]{3,}\]?)\b)?(?:.*?-> (?P<status>[1-5]\d\d)\b)?"
)
CURL: Final = re.compile(
    r"^\s*(?:(?:\S+@\S+)?[$#>%] ?)?(?:\w+=\S+ )*(?:time )?curl\s|^\s*(?:\S+@\S+)?[$#>%] .*(?:[|;&('\"]|\bdo|\bthen|\btime|--) *curl\s"
    r"|^\s*(?:\S+@\S+)?[$%] ?\S+ (?:\S+ )*?['\"]?https?://[^\s/]+/\S*\b(?:completions|generate|generate_stream|chat|messages|responses)\b['\"]?(?:\s|$)"
)  # or whatever else asks at a prompt
ACCESS: Final = re.compile(
    r"(?:^|\s)(?:(?P<status>[1-5]\d\d) +\"?(?P<method>GET|POST|PUT|DELETE|HEAD) +(?P<path>/\S*)"
    r"|\"?(?P<verb>GET|POST|PUT|DELETE|HEAD) +(?:https?://(?P<upstream>[^/\s]+))?(?P<target>/\S*?)(?: HTTP/[\d.]+)?\"? +"
    r"(?:-+> *|=> *|: *|status[= ])?(?P<code>[1-5]\d\d)\b)(?P<rest>.*)$"
)
ASKER: Final = re.compile(
    r"(?<![\d.])(?P<peer>\d{1,3}(?:\.\d{1,3}){3})\b(?!.*\b\d{1,3}(?:\.\d{1,3}){3}\b)"
)  # the last address before a call
LASTED: Final = re.compile(
    r"^ *(?P<bytes>\d+|-)?(?:.*\s)?(?P<span>(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:µs|us|ms|s))\s*$"
)  # as Go prints a duration
OF_PROXY: Final = re.compile(r"\b(?:proxy error|reverse ?proxy|proxying|upstream|backend)\b", re.IGNORECASE)
BEGINS: Final = re.compile(r"^(?:[A-Z]{4,8}:? +)?(?:\[?[\w./-]+\]?:? +)?(?P<method>GET|POST|PUT) (?P<target>https?://\S+)")
PROMPT: Final = re.compile(r"^(?:\$|\S+@\S+[#$%]|\[\S+@\S+ [^\]]*\][#$]) +\S")
TARGET: Final = re.compile(
    r"(?:https?://(?P<host>[^\s/'\"]+)|\$\{?\w+\}?|(?<=\s)(?P<bare>localhost(?::\d+)?|[\w.-]+:\d{2,5}))(?P<path>/[^\s'\"?]*)"
)
NOISE: Final = re.compile(r"^(?:[*>](?: |$)|[{}] \[\d+ bytes data\])")  # curl -v speaking of itself
ANSWERED: Final = re.compile(r"^(?:GET|POST|PUT|DELETE) /\S* [1-5]\d\d (?:in )?\d")  # a request and how it was answered, of one line
RESULT: Final = re.compile(r"(?:->|=>|→|:) (?P<status>[1-5]\d\d)(?: OK)? (?:in|after) (?P<seconds>\d+(?:\.\d+)?) ?s\b")
HEADER: Final = re.compile(r"^(?:< )?(?P<name>[A-Za-z][\w-]*): (?P<value>.*)$")
ASKED: Final = re.compile(
    r"^(?:[>#] ?)?(?:request )?(?:body|payload|json|request) ?[:=] ?(?P<body>\{.*)$|^> (?P<sent>\{.*)$", re.IGNORECASE
)
INLINE: Final = re.compile(r"(?:-d|--data(?:-raw|-binary)?|--json)[ =]*'(?P<body>\{.*?\})'(?=\s|$|;|\))")
STAMP: Final = re.compile(
    r"^[\[(]?(?P<at>(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|[+-]\d\d:?\d\d))?)"
    r"|\d\d:\d\d:\d\d(?:[.,]\d+)?(?=Z?[\s\]]))Z?[\])]?[\s:|,-]*(?P<rest>.*)$",
    re.DOTALL,
)
TITLE: Final = re.compile(
    r"^(?P<mark>#+|-{2,}|={2,}) *(?P<at>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)[\s:|,-]*(?P<rest>.*)$"
)
LOGGED_AT: Final = re.compile(r"\[(?P<at>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d(?: [+-]\d{4})?)\]")  # as web servers write it
CAME_FROM: Final = re.compile(r" from (?P<peer>\d{1,3}(?:\.\d{1,3}){3})\b(?:.* -> (?P<status>\d{3})\b)?")
PAIR: Final = re.compile(r"(?<![\w.])(?P<key>[A-Za-z_][\w.]*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;\"']+)")
TOOK: Final = (
    re.compile(r"^real\s+(?:(?P<m>\d+)m)?(?P<s>\d+(?:\.\d+)?)s?$"),
    re.compile(
        r"(?:\belapsed(?:\.total_seconds\(\))?|\btime_total|\btotal_time|\btook|\bin total|(?<![-\w])after)[ =:]+"
        r"(?P<s>\d+(?:\.\d+)?)(?![\d.]| ?(?:m(?:s|illi)|chunk|event|token|attempt|retr|tr[iy]|byte|time|request|read|delta|char|word|%))"
        r" ?(?:s|sec|seconds)?\b"
    ),
)
TOOK_MS: Final = re.compile(r"(?<![-\w])(?:in|took|elapsed|after|duration|latency)[ =:]+(?P<ms>\d+(?:\.\d+)?) ?(?:ms|milliseconds)\b")
_CLOCK_SPAN: Final = re.compile(
    r"\b(?:in|took|elapsed|after|duration)[ =:]+(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)\b"
)  # .NET's TimeSpan
HTTP_DATE: Final = re.compile(
    r"[A-Z][a-z]{2}, (?P<day>\d\d) (?P<month>[A-Z][a-z]{2}) (?P<year>\d{4}) (?P<time>\d\d:\d\d:\d\d) (?:GMT|UTC|\+0000)"
)
HEADING: Final = re.compile(r"^#+ .*?(?:(?P<method>POST) )?(?P<target>https?://\S+)(?(method)|.*\b(?:stream|max_tokens) ?= ?\w+)")
CALL_IDS: Final = ("id", "rid", "req", "request_id", "call", "job", "doc", "ask")
FIRST: Final = re.compile(r"\bfirst (?:chunk|token|byte|content)\b.*?\bafter (?P<v>\d+(?:\.\d+)?) ?(?P<unit>ms|s)\b")
SERVED: Final = re.compile(
    r"\b(?:ok|done|completed?|finished|succeeded|success|answered)\b\W*(?:in |after |took )(?P<v>\d+(?:\.\d+)?) ?(?P<unit>ms|s)\b",
    re.IGNORECASE,
)
SAID: Final = re.compile(r"(?P<body>\{\s*[\"'](?:error|object|detail|message|type|code)[\"'] ?:.*\})")
BODY_BEHIND: Final = re.compile(r"\b(?:body|response|reply|answer|payload|error)[=:] ?(?P<body>\{.*\})\s*$")
SENT: Final = re.compile(r"\b(?P<method>POST) (?:https?://[^/\s]+)?(?P<path>/[\w./-]+)")
DATA: Final = re.compile(
    r"^\s+\"?(?:response\.)?(?:data|body|responseBody|responseText|rawResponse)\"?: ?(?P<quote>['`\"]?)(?P<body>\{.*\})(?P=quote),?\s*$"
    r"|^\s+\"?(?:body|responseBody|responseText|rawResponse)\"?: ?(?P<mark>['`\"])(?P<text>[^{<].*)(?P=mark),?\s*$"
    r"|^\s+(?:description|errorMessage): ?(?P<plain>[^{<'\"\s].*)$"
)
ADDRESS: Final = re.compile(
    r"^\s+\"?(?:config\.|request\.)?(?:url|requestUrl|request_url|uri)\"?: ?['`\"]?https?://(?P<upstream>[^/\s'`\"]+)(?P<path>/[^\s'`\"?,]*)[^\s'`\",]*['`\"]?,?\s*$"
)  # a member of an error that Node printed as an object
_BARE_KEY: Final = re.compile(r"(?<=[{,])\s*(\w+):(?= )")
CAUSE: Final = re.compile(
    r"^\s+(?:\[?cause\]?: |response\.data: \{|data: \{ error|(?:statusCode|httpCode|status_code): |responseBody: |description: )"
)
RAISED: Final = re.compile(r"^\s+(?:[A-Za-z_]\w*\.)+\w*(?:Error|Exception|Timeout)(?:: |$)")  # set in below the call that it ends
SERVER: Final = re.compile(
    r"^(?:==+|--+|#+|>>+|(?:pod|replica|server|host|node|instance|worker|backend)(?=[ :=/])[ :=/]*) *"
    r"(?P<server>[\w-]+(?:[.:-][\w-]+)*)(?: *(?:==+|--+|:))?\s*$"
)
_KEY: Final = re.compile(
    r"(?:\b[Bb]earer"
    r"|\b(?:[xX]-[aA][pP][iI]-[kK][eE][yY]|[aA][pP][iI]-?[kK][eE][yY]|x-goog-api-key|Ocp-Apim-Subscription-Key|[Aa]uthorization):)"
    r" +(?!Bearer|bearer)(?P<key><[^>]*>|[^\s'\",]+)"
)
_VARIABLE: Final = re.compile(r"\$\{?\w+\}?")
_TAIL: Final = re.compile(r"(?P<tail>[A-Za-z0-9]{4})[>\"'\])]*$")
_HEAD: Final = re.compile(
    r"<?(?!sk-?[.…*])(?P<head>[A-Za-z][\w-]{0,30}?[-_])(?:\.{3}|…|\*{2,})"
)  # of a key that is hidden but for whose it is
_HIDDEN: Final = re.compile(r"redacted|masked|hidden|removed|\*{3}$", re.IGNORECASE)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LONGEST_REPR: Final = 20_000


def instant_of(text: str, clock: Clock) -> Instant | None:
    """Of a stamp at a line's beginning; without a zone it is taken as UTC, without a day it is that of the clock."""
    if text[2:3] == ":":
        return clock.at("", text.replace(",", "."))
    return dated(text) or rfc3339(text.replace("/", "-").replace(",", "."))


def of_header(value: str) -> Instant | None:
    """The instant of a `Date:` header."""
    match = HTTP_DATE.fullmatch(value.strip())
    if match is None or match["month"] not in _MONTHS:
        return None
    return rfc3339(f"{match['year']}-{_MONTHS.index(match['month']) + 1:02d}-{match['day']}T{match['time']}Z")


def as_curl(line: str) -> str:
    """A line with curl's sign of its direction in place of another's."""
    match = _ARROW.match(line)
    if match is None:
        return line
    way = "<" if match["way"][0] in "<←" else ">"
    if match["told"]:
        return f"{way} HTTP/1.1 {match['told']} {match['reason']}" if way == "<" else line
    return f"{way} {line[match.end() :]}"


def took_ms(line: str) -> float | None:
    if match := TOOK_MS.search(line):
        return float(match["ms"])
    if match := _CLOCK_SPAN.search(line):
        return round((int(match["h"]) * 3600 + int(match["m"]) * 60 + float(match["s"])) * 1000, 3)
    for pattern in TOOK:
        if match := pattern.search(line):
            return round((int(match.groupdict().get("m") or 0) * 60 + float(match["s"])) * 1000, 3)
    return None


def as_json(text: str) -> str:
    """A body as JSON; one that Python printed as a dict is put into that form."""
    text = text.strip()
    if text[:1] == "{" and len(text) <= _LONGEST_REPR and _BARE_KEY.match(text, 1):  # as Node prints objects
        text = re.sub(
            r"\b(?:undefined|null)\b", "None", re.sub(r"\btrue\b", "True", re.sub(r"\bfalse\b", "False", _BARE_KEY.sub(r" '\1':", text)))
        )
    if text[:1] == "{" and "'" in text[:4] and len(text) <= _LONGEST_REPR:
        try:
            return json.dumps(ast.literal_eval(text), ensure_ascii=False)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return text
    return text


def pairs_of(line: str) -> dict[str, str]:
    return {match["key"]: match["value"].strip("\"'").rstrip(",;)") for match in PAIR.finditer(line)}


def first_ms(patterns: tuple[FailurePattern, ...], line: str) -> float | None:
    return next((ms for one in patterns if (match := one.regex.search(line)) and (ms := ms_of(match, "limit"))), None)


def ms_of(match: re.Match[str], what: str) -> float | None:
    groups: Mapping[str, Any] = match.groupdict()
    if groups.get(f"{what}_ms"):
        return float(groups[f"{what}_ms"])
    try:
        return float(groups[f"{what}_s"]) * 1000 if groups.get(f"{what}_s") else None
    except ValueError:
        return None


def key_of(line: str) -> str | None:
    """How the key of a request ends (`...x9Rt`), or the variable it stands in; None without a key."""
    match = _KEY.search(line)
    if match is None:
        return None
    if variable := _VARIABLE.fullmatch(match["key"]):
        return variable[0]
    tail = None if _HIDDEN.search(match["key"]) else _TAIL.search(match["key"])
    if tail is None and (head := _HEAD.match(match["key"])):
        return f"{head['head']}..."
    return f"...{tail['tail']}" if tail else None
