"""`lensd diagnose` read without typer, which takes longer to import than the daemon takes to answer.

Only calls as most are written: an id or --last, and the flags below. What is not plain, or wrong, typer reads and explains.
"""

import os
from collections.abc import Sequence
from typing import Any, Final

from lensd.cli.reading import FailOn, Format
from lensd.cli.verdict import Asked, seconds

FLAGS: Final[dict[str, dict[str, Any]]] = {"--json": {"form": Format.JSON}, "--quiet": {"quiet": True}, "-q": {"quiet": True}}
VALUES: Final = {
    "--wait": "wait",
    "--format": "form",
    "--fail-on": "fail_on",
    "--server": "server",
    "--config": "config",
    "--store": "store",
}
LAST: Final = "--last"
KINDS: Final = {"form": Format, "fail_on": FailOn}


def diagnose(arguments: Sequence[str]) -> Asked | None:
    """The call of these words, the verb first; None where it is not plain."""
    given: dict[str, Any] = {}
    idents: list[str] = []
    words = iter(arguments[1:])
    for word in words:
        name, has_value, value = word.partition("=")
        if word in FLAGS:
            given |= FLAGS[word]
        elif name in VALUES:
            text = value if has_value else next(words, "")
            if not text or text.startswith("-") or VALUES[name] in given:
                return None
            given[VALUES[name]] = text
        elif word == LAST or not word.startswith("-"):
            idents.append(word)
        else:
            return None
    return _asked(idents, given)


def _asked(idents: Sequence[str], given: dict[str, Any]) -> Asked | None:
    if len(idents) != 1 or not idents[0].strip():
        return None
    try:
        seconds(given.get("wait", "auto"))
        given |= {name: kind(given[name]) for name, kind in KINDS.items() if name in given}
    except ValueError:
        return None
    given.setdefault("server", os.environ.get("LENSD_URL") or None)
    return Asked(ident=None if idents[0] == LAST else idents[0], **given)
