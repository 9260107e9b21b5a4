"""A few lines of a scrape between somebody's notes → the rows of that scrape."""

from lensd_collectors.read import prometheus
from lensd_collectors.rows import Instant, Row


class PastedSamples:
    """Keeps lines of samples until another line ends the scrape."""

    def __init__(self, name: str, engine: str | None) -> None:
        self._name, self._engine = name, engine
        self._lines: dict[int, str] = {}
        self._at: Instant | None = None

    def take(self, line: str, number: int, at: Instant | None) -> bool:
        """Whether the line is a sample, of `at` where it names no instant."""
        text = line.strip()
        if text.partition(" ")[0].endswith(":") or prometheus.parse_line(text, number) is None:
            return False
        self._at = self._at if self._lines else at
        self._lines[number] = text
        return True

    def rows(self) -> list[Row]:
        """Of the scrape that has ended; each line stands where it stands in the file."""
        if not self._lines:
            return []
        first, last = min(self._lines), max(self._lines)
        text = "\n" * (first - 1) + "\n".join(self._lines.get(number, "") for number in range(first, last + 1))
        self._lines = {}
        return prometheus.read_prometheus(text, name=self._name, engine=self._engine, at_us=self._at).rows
