"""One request through the middleware: the gateway's record, filled from what passes inside the app."""

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lensd_collectors import conventions, span_json
from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.gateway.faults import read_fault
from lensd_collectors.gateway.outcome import blame, judge_stream
from lensd_collectors.gateway.record import Record, Stop
from lensd_collectors.gateway.spans import request_pairs
from lensd_collectors.gateway.sse import Scanner, read_reply
from lensd_collectors.otlp import Attributes
from lensd_collectors.scrub import scrub

MOST_HELD_BYTES: Final = 1 << 20  # of a reply that is no stream; nothing is read in a larger one
MOST_UNREAD: Final = 128  # parts of a body that are held until they are read in one go
LONG_PART: Final = 1 << 16

_REQUEST_ID: Final = span_json.string(conventions.REQUEST_ID)
_INSTANTS: Final = tuple(
    span_json.number(name)
    for name in (conventions.FIRST_BYTE_MS, conventions.FIRST_CONTENT_MS, conventions.LAST_CONTENT_MS, conventions.LAST_BYTE_MS)
)


class Exchange(Record, eq=False, kw_only=True):
    """`sent` is when the app was given the request: at once. The bytes it hands out are the engine's and those to the caller.

    `parts` and `stamps` are what the app has sent of the body and when, not read yet: between two steps of an engine nothing of
    ours is left in the processor's caches, and one by one they would cost ten times as much.
    """

    has_key: bool = False
    is_finished: bool = False  # the last body message has been handed out
    is_caller_gone: bool = False
    last_content: int = 0  # stamp of the last event with generated text
    raised: str = ""
    usage: Any = None  # vLLM's own count of tokens
    parts: list[bytes] = msgspec.field(default_factory=list)
    stamps: list[int] = msgspec.field(default_factory=list)
    held: list[bytes] = msgspec.field(default_factory=list)  # body so far, where it is no stream
    room: int = MOST_HELD_BYTES

    def start(self, status: int, headers: Any) -> None:
        self.status = int(status)  # vLLM gives an HTTPStatus too
        for name, value in headers:
            if name == b"content-type":
                self.is_sse = value.startswith(b"text/event-stream")
        if status < 400:
            self.streaming = self.is_sse
            if self.is_sse:
                self.scanner = Scanner()
                self.facts = self.scanner.facts

    def read(self) -> None:
        """Reads what is held; to be called before anything that it may have changed is looked at."""
        parts, stamps = self.parts.copy(), self.stamps.copy()
        self.parts.clear()
        self.stamps.clear()
        if not all(parts):
            stamps = [stamp for part, stamp in zip(parts, stamps, strict=True) if part]
            parts = [part for part in parts if part]
        if not parts or self.is_caller_gone:  # nobody gets it
            return
        self._take_times(parts, stamps)
        if self.scanner is not None:
            self._scan(self.scanner, parts, stamps)
        else:
            for part in parts:
                self._hold(part)

    def gone(self) -> None:
        """The server told of a disconnect; after the last body message that is only the end."""
        if not self.is_finished and not self.ended:
            self.read()
            self.is_caller_gone = True

    def close(self, now: int, scope: Any) -> None:
        """Nothing more comes. In `scope` the app has left its route, and vLLM its count of tokens."""
        self.ended = now
        state = scope.get("state")
        self.usage = getattr(state.get("request_metadata") if isinstance(state, dict) else None, "final_usage_info", None)
        template = getattr(scope.get("route"), "path", None)
        if isinstance(template, str):
            self.route = template

    def judge(self) -> None:
        """Reads the rest of a request that was closed, and judges how it ended; once."""
        if self.outcome is not Outcome.OPEN:
            return
        self.read()
        if (scanner := self.scanner) is not None:
            before = scanner.content_chunks
            scanner.finish()
            if scanner.content_chunks != before:  # of an event without its blank line, which came with the last bytes
                self._content(self.last_byte)
        body = b"".join(self.held) if self.room >= 0 else b""
        self.held.clear()
        self._judge(body)
        self.error_message = scrub(self.error_message)
        if self.decision is Decision.UPSTREAM_CREDENTIAL_REFUSED:  # here the caller's own
            self.decision = Decision.KEY_UNKNOWN if self.has_key else Decision.KEY_MISSING
        self._count_tokens()

    def span(self, also: Attributes) -> list[str]:
        """The one span of a request that was closed: what a gateway says of its own, and on the same span of its way to the engine."""
        self.judge()
        instants = (self.first_byte, self.first_content, self.last_content, self.last_byte)
        own = [span_json.quoted(self.request_id), *[repr((each - self.sent) / 1e6) for each in instants if each]]
        said = span_json.fill(_own_form(tuple(map(bool, instants))), own), span_json.pairs(also), request_pairs(self)
        return [
            span_json.write(
                f"{self.method} {self.route}",
                ",".join(filter(None, said)),
                trace_id=self.trace_id,
                span_id=self.span_id,
                parent_span_id=self.parent_span_id,
                kind="server",
                start_ns=self.wall_ns,
                end_ns=self.wall(self.ended),
                ok=self.outcome in (Outcome.OK, Outcome.REFUSED, Outcome.CALLER_GONE) and self.status < 500,
                message=self.error_message,
            )
        ]

    def _take_times(self, parts: Sequence[bytes], stamps: Sequence[int]) -> None:
        """The gap before each part, exactly: every part has its stamp."""
        if not self.first_byte:
            self.first_byte = self.first_out = self.last_byte = stamps[0]
        self.max_gap = max(self.max_gap, *map(operator.sub, stamps, (self.last_byte, *stamps[:-1])))
        self.last_byte = stamps[-1]
        self.bytes_out += sum(map(len, parts))

    def _scan(self, scanner: Scanner, parts: Sequence[bytes], stamps: Sequence[int]) -> None:
        """Part by part; what lies between the first and the last like those before, which is nearly all, in one go."""
        at, known, is_tried = 0, scanner.content_chunks, False
        while at < len(parts):
            if not is_tried and scanner.is_alike(parts[at]):
                is_tried, end = True, len(parts)
                while not scanner.is_alike(parts[end - 1]):
                    end -= 1
                if texts := scanner.feed_alike(parts[at:end]):
                    spoken = list(itertools.compress(stamps[at:end], texts))
                    for stamp in spoken[:1] + spoken[-1:]:
                        self._content(stamp)
                    at, known = end, scanner.content_chunks
                    continue
            scanner.feed(parts[at])
            if scanner.content_chunks != known:
                known = scanner.content_chunks
                self._content(stamps[at])
            at += 1

    def _content(self, stamp: int) -> None:
        self.first_content = self.first_content or stamp
        self.last_content = stamp

    def _hold(self, data: bytes) -> None:
        self.room -= len(data)
        if self.room >= 0:
            self.held.append(data)
        else:
            self.held.clear()

    def _judge(self, body: bytes) -> None:
        scanner = self.scanner
        self.said_by = SaidBy.ENGINE
        if self.is_caller_gone and scanner is not None and (scanner.done_seen or self.facts.error is not None):
            judge_stream(self, is_whole=True)  # clients close as soon as they have read [DONE] or an error: nothing was missed
        elif self.is_caller_gone:
            self.outcome, self.said_by, self.decision = Outcome.CALLER_GONE, SaidBy.CLIENT, Decision.CALLER_GONE
            self.status, self.error_type = 499, Stop.CALLER_GONE.value
        elif self.raised or not self.status:
            self.outcome, self.decision = Outcome.FAILED, Decision.ENGINE_ERROR
            self.status, self.error_type = self.status or 500, self.raised or "no_reply"
        elif self.status >= 400:
            blame(self, read_fault(self.status, body))
        elif scanner is not None:
            judge_stream(self, is_whole=self.is_finished)
        elif not self.is_finished:
            self.outcome, self.decision, self.error_type = Outcome.CUT, Decision.ENGINE_ERROR, "reply_cut"
        else:
            self.facts, self.outcome = read_reply(body), Outcome.OK

    def _count_tokens(self) -> None:
        """As vLLM counts them, where the reply did not say: a stream does only if the caller asked."""
        facts = self.facts
        if facts.prompt_tokens is None:
            facts.prompt_tokens = _tokens(self.usage, "prompt_tokens")
        if facts.completion_tokens is None:
            facts.completion_tokens = _tokens(self.usage, "completion_tokens")


@functools.lru_cache(16)
def _own_form(there: tuple[bool, ...]) -> tuple[str, ...]:
    """What only a middleware's span says, but for its figures, split at its gaps; `there`: which of the instants it has."""
    return tuple(",".join((_REQUEST_ID, *itertools.compress(_INSTANTS, there))).split(span_json.GAP))


def _tokens(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) else None
