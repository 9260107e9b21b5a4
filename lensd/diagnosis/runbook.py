"""Runbooks as typed values: rule, evidence lines and guide of one cause, read from `<id>.md`.

Front matter (YAML) says what the rule is, `## Query` holds its one SELECT, the other sections are the guide. Durations are
written `60s`, `10m`, `2h`, `1d` and become intervals; shares are written `1%` and become fractions.
"""

import difflib
import re
import string
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

import lensd
from lensd.errors import ConfigError, RunbookError
from lensd.records import Confidence, Record, Severity, Where

HEADINGS: Final = ("Meaning", "Impact", "Query", "Diagnosis", "Mitigation", "Not this")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
PLAIN_SPEC: Final = re.compile(r"(?:[<>^]?\d{0,3},?(?:\.\d{1,2})?[dfgs%]?)?")

Value = str | bool | int | float | timedelta


class Hold(Record, frozen=True, kw_only=True):
    """How long a finding stands before an incident opens, and is gone before it closes."""

    open_after: timedelta = timedelta(minutes=1)
    close_after: timedelta = timedelta(minutes=5)


class AlertFrom(Record, frozen=True, kw_only=True):
    """From how many requests on a finding opens an incident; the defaults let the first one do."""

    min_requests: int = 1
    within: timedelta = timedelta(minutes=5)
    min_share: float = 0.0


class Front(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The front matter as it is written, durations and shares already read."""

    title: str
    kind: Literal["cause", "symptom", "negative"]
    severity: Severity
    stage: Where
    scope: Literal["request", "window"]
    status: Literal["draft", "stable", "retired"]
    confidence: Confidence
    fix: str
    label: str | None = None
    window: timedelta | None = None
    needs: tuple[str, ...] = ()
    needs_any: tuple[tuple[str, ...], ...] = ()
    wakes: tuple[str, ...] = ()
    asks: str = ""
    stirs: dict[str, str] = {}
    stirs_before: str = ""
    live: bool = True
    rung: str | None = None
    rung_because: str | None = None
    params: dict[str, Any] = {}
    hold: Hold = Hold()
    alert: AlertFrom | Literal[False] = AlertFrom()
    explains: tuple[str, ...] = ()
    precedence: int = 1
    evidence: tuple[str, ...] = ()
    accounts_for: tuple[str, ...] = ()


class Runbook(Record, frozen=True, kw_only=True):
    """One rule with its guide. `id` is the file's name, `label` what its findings are called."""

    id: str
    label: str
    path: str
    title: str
    kind: Literal["cause", "symptom", "negative"]
    severity: Severity
    stage: Where
    scope: Literal["request", "window"]
    window: timedelta
    status: Literal["draft", "stable", "retired"]
    needs: tuple[str, ...]
    needs_any: tuple[tuple[str, ...], ...]
    params: dict[str, Value]
    confidence: Confidence
    hold: Hold
    alert: AlertFrom | Literal[False]  # False: never opens an incident
    explains: tuple[str, ...]
    precedence: int
    evidence: tuple[str, ...]
    fix: str
    sql: str
    sql_line: int  # where the query's first line stands in the file, from 1
    sections: dict[str, str]
    wakes: tuple[str, ...] = ()  # events without one of which, in its window, it is quiet unasked
    asks: str = ""  # a condition on `subjects` that holds of none where a request rule is quiet unasked
    stirs: dict[str, str] = msgspec.field(
        default_factory=dict
    )  # table to a condition on aggregates of its rows; where none holds a window rule is quiet unasked
    stirs_before: str = ""  # a param: for so long before the window, too, rows stir it
    live: bool = True  # False: only files tell what it needs
    rung: str | None = None  # claimed from here on only, `rung_because` what else its needs do not say
    rung_because: str | None = None
    accounts_for: tuple[str, ...] = ()  # of a negative: ids of doubts (doubts.py) that it has found harmless where it fires


class Malformed(RunbookError):
    """A runbook that does not load; `line` is where, from 1."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")
        self.line, self.message = line, message


def built_in_folder() -> Path:
    """Where the runbooks that come with lensd lie: inside an installed package, beside it in a checkout."""
    package = Path(lensd.__file__).parent
    inside = package / "_runbooks"
    return inside if inside.is_dir() else package.parent / "runbooks"


def files(folders: Iterable[Path | str] = ()) -> dict[str, Path]:
    """Id to file over the built-in folder and then `folders`; a later folder's file replaces an earlier one's of the same id."""
    found: dict[str, Path] = {}
    for folder in (built_in_folder(), *map(Path, folders)):
        if not folder.is_dir():
            raise RunbookError(f"runbook folder {folder} does not exist; create it or take it out of the configuration")
        found |= {path.stem: path for path in sorted(folder.glob("*.md"))}
    return found


def load(folders: Iterable[Path | str] = ()) -> dict[str, Runbook]:
    """All runbooks by id, retired ones left out. Raises RunbookError with file and line at the first that does not load."""
    books = {name: parse(path) for name, path in files(folders).items()}
    return {name: book for name, book in books.items() if book.status != "retired"}


def parse(path: Path) -> Runbook:
    """One file as a Runbook; raises Malformed."""
    text = path.read_text(encoding="utf-8")
    match = re.match(r"---\n(.*?)^---\n", text, re.S | re.M)
    if not match:
        raise Malformed(path, 1, "no front matter; the file starts with a line --- and closes it with another")
    front = _front(path, match[1])
    body_line = match[0].count("\n") + 1
    sections = _sections(text[match.end() :])
    query = re.search(r"```sql\n(.*?)^```", text[match.end() :], re.S | re.M)
    if not query:
        raise Malformed(path, body_line, "no query; put one ```sql block under ## Query")
    plain = {name: getattr(front, name) for name in front.__struct_fields__ if name not in ("label", "window")}
    return Runbook(
        id=path.stem,
        label=front.label or path.stem,
        path=str(path),
        window=front.window or timedelta(minutes=10),
        sql=query[1],
        sql_line=body_line + text[match.end() : match.end() + query.start(1)].count("\n"),
        sections=sections,
        **plain,
    )


def override(books: Mapping[str, Runbook], overrides: Mapping[str, Mapping[str, object]]) -> dict[str, Runbook]:
    """The runbooks with params from `[runbooks.<id>]`; raises ConfigError for an id or a param that does not exist."""
    changed = dict(books)
    for name, params in overrides.items():
        book = changed.get(name)
        if book is None:
            raise ConfigError(f"[runbooks.{name}] names no runbook{_nearest(name, changed)}")
        unknown = sorted(params.keys() - book.params.keys())
        if unknown:
            raise ConfigError(f"runbooks.{name}.{unknown[0]} is no param of that runbook{_nearest(unknown[0], book.params)}")
        read = {key: value(given) for key, given in params.items()}
        changed[name] = msgspec.structs.replace(book, params={**book.params, **read})
    return changed


def value(written: object) -> Any:
    """A duration or share as a value that SQL can use; everything else as it is."""
    if isinstance(written, Mapping):
        return {key: value(inner) for key, inner in written.items()}
    if not isinstance(written, str):
        return written
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", written):
        return timedelta(**{UNITS[match[2]]: float(match[1])})
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)%", written):
        return float(match[1]) / 100
    return written


@cache
def fields(template: str) -> tuple[tuple[str, str], ...]:
    """Names and format specs of an evidence line; raises ValueError where it holds more than plain names with plain specs."""
    found: list[tuple[str, str]] = []
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not name.isidentifier():
            raise ValueError(f"{{{name}}} is not a plain column name")
        if conversion or not PLAIN_SPEC.fullmatch(spec or ""):
            written = f"{name}{'!' + conversion if conversion else ''}:{spec}"
            raise ValueError(f"{{{written}}} is not a plain format; use d, f, g, s or % with width and precision")
        found.append((name, spec or ""))
    return tuple(found)


def _front(path: Path, text: str) -> Front:
    try:
        written = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or "it does not parse"
        raise Malformed(path, (mark.line if mark else 0) + 2, f"front matter is not YAML: {reason}") from None
    if not isinstance(written, dict):
        raise Malformed(path, 2, "front matter is not a set of keys")
    for key in ("window", "hold", "alert", "params"):
        if key in written:
            written[key] = value(written[key])
    try:
        return msgspec.convert(written, Front)
    except msgspec.ValidationError as error:
        raise Malformed(path, _line_of(text, str(error)), f"front matter: {error}") from None


def _line_of(front: str, message: str) -> int:
    """Line in the file of the front-matter key that a validation message names; 2, the first, where it names none."""
    names = re.findall(r"`\$?\.?(\w+)", message)
    for number, line in enumerate(front.splitlines(), start=2):
        if any(line.startswith(f"{name}:") for name in names):
            return number
    return 2


def _sections(body: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", body, flags=re.M)
    return {heading.strip(): text.strip() for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
