"""The keys in force: who presents one, what that key may use, and the file it came from, read again when it changes."""

import fnmatch
import hashlib
import re
import time
from collections.abc import Callable, KeysView
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.bearer import judge_unknown, read_bearer
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.keys import KeyEntry, KeysError, KeyState, read_keys
from lensd_collectors.gateway.routes import MODEL_PREFIX, MODELS

_NEVER: Final = 1 << 63


class Presented(msgspec.Struct, frozen=True):
    """What of a request's headers concerns its key."""

    authorization: bytes | None
    times: int = 1  # how many Authorization headers there are
    elsewhere: str = ""  # another header that holds a key; its value is not kept


class Key:
    """A key that was presented and is known, in force or not."""

    __slots__ = ("_expires_ns", "_models", "_routes", "_valid_until_ns", "entry", "id")

    def __init__(self, entry: KeyEntry) -> None:
        self.id = entry.id
        self.entry = entry
        self._models = _matcher(entry.models)
        self._routes = _matcher(entry.routes or ("*",))
        self._expires_ns = _NEVER if entry.expires is None else int(entry.expires.timestamp() * 1e6) * 1000
        self._valid_until_ns = 0 if entry.disabled else self._expires_ns

    def check(self, now_ns: int) -> None:
        """Raises Refused(KEY_DISABLED) or Refused(KEY_EXPIRED) for wall time `now_ns`."""
        if now_ns < self._valid_until_ns:
            return
        if self.entry.disabled:
            raise Refused(Decision.KEY_DISABLED, reason=f"key {self.id} is disabled")
        raise Refused(Decision.KEY_EXPIRED, reason=f"key {self.id} expired at {self.entry.expires:%Y-%m-%d %H:%M:%S} UTC")

    def allows(self, model: str) -> bool:
        return self._models(model) is not None

    def allows_route(self, route: str) -> bool:
        """Whether it may use the path at all. Models may always be listed: the list shows what the key may use, and clients need it."""
        return self._routes(route) is not None or route == MODELS or route.startswith(MODEL_PREFIX)


class KeyRing:
    """The keys in force. Looked up by digest, so that how long it takes says nothing about any key."""

    def __init__(self, path: Path, wall_ns: Callable[[], int] = time.time_ns) -> None:
        """Raises KeysError for a file that is broken from the start."""
        self._path, self._wall_ns = path, wall_ns
        self._seen = self._stamp()
        self._by_digest: dict[bytes, Key] = {}
        self._by_id: dict[str, Key] = {}
        self._read()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ids(self) -> KeysView[str]:
        return self._by_id.keys()

    def get(self, key_id: str) -> Key | None:
        return self._by_id.get(key_id)

    def find(self, presented: Presented) -> Key:
        """The key, in force or not (see Key.check); raises Refused with what is wrong with the header or with the key in it."""
        header = presented.authorization
        if header is not None and presented.times == 1 and header.startswith(b"Bearer "):
            key = self._by_digest.get(hashlib.sha256(header[7:]).digest())
            if key is not None:
                return key
        secret = _secret(presented)
        key = self._by_digest.get(hashlib.sha256(secret).digest())
        if key is None:
            raise judge_unknown(secret)
        return key

    def reload(self) -> str | None:
        """Reads the file if it changed; what came of it, or None. Raises KeysError and keeps the keys it has if it is broken."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        if stamp is None:
            raise KeysError(f"{self._path} is gone; the {len(self)} keys it held stay in force")
        try:
            self._read()
        except KeysError as error:
            raise KeysError(f"{error}; the {len(self)} keys read before stay in force") from error
        return f"{self._counted()} from {self._path}"

    def _read(self) -> None:
        keys = [Key(entry) for entry in read_keys(self._path)]
        self._by_digest = {bytes.fromhex(key.entry.sha256): key for key in keys}
        self._by_id = {key.id: key for key in keys}

    def _counted(self) -> str:
        """Such as "3 keys, 1 of them expired"."""
        now = datetime.fromtimestamp(self._wall_ns() / 1e9, UTC)
        states = [key.entry.state(now) for key in self._by_id.values()]
        idle = [f"{states.count(state)} of them {state}" for state in (KeyState.EXPIRED, KeyState.DISABLED) if state in states]
        return ", ".join([f"{len(self)} keys", *idle])

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _secret(presented: Presented) -> bytes:
    header = presented.authorization
    if header is None or not header.strip():
        if presented.elsewhere:
            raise Refused(
                Decision.KEY_WRONG_HEADER, f"the API key is in the header '{presented.elsewhere}': send it as 'Authorization: Bearer KEY'"
            )
        raise Refused(Decision.KEY_MISSING)
    if presented.times > 1:
        raise Refused(Decision.KEY_MALFORMED, f"Authorization was sent {presented.times} times: send it once")
    return read_bearer(header)


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Of the whole text, case and all; of the shell's wild cards only * and ? count, since a model may have brackets in its name."""
    if "*" in patterns:
        return _anything
    literal = [fnmatch.translate(pattern.replace("[", "[[]")) for pattern in patterns]
    return re.compile("|".join(literal) or r"(?!)").match


def _anything(_: str) -> bool:
    return True
