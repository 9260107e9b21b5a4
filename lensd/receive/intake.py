"""Takes a body, whichever door it came through: token, limits, parsing, scrubbing, journal, counts."""

import asyncio
import contextlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from lensd.errors import FullError, ReceiveError, UnauthorizedError
from lensd.receive.limits import DoorLimits
from lensd.receive.pace import Pace
from lensd.receive.parse import parse_json
from lensd.receive.records import leave_out
from lensd.receive.repeats import Repeats
from lensd.receive.scrub import Scrubber
from lensd.receive.unpack import unpacked
from lensd.receive.wire import parse_raw
from lensd.store.bodies import hash_of
from lensd.store.journal import Journal
from lensd.store.segments import Signal

log = logging.getLogger(__name__)

_RECORDS: Final = {Signal.TRACES: "spans", Signal.METRICS: "data points", Signal.LOGS: "log records"}


class DoorCounts(msgspec.Struct, kw_only=True):
    """What the doors have done since they were made."""

    accepted: Counter[str] = msgspec.field(default_factory=Counter)  # bodies by signal, each once
    repeated: Counter[str] = msgspec.field(default_factory=Counter)  # bodies by signal that were there already
    refused: Counter[str] = msgspec.field(default_factory=Counter)  # by error code
    left_out: Counter[str] = msgspec.field(default_factory=Counter)  # records over the limit of a body, by signal
    body_bytes: int = 0  # unpacked


class Taken(NamedTuple):
    """How many records of a body were left out, and why; 0 and nothing where all of it was taken."""

    left_out: int
    why: str


class Intake:
    """What is behind every OTLP door. An empty token lets everyone in."""

    def __init__(
        self,
        journal: Journal,
        token: str,
        limits: DoorLimits | None = None,
        *,
        scrubber: Scrubber | None = None,
        repeats: Repeats | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits or DoorLimits()
        self._journal, self._clock, self._pace, self._repeats = journal, clock, pace, repeats or Repeats()
        self._bearer = f"Bearer {token}".encode() if token else b""
        self._at_work = 0
        self.scrubber = scrubber or Scrubber(max_attributes=self.limits.max_attributes, max_value_chars=self.limits.max_value_chars)
        self.counts = DoorCounts()

    @contextlib.contextmanager
    def place(self, signal: Signal, authorization: bytes) -> Iterator[None]:
        """A place among the bodies at work, for a sender with the token. Counts every ReceiveError inside, and says it in the log."""
        try:
            if self._bearer and not hmac.compare_digest(authorization, self._bearer):
                raise UnauthorizedError("bearer token missing or wrong: send `Authorization: Bearer <token>` with the token of token_file")
            if self._at_work >= self.limits.max_in_flight:
                raise FullError(f"{self._at_work} bodies are at work already: try again later")
            self._at_work += 1
            try:
                yield
            finally:
                self._at_work -= 1
        except ReceiveError as error:
            self.counts.refused[error.code] += 1
            if error.status != 401:
                log.warning("refused a body of %s: %s", signal.name.lower(), error)
            raise

    async def take(self, signal: Signal, body: bytes, *, coding: bytes = b"", is_json: bool = False) -> Taken:
        """Comes back once the journal has the body on disk, now or from an earlier attempt. Raises ReceiveError's subclasses."""
        if self._pace is not None and (wait_s := self._pace.wait_s()):
            await asyncio.sleep(wait_s)
        body = unpacked(coding, body, self.limits.max_decoded_bytes)
        self.counts.body_bytes += len(body)
        message = parse_json(signal, body) if is_json else parse_raw(signal, body)
        gone = leave_out(signal, message, self.limits.max_records)
        payload = self._kept(signal, message, None if is_json else body)
        at_us = int(self._clock() * 1e6)
        future, is_repeat = self._repeats.enter(hash_of(signal, payload), at_us, lambda: self._journal.append(signal, at_us, payload))
        if future is not None:
            await asyncio.wrap_future(future)
        counted = self.counts.repeated if is_repeat else self.counts.accepted
        counted[signal.name.lower()] += 1
        if gone and not is_repeat:
            self.counts.left_out[signal.name.lower()] += gone
        most = self.limits.max_records
        return Taken(gone, f"a body may hold {most} {_RECORDS[signal]}, the rest is left out: send smaller batches" if gone else "")

    def _kept(self, signal: Signal, message: Any, body: bytes | None) -> bytes:
        """The message as the journal keeps it: protobuf, without content and keys. `body`: its bytes, where they were protobuf."""
        changed = self.scrubber.scrub(signal, message)
        # Fields that the parser does not know are not looked into, so they are not kept.
        message.DiscardUnknownFields()
        if changed or body is None or message.ByteSize() != len(body):
            return bytes(message.SerializeToString())
        return body
