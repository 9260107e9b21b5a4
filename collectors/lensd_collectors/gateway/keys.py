"""API keys as they are stored: a file that holds their hashes, what each may use, how much, and until when.

[[keys]]
id = "team-a"
sha256 = "..."                        # of the whole key, hex
last4 = "x7Qd"
models = ["llama-*"]                  # served names, with * and ?; none: no model
disabled = false
routes = ["/v1/chat/completions"]     # paths, with * and ?; left out: every path
expires = 2027-01-31T00:00:00Z        # left out: never
requests_per_min = 60                 # this and the next four: left out or 0 is no limit
tokens_per_min = 100000               # prompt and completion together
concurrency = 4                       # requests at the same time
max_tokens = 1024                     # the most that a request may ask for
max_prompt_tokens = 8000
"""

import contextlib
import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from lensd_collectors.gateway import keyfile

PREFIX: Final = "sk-lensd-"
MAX_KEY: Final = 512
LEAST_IMPORTED: Final = 16  # a shorter one could be found from its hash by trying
MOST: Final = {
    "requests_per_min": 10_000_000,
    "tokens_per_min": 10**12,
    "concurrency": 100_000,
    "max_tokens": 10**8,
    "max_prompt_tokens": 10**8,
}

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SHOWN: Final = {
    "requests_per_min": "{} requests/min",
    "tokens_per_min": "{} tokens/min",
    "concurrency": "{} at a time",
    "max_tokens": "max_tokens {}",
    "max_prompt_tokens": "prompts up to {} tokens",
}
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class KeysError(ValueError):
    """A keys file or entry that cannot be used; one line that names it."""


class KeyState(StrEnum):
    IN_USE = "in use"
    EXPIRED = "expired"
    DISABLED = "disabled"


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One key as it is stored: never the key itself. Of the limits, 0 is none."""

    id: str
    sha256: str
    last4: str = ""
    models: tuple[str, ...] = ()
    disabled: bool = False
    routes: tuple[str, ...] = ()
    expires: Moment | None = None
    requests_per_min: int = 0
    tokens_per_min: int = 0
    concurrency: int = 0
    max_tokens: int = 0
    max_prompt_tokens: int = 0

    def state(self, now: datetime) -> KeyState:
        if self.disabled:
            return KeyState.DISABLED
        return KeyState.EXPIRED if self.expires is not None and now >= self.expires else KeyState.IN_USE

    def limits(self) -> Iterator[str]:
        """Each limit it has, in words."""
        return (self.limit(name) for name in _SHOWN if getattr(self, name))

    def limit(self, name: str) -> str:
        """One limit in words: 60 requests/min."""
        return _SHOWN[name].format(getattr(self, name))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[KeyEntry] = []


def new_key(key_id: str, models: Sequence[str], *, random_text: Callable[[int], str] = secrets.token_urlsafe) -> tuple[str, KeyEntry]:
    """A new secret, to be shown once, and its entry; raises KeysError for an id or pattern that cannot be stored."""
    secret = PREFIX + random_text(32)
    return secret, entry_of(key_id, secret, models)


def entry_of(key_id: str, secret: str, models: Sequence[str]) -> KeyEntry:
    """The entry of a key that has been given out already. Raises KeysError, and never says what the key is."""
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise KeysError("the key to import must be one word of printable ASCII")
    if secret[:1] in "'\"`" or secret[-1:] in "'\"`":
        raise KeysError("the key to import is empty or in quotes")
    if not LEAST_IMPORTED <= len(secret) <= MAX_KEY:
        raise KeysError(f"the key to import has {len(secret)} characters: {LEAST_IMPORTED} to {MAX_KEY} can be kept safely as a hash")
    entry = KeyEntry(id=key_id, sha256=hashlib.sha256(secret.encode()).hexdigest(), last4=secret[-4:], models=tuple(models))
    _check(entry)
    return entry


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """All entries of the file; none where there is no file. Raises KeysError where it cannot be used as a whole."""
    try:
        return _parse(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise KeysError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error


def append(path: Path, entry: KeyEntry) -> None:
    """Adds the entry and keeps the rest of the file as it stands; the file is swapped whole and is 0600 afterwards."""
    _check(entry)
    with _opened(path) as file:
        entries = _parse(file.text, path)
        if any(each.id == entry.id for each in entries):
            raise KeysError(f"key id '{entry.id}' is already in {path}: choose another, or revoke that one first")
        if same := next((each.id for each in entries if each.sha256 == entry.sha256), None):
            raise KeysError(f"this key is already in {path}, as '{same}'")
        before = file.text.rstrip("\n")
        text = f"{before}\n\n{_as_toml(entry)}" if before else _as_toml(entry)
        file.write(_proven(text, path, (*entries, entry)))


def revoke(path: Path, key_id: str) -> KeyEntry:
    """Disables the entry, which stays so that its requests can still be told by name; the entry as it was."""
    with _opened(path) as file:
        place, entries = _find(file.text, path, key_id)
        old = entries[place]
        if not old.disabled:
            wanted = (*entries[:place], msgspec.structs.replace(old, disabled=True), *entries[place + 1 :])
            file.write(_proven(keyfile.disabled(file.text, place, len(entries)), path, wanted))
        return old


def delete(path: Path, key_id: str) -> KeyEntry:
    """Takes the entry out of the file; the entry as it was."""
    with _opened(path) as file:
        place, entries = _find(file.text, path, key_id)
        wanted = (*entries[:place], *entries[place + 1 :])
        file.write(_proven(keyfile.without(file.text, place, len(entries)), path, wanted))
        return entries[place]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[keyfile.Opened]:
    try:
        with keyfile.opened(path) as file:
            yield file
    except keyfile.FormError as error:
        raise KeysError(f"{path} is not written as one [[keys]] table a key: change the entry by hand") from error
    except UnicodeDecodeError as error:
        raise KeysError(f"cannot read {path}: not UTF-8") from error
    except OSError as error:
        raise KeysError(f"cannot write {path}: {error.strerror}") from error


def _find(text: str, path: Path, key_id: str) -> tuple[int, tuple[KeyEntry, ...]]:
    entries = _parse(text, path)
    place = next((number for number, entry in enumerate(entries) if entry.id == key_id), None)
    if place is None:
        raise KeysError(f"no key in {path} has the id {key_id[:64]!r}: `lensd keys ls` shows them")
    return place, entries


def _proven(text: str, path: Path, wanted: tuple[KeyEntry, ...]) -> str:
    """The changed text, if it says what was meant and nothing else: TOML has more forms than are looked for."""
    with contextlib.suppress(KeysError):
        if _parse(text, path) == wanted:
            return text
    raise keyfile.FormError


def _parse(text: str, path: Path) -> tuple[KeyEntry, ...]:
    try:
        entries = tuple(msgspec.toml.decode(text, type=_File).keys)
        for entry in entries:
            _check(entry)
    except (ValueError, msgspec.MsgspecError) as error:
        raise KeysError(f"{path}: {str(error).splitlines()[0]}") from error
    for name in ("id", "sha256"):
        times = Counter(getattr(entry, name) for entry in entries)
        if twice := next((entry.id for entry in entries if times[getattr(entry, name)] > 1), None):
            raise KeysError(f"{path}: key '{twice}' shares its {name} with another key")
    return entries


def _check(entry: KeyEntry) -> None:
    if not _ID.fullmatch(entry.id):
        raise KeysError(f"key id {entry.id[:64]!r} must be 1 to 64 letters, digits, dots, dashes or underscores")
    if not _SHA256.fullmatch(entry.sha256):
        raise KeysError(f"key '{entry.id}': sha256 must be 64 lower-case hex digits")
    for pattern in entry.models:
        if not pattern or not pattern.isprintable():
            raise KeysError(f"key '{entry.id}': model pattern {pattern!r} must be printable and not empty")
    for pattern in entry.routes:
        if not pattern.startswith(("/", "*")) or not pattern.isprintable():
            raise KeysError(f"key '{entry.id}': route {pattern!r} must be a path such as /v1/chat/completions, * and ? allowed")
    for name, most in MOST.items():
        if not 0 <= (limit := getattr(entry, name)) <= most:
            raise KeysError(f"key '{entry.id}': {name} = {limit} must lie between 0 (no limit) and {most}")


def _as_toml(entry: KeyEntry) -> str:
    """The entry as the text of a table, without what it leaves at its default."""
    plain = KeyEntry(id="", sha256="")
    always = ("id", "sha256", "last4", "models", "disabled")
    named = {name: getattr(entry, name) for name in KeyEntry.__struct_fields__}
    lines = [f"{name} = {_value(value)}" for name, value in named.items() if name in always or value != getattr(plain, name)]
    return "\n".join(["[[keys]]", *lines, ""])


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps(value, ensure_ascii=False)
