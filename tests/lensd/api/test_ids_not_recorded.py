"""An id that is not there: 4 where ids are recorded, 5 with the line that records them where not; the same with and without a daemon."""

import pytest
from lensd_collectors.rows import EngineSample, Event, RequestRow
from seeded import T0, TOKEN, served

from lensd.api.client import Client
from lensd.api.local import LocalReader
from lensd.config import Config
from lensd.errors import EvidenceError, IdsNotRecordedError, RequestNotFoundError
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore

SCRAPED = {"engine_samples": [EngineSample(seen_at=T0, engine="e0", up=True, running=1.0)]}
LOGGED = {"events": [Event(seen_at=T0, engine="e0", name="request.received", request_id="chatcmpl-r", line="Received request chatcmpl-r")]}
CALLS = {
    "requests": [
        RequestRow(
            request_key=n, revision=0, request_id=f"r{n}", started_at=T0 + n, settled=True, outcome="ok", session_id="a/b", prompt_tokens=n
        )
        for n in (2, 7)
    ]
}  # fmt: skip


@pytest.fixture(params=["daemon", "store"])
def reading(request):
    """A reader of a store with these rows, through the daemon's API or without one."""
    stores = []

    def read(**rows):
        store = MemoryStore()
        store.append(batch_of(rows))
        if request.param == "store":
            stores.append(store)
            return LocalReader(store, Config())
        url = served_by.enter_context(served(store))
        return Client(url, TOKEN)

    import contextlib

    with contextlib.ExitStack() as served_by:
        yield read
    for store in stores:
        store.close()


@pytest.mark.parametrize("ask", ["request", "diagnosis"])
def test_where_nothing_records_ids_the_answer_is_5_and_the_line_to_add(reading, ask):
    with pytest.raises(IdsNotRecordedError) as raised:
        getattr(reading(**SCRAPED), ask)("r-1")
    assert raised.value.exit_status == 5
    told = str(raised.value)
    assert "\n" not in told
    assert "no request r-1" in told
    assert "--otlp-traces-endpoint http://127.0.0.1:4318/v1/traces" in told
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in told


@pytest.mark.parametrize("ask", ["request", "diagnosis"])
def test_where_ids_are_recorded_the_answer_is_4(reading, ask):
    with pytest.raises(RequestNotFoundError):
        getattr(reading(**SCRAPED, **LOGGED), ask)("another")
    with pytest.raises(RequestNotFoundError):
        getattr(reading(**CALLS), ask)("another")


def test_an_id_that_only_a_log_line_names_was_there(reading):
    with pytest.raises(EvidenceError, match="stands in the engine's log only") as raised:
        reading(**LOGGED).diagnosis("r")
    assert (raised.value.code, raised.value.exit_status) == ("evidence-missing", 5)


def test_the_calls_of_a_session_come_in_order(reading):
    reader = reading(**CALLS)
    assert [(call.request_id, call.turn, call.grew_by) for call in reader.session("a/b")] == [("r2", 1, None), ("r7", 2, 5)]
    assert reader.session("nobody's") == ()
    assert [item.request_id for item in reader.requests(session="a/b", limit=1).items] == ["r7"]
    assert reader.requests(session="nobody's").items == ()


def test_coverage_says_what_spoke_and_whether_ids_are_told(reading):
    told = reading(**SCRAPED).coverage()
    assert [(link.engine, link.kind, link.last_at) for link in told.items] == [("e0", "scrape", "2026-11-29T12:00:00Z")]
    assert told.ids_recorded is False
    assert reading(**LOGGED).coverage().ids_recorded is True
