"""Lists that are read from the store, `sql`, and both as a stream of Arrow."""

from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from seeded import REQUESTS, T0, backend, fill, health
from test_app import BEARER, Asked

from lensd.api.answers import ARROW
from lensd.api.app import build_app
from lensd.api.items import Page, RefusalItem, SeriesPoint, SqlAnswer, StageItem, UsageItem
from lensd.store.memory import MemoryStore
from lensd.store.schema import arrow_schema

DAY = f"since={T0 - 1}&until={T0 + 3_600_000_000}"
AS_ARROW = (BEARER, (b"accept", ARROW.encode()))


@pytest.fixture(scope="module")
def store():
    made = MemoryStore()
    fill(made)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ask(store):
    return Asked(build_app(backend(store)))


@pytest.fixture
def select(ask):
    def post(query, headers=(BEARER,), **more):
        ask.message = {"type": "http.request", "body": msgspec.json.encode({"query": query} | more), "more_body": False}
        return ask("/api/v1/sql", "POST", headers)

    yield post
    ask.message = {"type": "http.request", "body": b"", "more_body": False}


def table(ask):
    assert ask.headers[b"content-type"] == ARROW.encode()
    return pa.ipc.open_stream(ask.body).read_all()


@pytest.mark.parametrize(
    ("path", "kind", "count"),
    [
        (f"usage?{DAY}", UsageItem, 2), (f"usage?by=model&{DAY}", UsageItem, 1), (f"usage?limit=1&{DAY}", UsageItem, 1),
        ("usage", UsageItem, 0),
        (f"stages?{DAY}", StageItem, 7), (f"refusals?{DAY}", RefusalItem, 1), (f"refusals?key=nobody&{DAY}", RefusalItem, 0),
        (f"series?name=requests.total_ms&{DAY}", SeriesPoint, 1), (f"series?name=requests.total_ms&engine=e1&{DAY}", SeriesPoint, 0),
    ],
)  # fmt: skip
def test_a_list_is_items_of_its_kind(ask, path, kind, count):
    status, page = ask(f"/api/v1/{path}")
    assert (status, len(page["items"]), page["next"]) == (200, count, None)
    msgspec.json.decode(ask.body, type=Page[kind])


@pytest.mark.parametrize(
    "path",
    ["usage?by=engine", "usage?limit=0", "usage?since=soon", "stages?status=x", f"refusals?since={T0}&until=5", "series?name=requests.src",
     "changes?since=-1", "changes?wait=x"],
)  # fmt: skip
def test_a_bad_value_is_refused(ask, path):
    status, told = ask(f"/api/v1/{path}")
    assert (status, told["error"]["code"]) == (400, "usage")


def test_a_page_of_requests_as_arrow_has_the_columns_of_the_table_and_where_to_go_on(ask):
    ask("/api/v1/requests?limit=3", headers=AS_ARROW)
    first = table(ask)
    assert first.schema.names == arrow_schema("requests").names
    assert first.schema.field("started_at").type == pa.timestamp("us")
    ask(f"/api/v1/requests?limit=500&cursor={first.schema.metadata[b'next'].decode()}", headers=AS_ARROW)
    assert first.num_rows == 3
    assert table(ask).num_rows == len(REQUESTS) - 3
    assert table(ask).schema.metadata is None


@pytest.mark.parametrize("path", [f"usage?{DAY}", f"stages?{DAY}", f"refusals?{DAY}", "incidents", "deliveries", "requests/ok-1", "gpus"])
def test_other_lists_as_arrow_have_the_rows_of_the_json(ask, path):
    _, page = ask(f"/api/v1/{path}")
    ask(f"/api/v1/{path}", headers=AS_ARROW)
    assert table(ask).num_rows == len(page["items"])


def test_sql_gives_columns_and_rows(select, ask):
    status, told = select(
        "select request_id, started_at, 2::hugeint ** 70 as big, 1.5::decimal(4, 2) as part from requests where status = 401"
    )
    assert status == 200
    assert [(column["name"], column["type"]) for column in told["columns"]][:2] == [("request_id", "VARCHAR"), ("started_at", "TIMESTAMP")]
    assert told["items"][0][1:] in (["2026-11-29T12:00:40Z", told["items"][0][2], 1.5], ["2026-11-29T12:00:10Z", told["items"][0][2], 1.5])
    assert told["more"] is False
    msgspec.json.decode(ask.body, type=SqlAnswer)


@pytest.mark.parametrize("value", ["'nan'::double", "'inf'::double", "'\\x00\\xff'::blob", "[1, null]",
                                   "{'a': date '2026-01-31'}", "map {1: 2}",
                                   "interval 1 minute", "uuid()", "time '12:00:00'", "1::bit", "now()",
                                   "-170141183460469231731687303715884105727::hugeint"])  # fmt: skip
def test_every_kind_of_value_has_a_way_into_json(select, value):
    assert select(f"select {value} as v")[0] == 200


def test_sql_says_when_there_is_more(select):
    _, told = select("select * from range(10)", limit=4)
    assert (len(told["items"]), told["more"]) == (4, True)
    _, told = select("select * from range(4)", limit=4)
    assert (len(told["items"]), told["more"]) == (4, False)


def test_sql_as_arrow_keeps_its_types(select, ask):
    select("select n, n::varchar as text from range(5000) t(n)", headers=AS_ARROW, limit=3000)
    assert (table(ask).num_rows, table(ask).schema.types) == (3000, [pa.int64(), pa.string()])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("select 1; select 2", "sql-refused"), ("drop table requests", "sql-refused"),
        ("select * from read_text('/etc/passwd')", "sql-refused"),
        ("select * from held.requests", "sql-refused"), ("select nothing from requests", "sql-refused"), ("", "sql-refused"),
        ("select getenv('HOME')", "sql-refused"), ("select $a", "sql-refused"),
    ],
)  # fmt: skip
def test_sql_is_behind_the_guard(select, query, code):
    for headers in ((BEARER,), AS_ARROW):
        status, told = select(query, headers)
        assert (status, told["error"]["code"]) == (400, code)
        assert "\n" not in told["error"]["message"]


def test_a_body_that_is_no_query_is_refused(ask, select):
    for more in ({"limit": 0}, {"limit": 10_001}, {"limit": "x"}, {"other": 1}):
        assert select("select 1", **more)[0] == 400
    assert select("-" * 70_000)[0] == 400
    ask.message = {"type": "http.request", "body": b"select 1", "more_body": False}
    assert ask("/api/v1/sql", "POST")[0] == 400
    assert ask("/api/v1/sql")[0] == 405


def test_changes_waits_for_a_number_other_than_since(store):
    told = iter([41, 41, 42, 42])
    ask = Asked(build_app(replace(backend(store), health=lambda: health() | {"seq": next(told)})))
    assert ask("/api/v1/changes?since=40")[1] == {"seq": 41}
    assert ask("/api/v1/changes?since=41&wait=20")[1] == {"seq": 42}
    assert ask("/api/v1/changes?since=42")[1] == {"seq": 42}
