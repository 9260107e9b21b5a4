"""What is known of one request, sorted by who said it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from lensd_collectors import conventions as c

from lensd.timeline.engine_times import Answer, EngineTimes, measured, of_record, of_span
from lensd.timeline.told import LONGEST_AGO_MS as LONGEST_AGO_MS
from lensd.timeline.told import Sender as Sender
from lensd.timeline.told import Signal as Signal
from lensd.timeline.told import Span as Span


@dataclass(slots=True)
class RequestEvidence:
    """All spans and events of one request. `trace_id` and `span_id` identify it."""

    trace_id: str
    span_id: str
    gateway: Span | None = None
    auth_routing: Span | None = None
    upstreams: list[Span] = field(default_factory=list)  # an attempt each, in order
    streaming: Span | None = None
    middleware: Span | None = None
    engine_spans: list[Span] = field(default_factory=list)
    client: Span | None = None
    signals: list[Signal] = field(default_factory=list)  # started and progress, oldest first
    engine_records: list[Signal] = field(default_factory=list)  # the plugin's, oldest first; one an answer
    logged: list[Signal] = field(default_factory=list)  # lines of the engine's log, of a request that nobody else tells of
    taken_in: list[tuple[str, str]] = field(default_factory=list)  # trace and span ids of what had looked like a request of its own
    successor: Signal | None = None  # start of the process that took its sender's place, which can end no request of the old one
    _times: EngineTimes | Literal["not asked"] | None = "not asked"
    _answers: list[Answer] | None = None
    _said: dict[str, Any] | None = None
    engine_ahead: int | None = None  # `instants.engine_skew`, once it was asked for

    @property
    def entry(self) -> Span | None:
        """The span that saw the request whole on the server side: the middleware's only where no gateway stands before it."""
        inside = self.middleware is not None and self.middleware.span_id != self.span_id and self.signals
        return self.gateway or (None if inside else self.middleware)

    @property
    def is_inside_engine(self) -> bool:
        """Whether what is open was told of by an engine's middleware: a gateway knows the model, or has not read the body yet."""
        told = [signal.fields for signal in self.signals]
        return self.gateway is None and not any(f.get(c.REQUEST_MODEL) or f.get(c.PROGRESS_STAGE) == "auth_routing" for f in told)

    @property
    def parent_span_id(self) -> str | None:
        """The span above the outermost that is known."""
        top = self.entry or (self.engine_spans[0] if self.engine_spans and not self.signals else None)
        told = top.parent_span_id if top is not None else self.value(c.PARENT_SPAN_ID)
        return told if isinstance(told, str) else None

    @property
    def may_be_anothers(self) -> bool:
        """Whether a server in front of all that is known may still turn up, and take this in."""
        if self.gateway is not None or (self.signals and not self.is_inside_engine):
            return False
        if self.client is not None and self.client.span_id == self.parent_span_id:
            return False  # the caller asked the engine itself
        return self.parent_span_id is not None or not (self.signals or self.middleware or self.engine_spans)

    @property
    def upstream(self) -> Span | None:
        return self.upstreams[-1] if self.upstreams else None

    @property
    def last_signal(self) -> Signal | None:
        return self.signals[-1] if self.signals else None

    @property
    def engine_record(self) -> Signal | None:
        """The plugin's record of the answer that ended last."""
        return self.engine_records[-1] if self.engine_records else None

    def complete(self) -> None:
        """Nothing more will be told of it: what `value` gives is found in one place from now on."""
        said: dict[str, Any] = {}
        if self.client is not None:
            said |= self.client.attributes
        for signal in self.signals:
            said |= signal.fields
        for span in (self.middleware, self.gateway):
            if span is not None:
                said |= span.attributes
        if None in said.values():  # one that says nothing does not hide what another says
            said = {name: self.value(name) for name in said}
        self._said = said

    def value(self, name: str) -> Any:
        """An attribute of the request as the best witness gives it: gateway, middleware, its events, then the client."""
        if self._said is not None:
            return self._said.get(name)
        for span in (self.gateway, self.middleware):
            if span is not None and span.attributes.get(name) is not None:
                return span.attributes[name]
        for signal in reversed(self.signals):
            if signal.fields.get(name) is not None:
                return signal.fields[name]
        return self.client.attributes.get(name) if self.client is not None else None

    @property
    def server_extent(self) -> tuple[int, int] | None:
        """From the first instant to the last that is known of a request by its server's side; None: no server tells of it."""
        seen = [s for s in (self.gateway, self.middleware, *self.engine_spans) if s is not None]
        instants = [*(s.start for s in seen), *(s.end for s in seen)]
        for signal in self.signals:
            instants += [signal.ago(c.PROGRESS_AGE_MS), signal.at]
        if not instants:
            for told in (*self.engine_records, *self.logged):
                instants += [told.ago(c.E2E_MS), told.at]
        return (min(instants), max(instants)) if instants else None

    def answers(self) -> list[Answer]:
        """Each sequence as the engine's plugin and its own spans tell of it; one that made no token only where none made any.

        Such a one is an attempt before the one that answered. Asked when all evidence is in.
        """
        if self._answers is None:
            told = [*map(of_record, self.engine_records), *map(of_span, self.engine_spans)]
            self._answers = [answer for answer in told if answer.tokens != 0] or told
        return self._answers

    def engine_times(self) -> EngineTimes | None:
        """The engine's own measure; None where it measured no stage. Asked when all evidence is in."""
        if self._times == "not asked":
            times = measured(self.answers(), [s for s in (self.gateway, self.middleware) if s is not None])
            self._times = times if times is not None and any(times[:3]) else None  # what was never scheduled reached no stage
        return self._times
