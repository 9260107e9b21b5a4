"""What people wrote beside the records: that something was slow, stood still or came out wrong. It stands against calling it well."""

import re
from typing import Final

from lensd_collectors.read.recognise import Kind

from lensd.diagnosis.folder import Folder

MOST: Final = 3  # places
MOST_FILES: Final = 50
LONGEST: Final = 400  # characters; a longer line was not written by hand
_KINDS: Final = frozenset({Kind.NOTES, Kind.HTTP_EXCHANGE, Kind.CALLS, Kind.FLAGS, Kind.UNKNOWN})
_REMARK: Final = re.compile(r"^\s*(?:#|//|--)\s*\S")
_SAID: Final = re.compile(
    r"\b(?:slow(?:er|ly|ed|ness)?(?! (?:start|log|query|path|client|ramp)\b)(?![-_=])|sluggish(?:ly)?|laggy|stutter\w*|crawl(?:s|ing|ed)"
    r"|hangs|hanging|freezes|unresponsive|stalls|unusabl[ey]|gibberish|garbled|garbage|nonsense"
    r"|(?:takes?|took|taking|needs?|wait(?:s|ed|ing)?) (?:for )?(?:ages|forever|minutes|(?:far )?too long|(?:much |far |way )?longer)"
    r"|longer than (?:before|usual|ever|yesterday|last week)|half (?:the|as) (?:speed|fast)|wrong answers?"
    r"|answers? (?:is|are|was|were) (?:wrong|cut|incomplete|broken|empty)"
    r"|(?:users?|people|team|customers?|callers?) (?:are )?complain(?:s|ed|ing)?)\b",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"\"[^\"]*\"|`[^`]*`|\u201c[^\u201d]*\u201d")
_NOT: Final = re.compile(
    r"\b(?:no|zero|without|never|none|not|neither|nor|nothing|nobody|if|when|whether|would|could|might|may|isn't|wasn't)\b[^.;]{0,50}$|n't\b[^.;]{0,40}$",
    re.IGNORECASE,
)
_OF_ALERT: Final = re.compile(r"\"alertname\"|^\W*(?:rule|expr|alert|query|summary|description|for)\b|\w=\"|\{\{", re.IGNORECASE)


def complaints(folder: Folder) -> tuple[str, ...]:
    """Places (`file:line`) of the first of them: lines of notes that no row was made of, and remarks between records."""
    found: list[str] = []
    for name, file in list(folder.files.items())[:MOST_FILES]:
        for src, line in folder.untold(name):
            is_written = _REMARK.match(line) is not None or (file.kind in _KINDS and line[:1] not in '{}[]<>" \t')
            if is_written and complains(line):
                found.append(src)
        if len(found) >= MOST:
            break
    return tuple(found[:MOST])


def complains(line: str) -> bool:
    """Whether somebody says that something was slow, stood still or came out wrong; not where it says that nothing was.

    >>> complains("# since noon answers take much longer than before"), complains("nobody found it slow"), complains("--slow-start 5")
    (True, False, False)
    """
    if len(line) > LONGEST or _OF_ALERT.search(line):
        return False
    said = _QUOTED.sub("", line)
    return any(not _NOT.search(said[: match.start()]) for match in _SAID.finditer(said))
