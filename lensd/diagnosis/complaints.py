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
_SAID_TOO: Final = re.compile(  # of answers that were cut, of cost, and the same in other languages
    r"\b(?:(?:cut[ -](?:off|short)|truncated|incomplete|broken|half) (?:answers?|json|outputs?|repl(?:y|ies)|sentences?)"
    r"|(?:answers?|outputs?|repl(?:y|ies)|sentences?|json) (?:stops?|ends?|breaks? off"
    r"|(?:is|are|gets?|comes?(?: back)?) (?:cut|truncated|broken|half|incomplete))"
    r"|(?:bills?|costs?|spend(?:ing)?) (?:has |have )?(?:doubled|tripled|exploded|rose|risen|went up|jumped)|too expensive|so expensive"
    r"|should (?:\w+ ){0,3}be (?:\w+ )?(?:free|instant|faster|quick(?:er)?)"
    r"|langsam(?:er|es)?|träge|hängt|ruckelt|kaputt\w*|abgeschnitten\w*|unvollständig\w*|dauert (?:\w+ )?(?:ewig|lange|länger|minuten)"
    r"|(?:très|trop|plus) lente?s?|tronqué\w*|coupé\w*|(?:muy|más|demasiado) lent[oa]s?|cortad[oa]s?|incomplet[oa]s)\b"
    r"|很慢|太慢|变慢|卡住|卡顿|截断|不完整|遅い|遅く(?!な[いか]|あり)|途中で切れ",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"\"[^\"]*\"|`[^`]*`|\u201c[^\u201d]*\u201d")
_NOT: Final = re.compile(
    r"\b(?:no|zero|without|never|none|not|neither|nor|nothing|nobody|if|when|whether|would|could|might|may|isn't|wasn't)\b[^.;]{0,50}$|n't\b[^.;]{0,40}$"
    r"|[不没無无未][^。；;]{0,12}$"
    r"|\b(?:nicht|kein\w*|nie|ohne|pas|aucun\w*|jamais|sans|ning\w+|nunca|sin)\b[^.;]{0,40}$",
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
    """Whether somebody says that something was slow, stood still, was cut or came out wrong; not where it says that nothing was.

    >>> complains("# since noon answers take much longer than before"), complains("nobody found it slow"), complains("--slow-start 5")
    (True, False, False)
    >>> complains("seit Montag liefert es kaputtes JSON"), complains("die Antworten sind nicht langsamer")
    (True, False)
    >>> complains("回答变慢了"), complains("没有人说变慢")
    (True, False)
    """
    if len(line) > LONGEST or _OF_ALERT.search(line):
        return False
    said = _QUOTED.sub("", line)
    return any(not _NOT.search(said[: match.start()]) for form in (_SAID, _SAID_TOO) for match in form.finditer(said))
