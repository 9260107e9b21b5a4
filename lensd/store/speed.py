"""How long the writer takes over a record of the journal, as it has found of late."""

from collections import deque
from typing import Final

WINDOW_S: Final = 10.0
"""Of work, with the checkpoints in it."""
TELLING_RECORDS: Final = 8
TELLING_S: Final = 0.25
"""A batch of fewer records in less time tells nothing: most of it is what any batch takes."""


class Speed:
    """One thread tells it of batches, any may ask."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, float]] = deque()
        self._records, self._seconds = 0, 0.0
        self.seconds_a_record = 0.0
        """0: nothing is known yet."""

    def stored(self, records: int, seconds: float) -> None:
        """A batch of at least one record is in the store."""
        if records < TELLING_RECORDS and seconds < TELLING_S:
            return
        self._batches.append((records, seconds))
        self._records, self._seconds = self._records + records, self._seconds + seconds
        while self._seconds - self._batches[0][1] >= WINDOW_S:
            records, seconds = self._batches.popleft()
            self._records, self._seconds = self._records - records, self._seconds - seconds
        self.seconds_a_record = max(0.0, self._seconds / self._records)
