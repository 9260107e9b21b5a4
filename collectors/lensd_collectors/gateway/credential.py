"""The API key that an engine wants from the gateway, from a file that is read again when it changes."""

from pathlib import Path
from typing import Final

from lensd_collectors.gateway.routes import GatewayError

MAX_CREDENTIAL: Final = 4096


class Credential:
    """`header` is the value of Authorization; empty without a file."""

    __slots__ = ("_engine", "_path", "_seen", "header")

    def __init__(self, path: str, engine: str) -> None:
        """Raises GatewayError for a file that cannot be used."""
        self._path, self._engine = path, engine
        self._seen: tuple[int, int, int] | None = (0, 0, 0)
        self.header = ""
        self.reload()

    def reload(self) -> bool:
        """Whether there is a new key. Raises GatewayError, once a change, for a file that cannot be used; the old key then stays."""
        if not self._path or (stamp := self._stamp()) == self._seen:
            return False
        self._seen = stamp
        before, self.header = self.header, "Bearer " + self._read()
        return self.header != before

    def _read(self) -> str:
        said = f"upstream '{self._engine}'"
        try:
            with Path(self._path).open(encoding="utf-8") as file:
                key = file.read(MAX_CREDENTIAL + 1).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise GatewayError(f"{said}: cannot read api_key_file {self._path}") from error
        if not key or len(key) > MAX_CREDENTIAL or not key.isascii() or not key.isprintable() or " " in key:
            raise GatewayError(f"{said}: api_key_file {self._path} must hold one key and nothing else")
        return key

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = Path(self._path).stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
