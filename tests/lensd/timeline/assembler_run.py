"""A store and an assembler that a test feeds and steps, under a clock that it sets."""

from judged_house import T0, S
from lensd_collectors.rows import Event, RequestRow, SpanRow

from lensd.store import queries
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assembler import Assembler, answered, sender_started, touched


class Run:
    """`at` in seconds after T0."""

    def __init__(self, **how):
        self.store = MemoryStore()
        self.assembler = Assembler(**how)

    def receive(self, *rows):
        flat = [one for some in rows for one in (some if isinstance(some, list) else [some])]
        tables = {"spans": [r for r in flat if isinstance(r, SpanRow)], "events": [r for r in flat if isinstance(r, Event)]}
        self.store.append(batch_of(tables))
        self.assembler.touch(touched(tables), answered(tables), started=sender_started(tables))

    def step(self, at):
        """What changed, stored."""
        with self.store.cursor() as cursor:
            changed = self.assembler.step(cursor, T0 + round(at * S))
        self.store.append(batch_of({"requests": [r.row for r in changed]}))
        return changed

    def rows(self):
        with self.store.cursor() as cursor:
            return queries.rows(cursor, "select * from requests order by started_at, span_id")

    def one(self):
        (row,) = self.rows()
        return row

    def last_rows(self):
        """The last revision of each request, as structs."""
        with self.store.cursor() as cursor:
            return queries.structs(cursor, RequestRow, "select * from requests")
