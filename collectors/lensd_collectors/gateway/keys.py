"""Who may use which model: API keys from a file that holds their hashes only, read again when it changes.

[[keys]]
id = "team-a"
sha256 = "..."          # of the whole key, hex
last4 = "x7Qd"
models = ["llama-*"]    # served names, with * and ?
disabled = false
"""

import fnmatch
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused

PREFIX: Final = "sk-lensd-"
MAX_KEY: Final = 512

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class KeysError(ValueError):
    """A keys file or entry that cannot be used; one line that names it."""


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One key as it is stored: never the key itself."""

    id: str
    sha256: str
    last4: str = ""
    models: tuple[str, ...] = ()
    disabled: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[KeyEntry] = []


class Key:
    """A key that was presented and is known."""

    __slots__ = ("_patterns", "entry")

    def __init__(self, entry: KeyEntry) -> None:
        self.entry = entry
        self._patterns = [re.compile(fnmatch.translate(each)) for each in entry.models]

    @property
    def id(self) -> str:
        return self.entry.id

    def allows(self, model: str) -> bool:
        return any(pattern.match(model) for pattern in self._patterns)


def new_key(key_id: str, models: Sequence[str], *, random_text: Callable[[int], str] = secrets.token_urlsafe) -> tuple[str, KeyEntry]:
    """A new secret, to be shown once, and the entry to append; raises KeysError for an id or pattern that cannot be stored."""
    secret = PREFIX + random_text(32)
    entry = KeyEntry(id=key_id, sha256=hashlib.sha256(secret.encode()).hexdigest(), last4=secret[-4:], models=tuple(models))
    _check(entry)
    return secret, entry


def append(path: Path, entry: KeyEntry) -> None:
    """Adds the entry and keeps the rest of the file as it stands; the file is swapped whole and is 0600 afterwards."""
    _check(entry)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if any(each.id == entry.id for each in _parse(old, path)):
        raise KeysError(f"key id '{entry.id}' is already in {path}: choose another, or revoke that one first")
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in msgspec.to_builtins(entry).items()]
    text = "\n".join([old.rstrip("\n"), "", "[[keys]]", *lines, ""]).lstrip("\n")
    _parse(text, path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise KeysError(f"cannot write {path}: {error.strerror}") from error


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """All entries of the file; none where there is no file. Raises KeysError where it cannot be used as a whole."""
    try:
        return _parse(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise KeysError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error


def _parse(text: str, path: Path) -> tuple[KeyEntry, ...]:
    try:
        entries = tuple(msgspec.toml.decode(text, type=_File).keys)
        for entry in entries:
            _check(entry)
    except (ValueError, msgspec.MsgspecError) as error:
        raise KeysError(f"{path}: {str(error).splitlines()[0]}") from error
    for name in ("id", "sha256"):
        values = [getattr(entry, name) for entry in entries]
        twice = next((entry.id for entry in entries if values.count(getattr(entry, name)) > 1), None)
        if twice is not None:
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


class KeyRing:
    """The keys in force. Looked up by digest, so that how long it takes says nothing about any key."""

    def __init__(self, path: Path) -> None:
        """Raises KeysError for a file that is broken from the start."""
        self._path = path
        self._seen = self._stamp()
        self._by_digest = self._index()

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, authorization: bytes | None) -> Key:
        """The key in an Authorization header; raises Refused with what is wrong with it."""
        if authorization is None or not authorization.strip():
            raise Refused(Decision.KEY_MISSING)
        scheme, _, secret = authorization.strip().partition(b" ")
        secret = secret.strip()
        if scheme.lower() != b"bearer" or not secret or b" " in secret or len(secret) > MAX_KEY:
            raise Refused(Decision.KEY_MALFORMED)
        key = self._by_digest.get(hashlib.sha256(secret).digest())
        if key is None:
            raise Refused(Decision.KEY_UNKNOWN)
        return key

    def reload(self) -> str | None:
        """Reads the file if it changed; what came of it, or None. Raises KeysError and keeps the keys it has if it is broken."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        if stamp is None:
            raise KeysError(f"{self._path} is gone; the {len(self)} keys it held stay in force")
        self._by_digest = self._index()
        return f"{len(self)} keys from {self._path}"

    def _index(self) -> dict[bytes, Key]:
        return {bytes.fromhex(entry.sha256): Key(entry) for entry in read_keys(self._path)}

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
