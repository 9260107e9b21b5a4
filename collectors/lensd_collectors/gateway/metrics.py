"""The gateway's `/metrics`: what it counted of requests that have ended, and how it stands now, as Prometheus text.

Labels are bounded: routes, models and statuses that are not known share one value, so no caller can add a series, and nothing that
a caller or an engine wrote becomes a label. `docs/conventions.md` lists METRICS.
"""

import importlib.metadata
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Final, Literal, NamedTuple

import msgspec
from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lensd_collectors.conventions import Stage, TimeoutKind
from lensd_collectors.gateway.config import Act
from lensd_collectors.gateway.record import Record

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
MAX_MODELS: Final = 50  # names that ever become labels: adapters come and go, series stay

NONE: Final = "none"  # a request that ended before its model was read, or without a status
UNKNOWN: Final = "unknown"  # a model that is not served
OTHER: Final = "other"  # a path or status that is not known; models after the first fifty

_STATUSES: Final = {0: NONE, 499: "499", **{int(each): str(int(each)) for each in HTTPStatus}}
_UPSTREAM_FIRST_BYTE: Final = "upstream_first_byte"
_TOTAL: Final = "total"
_ACTS: Final = frozenset(Act)
_BUCKETS_NS: Final = tuple(round(each * 1e9) for each in BUCKETS_S)


class Described(msgspec.Struct, frozen=True):
    """One metric as it is documented and made."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


METRICS: Final[tuple[Described, ...]] = (
    Described(
        "lensd_gateway_requests_total", "counter", ("route", "model", "outcome", "decision", "status", "said_by"),
        "requests that have ended; model is the one that was to answer",
    ),
    Described(
        "lensd_gateway_stage_seconds", "histogram", ("stage", "model"),
        "auth_routing: request line to handed over, of requests that an engine got; upstream_first_byte: handed over to the engine's first "
        "byte, what queue and prefill take as seen from here; streaming: first to last byte to the caller, of streams; total: of all",
    ),
    Described("lensd_gateway_ttft_seconds", "histogram", ("model",), "request line to the first generated text, of streams"),
    Described("lensd_gateway_max_gap_seconds", "histogram", ("model",), "longest silence between two chunks of a stream"),
    Described("lensd_gateway_tokens_total", "counter", ("kind", "model"), "prompt and completion tokens, as the engine counted them"),
    Described("lensd_gateway_retries_total", "counter", ("model",), "attempts after a request's first"),
    Described("lensd_gateway_fallbacks_total", "counter", ("model", "to"), "requests for a model that went to its fallback model"),
    Described("lensd_gateway_timeouts_total", "counter", ("kind",), "requests that a limit of the gateway ended"),
    Described("lensd_gateway_degraded_requests_total", "counter", ("model", "act"), "requests that load shedding changed or refused"),
    Described("lensd_gateway_open_requests", "gauge", (), "requests that have come and not ended, whatever they wait for"),
    Described("lensd_gateway_in_flight", "gauge", ("model",), "requests that the gateway has with its engines now"),
    Described("lensd_gateway_key_in_flight", "gauge", (), "requests that count against their key's concurrency now"),
    Described("lensd_gateway_degraded", "gauge", ("model",), "1 while load shedding is on for the model"),
    Described("lensd_gateway_upstream_state", "gauge", ("upstream", "state"), "1 for the state the engine is in, 0 for the others"),
    Described("lensd_gateway_upstream_in_flight", "gauge", ("upstream",), "requests that the engine has from this gateway now"),
    Described("lensd_gateway_records_dropped_total", "counter", (), "finished requests whose record was lost because a queue was full"),
    Described(
        "lensd_gateway_export_dropped_total", "counter", (), "spans and events lost because the exporter's queue was full or time was up"
    ),
    Described("lensd_gateway_export_failed_total", "counter", (), "spans and events that the receiver refused or did not take"),
    Described("lensd_gateway_keys_loaded", "gauge", (), "API keys in force"),
    Described("lensd_gateway_tasks", "gauge", (), "asyncio tasks; a few of the gateway's own, and two for each request with an engine"),
    Described("lensd_gateway_ready", "gauge", (), "1 while /readyz answers 200"),
    Described("lensd_gateway_build_info", "gauge", ("version",), "1, with the version that runs"),
)  # fmt: skip
_BY_NAME: Final = {each.name: each for each in METRICS}


class ModelState(msgspec.Struct, frozen=True):
    name: str
    in_flight: int
    is_degraded: bool = False


class UpstreamState(msgspec.Struct, frozen=True):
    name: str
    state: str
    in_flight: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """How the gateway stands at a scrape; totals since its start."""

    open_requests: int = 0
    key_in_flight: int = 0
    tasks: int = 0
    models: tuple[ModelState, ...] = ()
    upstreams: tuple[UpstreamState, ...] = ()
    records_dropped: int = 0
    export_dropped: int = 0
    export_failed: int = 0
    keys_loaded: int = 0
    is_ready: bool = False


class _Totals:
    """A counter by label values. Counted here and put into the library's form when the page is made: its own counters, with a lock and a
    float each, cost more than the rest of a record."""

    __slots__ = ("name", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *labels: str) -> None:
        values = self.values
        values[labels] = values.get(labels, 0.0) + amount

    def collect(self) -> Metric:
        return _family(self.name, dict(self.values))


class _Row:
    """What a histogram has counted for its label values; who counts keeps it, and looks up no labels."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_ns = 0

    def add(self, start: int, end: int) -> None:
        """From one instant to another, in nanoseconds; none where they are the wrong way round."""
        took = end - start if end > start else 0
        self.counts[bisect_left(_BUCKETS_NS, took)] += 1
        self.sum_ns += took


class _Times:
    """A histogram by label values, shown in seconds. A row that has counted nothing yet is not shown."""

    __slots__ = ("name", "rows")

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[tuple[str, ...], _Row] = {}

    def row(self, *labels: str) -> _Row:
        row = self.rows[labels] = _Row()
        return row

    def collect(self) -> Metric:
        described = _BY_NAME[self.name]
        family = HistogramMetricFamily(self.name, described.help, labels=described.labels)
        bounds = [*(str(float(each)) for each in BUCKETS_S), "+Inf"]
        for labels, row in list(self.rows.items()):
            if any(row.counts):
                family.add_metric(labels, list(zip(bounds, itertools.accumulate(row.counts), strict=True)), row.sum_ns / 1e9)
        return family


class _ModelTimes(NamedTuple):
    """The rows of one model."""

    total: _Row
    auth_routing: _Row
    upstream_first_byte: _Row
    streaming: _Row
    max_gap: _Row
    ttft: _Row


class Metrics:
    """Counts records, and renders the page."""

    def __init__(
        self,
        *,
        routes: Iterable[str],
        is_served: Callable[[str], bool],
        aliases: Mapping[str, str],
        upstream_states: Iterable[str],
        version: str | None = None,
    ) -> None:
        """`routes`: the paths that are served. `is_served` is asked of served names and of what callers made up alike."""
        self._routes, self._is_served, self._aliases = frozenset(routes), is_served, aliases
        self._upstream_states = tuple(upstream_states)
        self._version = version if version is not None else importlib.metadata.version("lensd")
        self._models: dict[str, str] = {}
        self._times: dict[str, _ModelTimes] = {}  # by label
        self._requests = _Totals("lensd_gateway_requests_total")
        self._stages = _Times("lensd_gateway_stage_seconds")
        self._ttft = _Times("lensd_gateway_ttft_seconds")
        self._max_gap = _Times("lensd_gateway_max_gap_seconds")
        self._tokens = _Totals("lensd_gateway_tokens_total")
        self._retries = _Totals("lensd_gateway_retries_total")
        self._fallbacks = _Totals("lensd_gateway_fallbacks_total")
        self._timeouts = _Totals("lensd_gateway_timeouts_total")
        self._degraded = _Totals("lensd_gateway_degraded_requests_total")
        for kind in TimeoutKind:
            self._timeouts.add(0, kind.value)  # shown from the start, so that the first one is a rise

    def observe(self, record: Record) -> None:
        """Counts a request that has ended."""
        asked = self._aliases.get(record.model, record.model)
        model = self._label(record.dispatched_model or asked)
        route = record.route if record.route in self._routes else OTHER
        self._requests.add(1, route, model, record.outcome, record.decision, _STATUSES.get(record.status, OTHER), record.said_by)
        self._observe_times(record, self._times.get(model) or self._new_times(model))
        facts = record.facts
        if facts.prompt_tokens:
            self._tokens.add(facts.prompt_tokens, "prompt", model)
        if facts.completion_tokens:
            self._tokens.add(facts.completion_tokens, "completion", model)
        if record.attempts > 1:
            self._retries.add(record.attempts - 1, model)
        if record.timeout_kind is not None:
            self._timeouts.add(1, record.timeout_kind.value)
        if record.degraded in _ACTS:
            self._degraded.add(1, self._label(asked), record.degraded)
        if record.dispatched_model not in ("", asked) and record.degraded != Act.REROUTE:
            self._fallbacks.add(1, self._label(asked), model)

    def render(self, state: State) -> tuple[bytes, str]:
        """The page and its content type. May run in a thread: with many models it takes milliseconds."""
        counted = (
            self._requests, self._stages, self._ttft, self._max_gap, self._tokens, self._retries, self._fallbacks, self._timeouts,
            self._degraded,
        )  # fmt: skip
        families = itertools.chain((each.collect() for each in counted), self._now(state))
        return generate_latest(_Page(families)), CONTENT_TYPE

    def _new_times(self, model: str) -> _ModelTimes:
        made = self._times[model] = _ModelTimes(
            total=self._stages.row(_TOTAL, model),
            auth_routing=self._stages.row(Stage.AUTH_ROUTING, model),
            upstream_first_byte=self._stages.row(_UPSTREAM_FIRST_BYTE, model),
            streaming=self._stages.row(Stage.STREAMING, model),
            max_gap=self._max_gap.row(model),
            ttft=self._ttft.row(model),
        )
        return made

    @staticmethod
    def _observe_times(record: Record, times: _ModelTimes) -> None:
        """Only of what happened: a stamp that is missing is no time of zero."""
        received, sent = record.received, record.sent
        times.total.add(received, record.ended)
        first_sent = next((each.sent for each in record.earlier if each.sent), sent) if record.earlier else sent
        if first_sent:
            times.auth_routing.add(received, first_sent)
        if sent and record.first_byte:
            times.upstream_first_byte.add(sent, record.first_byte)
        if not record.is_sse or not record.first_out:
            return
        times.streaming.add(record.first_out, record.last_out or record.ended)
        times.max_gap.add(0, record.max_gap)
        if record.first_content:
            times.ttft.add(received, record.first_content)

    def _label(self, model: str) -> str:
        known = self._models.get(model)
        if known is not None:
            return known
        if not model:
            return NONE
        if not self._is_served(model):
            return UNKNOWN
        if len(self._models) >= MAX_MODELS:
            return OTHER
        self._models[model] = model
        return model

    def _now(self, state: State) -> Iterator[Metric]:
        in_flight: dict[tuple[str, ...], float] = {}
        degraded: dict[tuple[str, ...], float] = {}
        for each in state.models:
            label = (self._label(each.name),)
            in_flight[label] = in_flight.get(label, 0.0) + each.in_flight
            degraded[label] = max(degraded.get(label, 0.0), float(each.is_degraded))
        yield _family("lensd_gateway_open_requests", {(): state.open_requests})
        yield _family("lensd_gateway_in_flight", in_flight)
        yield _family("lensd_gateway_key_in_flight", {(): state.key_in_flight})
        yield _family("lensd_gateway_degraded", degraded)
        known = self._upstream_states
        states: dict[tuple[str, ...], float] = {}
        states |= {(each.name, name): float(name == each.state) for each in state.upstreams for name in (*known, each.state)}
        yield _family("lensd_gateway_upstream_state", states)
        yield _family("lensd_gateway_upstream_in_flight", {(each.name,): each.in_flight for each in state.upstreams})
        yield _family("lensd_gateway_records_dropped_total", {(): state.records_dropped})
        yield _family("lensd_gateway_export_dropped_total", {(): state.export_dropped})
        yield _family("lensd_gateway_export_failed_total", {(): state.export_failed})
        yield _family("lensd_gateway_keys_loaded", {(): state.keys_loaded})
        yield _family("lensd_gateway_tasks", {(): state.tasks})
        yield _family("lensd_gateway_ready", {(): float(state.is_ready)})
        yield _family("lensd_gateway_build_info", {(self._version,): 1.0})


class _Page(Collector):
    """Families as the library writes them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _family(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    described = _BY_NAME[name]
    made = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    family = made(name, described.help, labels=described.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
