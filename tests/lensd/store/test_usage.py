"""What requests add up to: usage, stages, refusals and percentiles over time, of requests in their last revision only."""

import pytest
from lensd_collectors.rows import RequestRow
from store_rows import NOV_29

from lensd.store import queries, usage
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.store.names import find_requests

MINUTE = 60_000_000
HOUR = 60 * MINUTE
ALL = queries.RequestFilter(since=NOV_29, until=NOV_29 + 24 * HOUR)


def request(key, at=0, revision=1, **more):
    given = {"outcome": "ok", "settled": True, "request_id": f"r{key}", "key_id": "a", "model": "m"} | more
    return RequestRow(request_key=key, revision=revision, started_at=NOV_29 + at, **given)


@pytest.fixture
def store(tmp_path):
    made = FolderStore(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def cursor(store):
    with store.cursor() as made:
        yield made


def put(store, *rows):
    store.append(batch_of({"requests": rows}))


def test_usage_adds_up_the_last_revision_of_each_request_alone(store, cursor):
    put(store, request(1, prompt_tokens=999, revision=0), request(2, prompt_tokens=7, key_id="b", outcome="failed"))
    put(store, request(1, prompt_tokens=10, cached_tokens=4, completion_tokens=5, ttft_ms=20.0, tpot_ms=2.0))
    put(store, request(3, prompt_tokens=30, completion_tokens=15, ttft_ms=40.0, tpot_ms=4.0), request(4, outcome="refused", key_id=None))
    put(store, request(5, withdrawn=True, prompt_tokens=1000))
    rows = usage.usage(cursor, "key", NOV_29, NOV_29 + HOUR)
    assert [(row["name"], row["requests"], row["errors"], row["refused"]) for row in rows] == [
        ("a", 2, 0, 0),
        ("b", 1, 1, 0),
        (None, 1, 0, 1),
    ]
    first = rows[0]
    assert (first["prompt_tokens"], first["cached_tokens"], first["completion_tokens"]) == (40, 4, 20)
    assert (first["ttft_p50_ms"], first["ttft_p95_ms"], first["tpot_p50_ms"]) == (30.0, 39.0, 3.0)
    assert rows[2]["ttft_p50_ms"] is None


@pytest.mark.parametrize(("by", "names"), [("model", ["served", "m"]), ("session", ["s", None])])
def test_usage_is_by_what_was_asked_for(store, cursor, by, names):
    put(store, request(1, served_model="served", session_id="s", prompt_tokens=2), request(2, prompt_tokens=1))
    assert [row["name"] for row in usage.usage(cursor, by, NOV_29, NOV_29 + HOUR)] == names


def test_a_request_belongs_to_the_time_that_its_last_revision_began_in(store, cursor):
    put(store, request(1, at=2 * MINUTE, revision=0))
    put(store, request(1, at=-2 * MINUTE))  # a caller's span came late: it began on the day before
    assert usage.usage(cursor, "key", NOV_29, NOV_29 + HOUR) == []
    assert [row["requests"] for row in usage.usage(cursor, "key", NOV_29 - HOUR, NOV_29)] == [1]


def test_stages_have_percentiles_and_their_share_of_the_whole(store, cursor):
    times = {"queue_ms": 10.0, "queue_exclusive_ms": 10.0, "decode_ms": 40.0, "decode_exclusive_ms": 30.0, "total_ms": 40.0}
    put(store, request(1, **times), request(2, **{name: 3 * value for name, value in times.items()}))
    told = {row["stage"]: row for row in usage.stages(cursor, ALL)}
    assert list(told) == ["client", "auth_routing", "queue", "prefill", "decode", "streaming", "total"]
    assert (told["queue"]["p50_ms"], told["queue"]["share"], told["queue"]["requests"], told["queue"]["sampled"]) == (20.0, 0.25, 2, 1.0)
    assert (told["decode"]["share"], told["prefill"]["p50_ms"], told["prefill"]["requests"]) == (0.75, None, 0)
    assert (told["total"]["p50_ms"], told["total"]["share"]) == (80.0, None)


def test_refusals_alike_are_one_row(store, cursor):
    refused = {"outcome": "refused", "status": 401, "decision": "key_unknown", "said_by": "gateway", "key_id": None}
    put(
        store,
        request(1, revision=0, **refused),
        request(2, at=MINUTE, **refused),
        request(3, at=2, **refused | {"status": 403}),
        request(4),
    )
    put(store, request(1, revision=1, **refused), request(5, **refused), request(5, revision=2))  # the last one was served after all
    rows = usage.refusals(cursor, ALL)
    assert [(row["status"], row["requests"], row["request_id"]) for row in rows] == [(401, 2, "r2"), (403, 1, "r3")]
    assert (rows[0]["last_at"] - rows[0]["first_at"]).total_seconds() == 60


def test_percentiles_of_each_minute(store, cursor):
    put(
        store,
        *(request(n, at=n * 1_000_000, ttft_ms=float(n)) for n in range(1, 60)),
        request(99, at=90_000_000, ttft_ms=5.0),
        request(100),
    )
    points = queries.request_series(cursor, "requests.ttft_ms", queries.RequestFilter(since=NOV_29, until=NOV_29 + HOUR))
    assert [(point["requests"], point["p50"], point["sampled"]) for point in points] == [(59, 30.0, 1.0), (1, 5.0, 1.0)]


def test_of_very_many_requests_a_sample_is_looked_at(store, cursor):
    step = (1 << 64) // 4000
    keys = [n * step + step // 2 for n in range(4000)]  # as hashes lie: evenly
    put(store, *(request(key, ttft_ms=float(n % 100)) for n, key in enumerate(keys)))
    some = queries.in_time(cursor, ALL, most=1000)
    [(count, median)] = cursor.execute(f"select count(*), median(ttft_ms) from {some.place}", some.given).fetchall()
    assert (some.part, count, median) == (0.25, 1000, 49.5)


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_pages_show_each_request_once_in_the_place_of_its_last_revision(store, cursor, limit):
    """Revisions that moved, were taken back, or fit a filter no more, and many at one instant."""
    put(store, *(request(n, at=n % 5, revision=0, outcome="open") for n in range(40)))
    put(store, *(request(n, at=(n + 2) % 5, revision=1) for n in range(0, 40, 2)))
    put(store, *(request(n, at=n % 5, revision=2, withdrawn=n % 8 == 0) for n in range(0, 40, 4)))
    expected = cursor.execute("select request_key from requests where outcome = 'ok' order by started_at desc, request_key desc").fetchall()
    seen, after = [], None
    while True:
        page = queries.list_requests(cursor, queries.RequestFilter(outcome="ok"), limit, after)
        seen += [item["request_key"] for item in page.items]
        after = page.next
        if after is None:
            break
    assert seen == [key for (key,) in expected]
    assert len(seen) == 15


@pytest.mark.parametrize("ident", ["it's", "a'; drop view requests; --", "\0", "ü\n", "%", "' or '1'='1"])
def test_a_name_is_text_whatever_is_in_it(store, cursor, ident):
    put(store, request(1), request(2, request_id="it's"))
    assert [row["request_key"] for row in find_requests(cursor, ident)] == ([2] if ident == "it's" else [])


def test_a_name_of_an_earlier_revision_is_forgotten(store, cursor):
    put(store, request(1, revision=0, engine_request_id="chatcmpl-x"), request(2, revision=0, request_id="old"))
    put(store, request(1, engine_request_id="chatcmpl-y"), request(2, request_id="new", withdrawn=True))
    assert [len(find_requests(cursor, ident)) for ident in ("chatcmpl-x", "chatcmpl-y", "old", "new")] == [0, 1, 0, 0]


YEAR = 366 * 24 * 60


@pytest.mark.parametrize("after", [None, 1])
def test_pages_reach_back_over_gaps_of_any_length(store, cursor, after):
    begun = [0, 1, 2, 35, 36, 17 * 60, 20 * 24 * 60, 2 * YEAR]
    put(store, *(request(key, at=-minutes * MINUTE) for key, minutes in enumerate(begun)))
    cursor_text = None if after is None else f"{NOV_29 - begun[after] * MINUTE}-{after}"
    page = queries.list_requests(cursor, queries.RequestFilter(), after=cursor_text)
    assert [item["request_key"] for item in page.items] == [key for key in range(len(begun)) if after is None or key > after]
    short = queries.RequestFilter(since=NOV_29 - 36 * MINUTE)
    assert [item["request_key"] for item in queries.list_requests(cursor, short, after=cursor_text).items][-1] == 4


@pytest.mark.parametrize("many", [0, 1, 1001])
def test_refusals_are_added_up_however_many_there_are(store, cursor, many):
    put(store, *(request(key, outcome="refused", decision="key unknown") for key in range(many)), request(5000))
    put(store, *(request(key, revision=2) for key in range(many - 1)))  # what was refused first and served then
    assert [row["requests"] for row in usage.refusals(cursor, ALL)] == [1][:many]


def test_of_revisions_beyond_counting_the_one_that_came_last_stands(store, cursor):
    put(store, request(1, revision=32_766, prompt_tokens=1), request(1, revision=40_000, prompt_tokens=2))
    put(store, request(1, revision=40_001, prompt_tokens=3), request(2, revision=9, prompt_tokens=10))
    put(store, request(2, revision=8, prompt_tokens=100))
    assert [row["prompt_tokens"] for row in usage.usage(cursor, "key", NOV_29, NOV_29 + HOUR)] == [13]
