"""What the window rules say as time goes on: each is judged again after some seconds, and in between what it said stands."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from lensd.diagnosis.evaluate import Result, evaluate
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import Scope
from lensd.store.interface import Cursor

EVERY_US: Final = 1_950_000  # two ticks of a second each, which come a little early or late


class Standing:
    """The window rules' last answers, two seconds old at most.

    To plan a query costs more than to run it: all of them each second would take half a core.
    """

    def __init__(self, runbooks: Mapping[str, Runbook], params: Mapping[str, Mapping[str, Any]]) -> None:
        self._books = {name: book for name, book in runbooks.items() if book.scope == "window"}
        self._params = {name: given for name, given in params.items() if name in self._books}
        self._results: dict[str, Result] = {}
        self._looked: dict[str, int] = {}

    @property
    def labels(self) -> set[str]:
        return {book.label for book in self._books.values()}

    @property
    def results(self) -> tuple[Result, ...]:
        return tuple(self._results.values())

    def look(self, cursor: Cursor, now: int) -> None:
        """Judges the rules that are due at `now` (microseconds since the epoch); what cannot be asked now is asked again next time."""
        due = {name: book for name, book in self._books.items() if not 0 <= now - self._looked.get(name, -EVERY_US) < EVERY_US}
        if not due:
            return
        given = {name: params for name, params in self._params.items() if name in due}
        for result in evaluate(cursor, due, Scope(to_us=now), overrides=given).results:
            self._results[result.runbook.id] = result
            self._looked[result.runbook.id] = now

    def of_requests(self, begun_at: int, looked_from: int) -> tuple[Result, ...]:
        """The answers that hold for requests of which the first began at `begun_at`, from looks at `looked_from` or later.

        A rule that found something may have found it long before them, and one whose window begins after them may have missed it:
        those are to be judged on the requests' own time.
        """
        return tuple(
            result
            for name, result in self._results.items()
            if not result.findings and self._looked[name] >= looked_from and self._looked[name] - _window_us(result.runbook) <= begun_at
        )

    def forget(self) -> None:
        """Nothing is known any more of how things stand."""
        self._results.clear()
        self._looked.clear()


def _window_us(book: Runbook) -> int:
    return book.window // timedelta(microseconds=1)
