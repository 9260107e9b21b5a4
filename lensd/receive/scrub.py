"""Takes prompts, completions, keys, query strings and what is over a limit out of an OTLP message, and counts what it took."""

import fnmatch
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

import msgspec
from lensd_collectors.scrub import scrub as scrub_line
from opentelemetry.proto.common.v1.common_pb2 import KeyValueList

from lensd.receive.sight import Sight
from lensd.receive.wire import RawTraces, attribute
from lensd.store.segments import Signal

_ADDRESS: Final = re.compile(r"^(?P<scheme>[A-Za-z][\w+.-]*://)?(?:[^/@\s]*@)?(?P<rest>[^?#]*)")
_EVENT_NAMES: Final = frozenset({"event.name", "event_name"})
_REMEMBERED: Final = 20_000


class _Content(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    attributes: list[str]
    credentials: list[str]
    events: list[str]
    keep: list[str]
    addresses: list[str]


@cache
def _content() -> _Content:
    raw = tomllib.loads(files(__package__).joinpath("content.toml").read_text(encoding="utf-8"))
    return msgspec.convert(raw, _Content)


class Scrubber:
    """Changes messages in place; `counts` says how often what was taken out, since the scrubber was made.

    Counts are kept by the rule that matched, never by a name a sender made up. `max_attributes`: of one record, resource or map; those
    after them go. `max_value_chars`: of a text, or bytes; what is longer is cut, after it was cleaned. Not for several threads at once.
    """

    def __init__(self, *, store_content: bool = False, max_attributes: int = 128, max_value_chars: int = 16 << 10) -> None:
        content = _content()
        self._max_attributes, self._max_value_chars = max_attributes, max_value_chars
        self.counts: Counter[str] = Counter()
        self._store_content = store_content
        self._attributes = _any_of(content.credentials if store_content else (*content.attributes, *content.credentials))
        self._events = _any_of(content.events)
        self._keep = frozenset(content.keep)
        self._addresses = frozenset(content.addresses)
        self._removed: dict[str, bool] = {}  # attribute name -> whether it goes
        self._clean: set[str] = set()  # short values known to hold nothing
        self._sight = Sight(lambda name: not self._goes(name) and name not in self._addresses, max_value_chars)

    def scrub(self, kind: Signal, message: Any) -> bool:
        """True where something was taken out."""
        before = self.counts.total()
        if kind is Signal.TRACES:
            for resource in message.resource_spans:
                self._attributes_of(resource.resource)
                for scope in resource.scope_spans:
                    self._attributes_of(scope.scope)
                    if isinstance(message, RawTraces):
                        self._raw_attributes(scope.spans)
                    else:
                        for span in scope.spans:
                            self._attributes_of(span)
                    for span in scope.spans:
                        self._span(span)
        elif kind is Signal.LOGS:
            for resource in message.resource_logs:
                self._attributes_of(resource.resource)
                for scope in resource.scope_logs:
                    self._attributes_of(scope.scope)
                    for record in scope.log_records:
                        self._record(record)
        else:
            for resource in message.resource_metrics:
                self._attributes_of(resource.resource)
                for scope in resource.scope_metrics:
                    self._attributes_of(scope.scope)
                    for metric in scope.metrics:
                        self._metric(metric)
        return self.counts.total() > before

    def _raw_attributes(self, spans: Any) -> None:
        """The short way through what `_fields` does: only attributes that are not known to stay are made KeyValues and looked at."""
        of_spans = [span.attributes for span in spans]
        if doubtful := self._sight.doubtful(of_spans):
            for raws in of_spans:
                if not doubtful.isdisjoint(raws):
                    kept = [now for raw in raws if (now := self._raw(raw) if raw in doubtful else raw) is not None]
                    del raws[:]
                    raws.extend(kept)
        for raws in of_spans:
            if len(raws) > self._max_attributes:
                self._limit(raws)

    def _raw(self, raw: bytes) -> bytes | None:
        """An attribute as it may stay, None where it goes. Raises BadBodyError where it is none."""
        alone = KeyValueList(values=[attribute(raw)])
        before = self.counts.total()
        self._fields(alone.values)
        if not alone.values:
            return None
        now = bytes(alone.values[0].SerializeToString())
        if self.counts.total() == before and len(now) == len(raw):
            self._sight.remember((raw,))
            return raw
        return now

    def _span(self, span: Any) -> None:
        name = span.name
        if "?" in name:
            span.name = name = name.partition("?")[0]
            self.counts["address"] += 1
        if name not in self._clean:
            self._field(span, "name")
        if span.HasField("status") and span.status.message:
            self._field(span.status, "message")
        if span.trace_state:
            self._empty(span, "trace_state")
        for event in span.events:
            if self._carries_content(event.name):
                self._only_kept(event)
            self._field(event, "name")
            self._attributes_of(event)
        for link in span.links:
            if link.trace_state:
                self._empty(link, "trace_state")
            self._attributes_of(link)

    def _record(self, record: Any) -> None:
        name = record.event_name or next((pair.value.string_value for pair in record.attributes if pair.key in _EVENT_NAMES), "")
        if self._carries_content(name):
            self._only_kept(record)
            if record.HasField("body"):
                record.ClearField("body")
                self.counts["event"] += 1
        self._field(record, "severity_text")
        self._field(record, "event_name")
        self._attributes_of(record)
        self._value(record.body)

    def _metric(self, metric: Any) -> None:
        which = metric.WhichOneof("data")
        if metric.description:
            self._field(metric, "description")
        self._fields(metric.metadata)
        if which is None:
            return
        for point in getattr(metric, which).data_points:
            self._attributes_of(point)
            if which != "summary":
                for exemplar in point.exemplars:
                    self._fields(exemplar.filtered_attributes)

    def _empty(self, holder: Any, field: str) -> None:
        """What nobody here reads, and senders fill as they like."""
        setattr(holder, field, "")
        self.counts["unread"] += 1

    def _carries_content(self, name: str) -> bool:
        return bool(name) and not self._store_content and self._events.fullmatch(name) is not None

    def _only_kept(self, holder: Any) -> None:
        kept = [pair for pair in holder.attributes if pair.key in self._keep]
        self.counts["event"] += len(holder.attributes) - len(kept)
        if len(kept) < len(holder.attributes):
            _replace(holder.attributes, kept)

    def _attributes_of(self, holder: Any) -> None:
        self._fields(holder.attributes)

    def _fields(self, pairs: Any) -> None:
        gone, removed, clean = False, self._removed, self._clean
        for pair in pairs:  # the inside of the door's busiest loop: most names and values have been seen before
            key = pair.key
            if removed.get(key, True) and self._goes(key):
                gone = True
                continue
            value = pair.value
            text = value.string_value
            if not text:
                self._value(value)
            elif key in self._addresses:
                self._address(value)
            elif text not in clean:
                self._field(value, "string_value")
        if gone:
            kept = [pair for pair in pairs if not self._goes(pair.key)]
            self.counts["attribute"] += len(pairs) - len(kept)
            _replace(pairs, kept)
        self._limit(pairs)

    def _limit(self, pairs: Any) -> None:
        """Of KeyValues, or their bytes."""
        if len(pairs) > self._max_attributes:
            self.counts["attributes-over-limit"] += len(pairs) - self._max_attributes
            del pairs[self._max_attributes :]

    def _goes(self, key: str) -> bool:
        known = self._removed.get(key)
        if known is None:
            known = self._attributes.fullmatch(key) is not None
            if len(self._removed) >= _REMEMBERED:
                self._removed.clear()
            self._removed[key] = known
        return known

    def _value(self, value: Any) -> None:
        which = value.WhichOneof("value")
        if which == "string_value":
            self._field(value, "string_value")
        elif which == "array_value":
            for item in value.array_value.values:
                self._value(item)
        elif which == "kvlist_value":
            self._fields(value.kvlist_value.values)
        elif which == "bytes_value" and len(value.bytes_value) > self._max_value_chars:
            value.bytes_value = value.bytes_value[: self._max_value_chars]
            self.counts["value-over-limit"] += 1

    def _address(self, value: Any) -> None:
        text = value.string_value
        match = _ADDRESS.match(text)
        bare = (match["scheme"] or "") + match["rest"] if match else text
        if bare != text:
            value.string_value = bare
            self.counts["address"] += 1
        self._field(value, "string_value")

    def _field(self, holder: Any, field: str) -> None:
        text = getattr(holder, field)
        if not text or text in self._clean:
            return
        cleaned = scrub_line(text)
        if cleaned != text:
            self.counts["text"] += 1
        if len(cleaned) > self._max_value_chars:
            cleaned = cleaned[: self._max_value_chars]
            self.counts["value-over-limit"] += 1
        if cleaned != text:
            setattr(holder, field, cleaned)
            return
        if len(text) <= 64:
            if len(self._clean) >= _REMEMBERED:
                self._clean.clear()
            self._clean.add(text)


@lru_cache(maxsize=4096)
def is_content(attribute: str) -> bool:
    """Whether an attribute of this name holds content or a credential, and goes wherever nothing of that is wanted."""
    return _any_of((*_content().attributes, *_content().credentials)).fullmatch(attribute) is not None


@lru_cache(maxsize=4096)
def carries_content(event: str) -> bool:
    """Whether an event or log record of this name carries a message."""
    return _any_of(_content().events).fullmatch(event) is not None


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    return _compiled("|".join(fnmatch.translate(name) for name in names))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _replace(pairs: Any, kept: list[Any]) -> None:
    copies = [type(pair).FromString(pair.SerializeToString()) for pair in kept]
    del pairs[:]
    pairs.extend(copies)
