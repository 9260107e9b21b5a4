"""A GPU exporter's `/metrics`, forwarded under its own names: what it tells of cards that this host's driver does not, or not to us."""

from collections.abc import Callable, Iterator
from typing import Final

from lensd_collectors import conventions
from lensd_collectors.dialects import load
from lensd_collectors.export import Exporter
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import AgentError, Engine, Fetch, FetchError, FetchFailure, resolve, without_secrets
from lensd_collectors.host.line import FOLLOWED, Standing, State
from lensd_collectors.otlp import Value
from lensd_collectors.read.prometheus import parse_line
from lensd_collectors.read.samples import Series

PATH: Final = "/metrics"
NO_GPU: Final = Standing(State.MISSING, "it tells of no GPU")
_REFUSED: Final = frozenset({401, 403})


class ExporterScraper:
    """Scrapes one exporter; the series of one scrape go out with one instant, in one body.

    A card that our own sampler tells of too is sorted out by the receiver.
    """

    def __init__(self, url: str, exporter: Exporter, fetch: Fetch, clock_ns: Callable[[], int]) -> None:
        """Raises AgentError for a URL of no use; it may end in /metrics or not."""
        self._target, self._exporter, self._fetch, self._clock_ns = target(url), exporter, fetch, clock_ns
        self._names = frozenset(name for each in load().values() if each.gpu and each.recognise.metric_prefix for name in each.gpu.names)

    @property
    def name(self) -> str:
        return f"gpu exporter {self._target.url}"

    def scrape(self) -> Standing:
        """Forwards what the exporter says now of the cards, nothing where it does not answer; returns how it is with it."""
        try:
            body = self._fetch(self._target, PATH)
        except FetchError as error:
            return _standing(error)
        at_ns = self._clock_ns()
        series = list(self._series(body.decode("utf-8", "replace")))
        about: dict[str, Value | None] = {conventions.SCRAPE_TARGET: f"{self._target.url}{PATH}"}
        with self._exporter.batch() as batch:
            for one in series:
                batch.gauge(one.name, one.value, at_ns=at_ns, attributes={**one.labels, **about})
        return FOLLOWED if series else NO_GPU

    def _series(self, text: str) -> Iterator[Series]:
        for number, line in enumerate(text.splitlines(), 1):
            if line.partition("{")[0] in self._names and (one := parse_line(line, number)) is not None:
                yield one


def target(url: str) -> Engine:
    """Raises AgentError."""
    try:
        return resolve(WatchedEngine(url=url.removesuffix("/").removesuffix(PATH), kind="dcgm"))
    except AgentError:
        raise AgentError(f"gpu_exporters: {without_secrets(url)!r} is no http or https URL") from None


def _standing(error: FetchError) -> Standing:
    if error.why is FetchFailure.STATUS:
        return Standing(State.DENIED if error.status in _REFUSED else State.MISSING, f"it answers {error.status}")
    return Standing(
        State.MISSING, error.said or {FetchFailure.REFUSED: "nothing listens there"}.get(error.why, f"it does not answer: {error.why}")
    )
