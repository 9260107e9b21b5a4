"""Lines of a log that stand between tables: somebody pasted `nvidia-smi`, `ollama ps` and `dmesg` into one file."""

from lensd_collectors.dialects import Dialect, load
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.rows import Instant, Row


class Strays:
    """Reads such lines of one file, each as the product that marks it would be read."""

    def __init__(self, name: str, engine: str | None = None) -> None:
        self._name, self._engine = name, engine
        self._readers: dict[str, LineReader] = {}

    def read(self, line: str, number: int, at: Instant | None) -> list[Row] | None:
        """The rows of a line, at `at` where it has no instant of its own; None for a line of no product."""
        dialect = next((each for each in load().values() if any(mark.search(line) for mark in each.recognise.log)), None)
        if dialect is None:
            return None
        reader = self._reader(dialect)
        before = reader.unread
        rows = reader.feed(line, number=number, at_us=None)
        for row in rows:
            if at is not None and getattr(row, "seen_at", at) is None:
                row.seen_at = at  # type: ignore[attr-defined]
        return None if reader.unread > before else rows

    def _reader(self, dialect: Dialect) -> LineReader:
        if dialect.name not in self._readers:
            self._readers[dialect.name] = LineReader(dialect, engine=self._engine, path=self._name)
        return self._readers[dialect.name]
