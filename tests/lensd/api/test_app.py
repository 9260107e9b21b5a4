"""The daemon's API over a store with rows: every path, every refusal, and the same answers as a reader without a daemon."""

import asyncio

import msgspec
import pytest
from lensd_collectors.rows import RequestRow
from seeded import REQUESTS, T0, TOKEN, backend, fill, fill_folder, served

from lensd.api.app import MAX_WAIT_S, build_app
from lensd.api.client import Client
from lensd.api.items import Page, RequestItem
from lensd.api.local import LocalReader
from lensd.config import Config
from lensd.records import Diagnosis, Incident
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore

BEARER = (b"authorization", f"Bearer {TOKEN}".encode())


class Asked:
    """Calls an ASGI app; `status`, `headers` and the decoded `document` of the last answer."""

    def __init__(self, app):
        self.app = app
        self.message = {"type": "http.request", "body": b"", "more_body": False}

    def __call__(self, path, method="GET", headers=(BEARER,)):
        target, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": target,
            "raw_path": target.encode(), "query_string": query.encode(), "headers": list(headers), "root_path": "",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8600),
        }  # fmt: skip
        sent = []

        async def receive():
            return self.message

        async def send(message):
            sent.append(message)

        try:
            asyncio.run(self.app(scope, receive, send))
        finally:
            self.status = sent[0]["status"]
            self.headers = dict(sent[0]["headers"])
            self.body = b"".join(m.get("body", b"") for m in sent[1:])
        return self.status, msgspec.json.decode(self.body) if self.headers[b"content-type"] == b"application/json" else self.body


@pytest.fixture(scope="module")
def store():
    made = MemoryStore()
    fill(made)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ask(store):
    return Asked(build_app(backend(store)))


def test_requests_come_newest_first_with_instants_as_rfc_3339(ask):
    status, page = ask("/api/v1/requests")
    assert status == 200
    assert [r["request_id"] for r in page["items"]][:3] == ["svc/7", "again-1", "again-1"]
    assert page["items"][0]["started_at"] == "2026-11-29T12:00:50Z"
    assert page["next"] is None
    msgspec.json.decode(ask.body, type=Page[RequestItem])


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("status=401", {"again-1", "wrong-key-1"}),
        ("outcome=refused&limit=1", {"again-1"}),
        ("key=team-a&since=2026-11-29T12:00:25Z", {"again-1", "svc/7"}),
        (f"until={T0 + 1}", {"ok-1"}),
        ("until=2026-11-29T13:00:10%2B01:00", {"ok-1"}),
        ("model=tiny&engine=e1", set()),
        ("id=wrong-key-1", {"wrong-key-1"}),
        ("id=nobody", set()),
        ("status=&limit=&since=&cursor=", {name for name, _, _ in REQUESTS}),
    ],
)
def test_filters(ask, query, ids):
    status, page = ask(f"/api/v1/requests?{query}")
    assert (status, {r["request_id"] for r in page["items"]}) == (200, ids)


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 500])
def test_pages_hold_each_request_once_also_where_several_began_at_the_same_instant(ask, limit):
    seen, cursor = [], ""
    while cursor is not None:
        _, page = ask(f"/api/v1/requests?limit={limit}&cursor={cursor}")
        seen += [r["trace_id"] for r in page["items"]]
        assert len(page["items"]) <= limit
        cursor = page["next"]
    assert len(seen) == len(set(seen)) == len(REQUESTS)


@pytest.mark.parametrize(
    "path",
    [
        "requests?status=abc", "requests?status=-1", "requests?status=99999999999999999999999", "requests?status=%C2%B2",
        "requests?limit=0",
        "requests?limit=-5", "requests?limit=1e3", "requests?since=yesterday", "requests?since=99999999999999999999", "requests?until=-1",
        "requests?until=0001-01-01T00:00:00Z", "requests?cursor=x", "requests?cursor=1-", "requests?cursor=-1-2",
        "requests?cursor=99999999999999999999999-1", "requests?cursor=1-99999999999999999999999", "requests/ok-1/diagnosis?wait=soon",
        "requests/ok-1/diagnosis?wait=nan", "requests/ok-1/diagnosis?wait=-1", "requests/ok-1/diagnosis?wait=inf", "incidents?state=gone",
        "series", "series?name=engine_samples", "series?name=requests.model", "series?name=engine_samples.waiting&since=x",
        f"series?name=engine_samples.waiting&since={T0}&until=5", "requests/%20", "requests/",
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_in_one_line(ask, path):
    status, told = ask(f"/api/v1/{path}".replace("%20", " "))
    assert status == 400, told
    assert told["error"]["code"] == "usage"
    assert "\n" not in told["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [(), ((b"authorization", b""),), ((b"authorization", b"Bearer"),), ((b"authorization", f"Bearer {TOKEN}x".encode()),),
     ((b"authorization", f"Basic {TOKEN}".encode()),), ((b"authorization", TOKEN.encode()),), ((b"authorization", "Bearer é".encode()),)],
)  # fmt: skip
def test_without_the_token_nothing_is_told(ask, headers):
    for path in ("/api/v1/requests", "/api/v1/requests/ok-1", "/api/v1/nothing", "/metrics", "/api/v1/status"):
        status, told = ask(path, headers=headers)
        assert (status, told["error"]["code"]) == (401, "unauthorized"), path
        assert TOKEN not in str(told)
    assert ask("/healthz", headers=headers) == (200, b"ok\n")


def test_the_scheme_of_the_token_may_be_written_in_any_case(ask):
    assert ask("/api/v1/changes", headers=((b"authorization", f"bearer {TOKEN}".encode()),)) == (200, {"seq": 41})


def test_a_daemon_without_a_token_asks_for_none(store):
    assert Asked(build_app(backend(store, token=None)))("/api/v1/changes", headers=()) == (200, {"seq": 41})


@pytest.mark.parametrize("name", ["ok-1", f"{1:032x}", f"{0xA1:016x}", "ok-"])
def test_a_request_by_each_of_its_names(ask, name):
    status, found = ask(f"/api/v1/requests/{name}")
    assert (status, [r["request_id"] for r in found["items"]]) == (200, ["ok-1"])
    status, diagnosis = ask(f"/api/v1/requests/{name}/diagnosis")
    assert (status, diagnosis["subject"]["trace_id"]) == (200, f"{1:032x}")
    msgspec.json.decode(ask.body, type=Diagnosis)


def test_an_id_with_a_slash_is_an_id(ask):
    assert ask("/api/v1/requests/svc/7")[1]["items"][0]["request_id"] == "svc/7"
    assert ask("/api/v1/requests/svc/7/diagnosis")[1]["subject"]["request_id"] == "svc/7"


def test_of_an_id_used_twice_all_are_shown_and_the_newest_is_diagnosed(ask):
    _, found = ask("/api/v1/requests/again-1")
    assert [r["status"] for r in found["items"]] == [401, 200]
    _, diagnosis = ask("/api/v1/requests/again-1/diagnosis")
    assert (diagnosis["subject"]["status"], diagnosis["verdict"]["label"]) == (401, "auth-wrong-key")


@pytest.mark.parametrize(
    ("path", "method", "code"),
    [
        ("requests/nobody", "GET", "request-not-found"),
        ("requests/nobody/diagnosis", "GET", "request-not-found"),
        ("incidents/inc-0", "GET", "incident-not-found"),
        ("incidents/inc-0/ack", "POST", "incident-not-found"),
        ("incidents/inc-0/close", "POST", "incident-not-found"),
        ("incidents/inc-000000000001/ack", "POST", "incident-not-found"),
        ("nothing", "GET", "not-found"),
        ("", "GET", "not-found"),
    ],
)
def test_what_is_not_there_is_404(ask, path, method, code):
    status, told = ask(f"/api/v1/{path}", method)
    assert (status, told["error"]["code"]) == (404, code)


@pytest.mark.parametrize(("path", "method"), [("requests", "POST"), ("requests", "DELETE"), ("incidents/inc-000000000002/ack", "GET")])
def test_another_method_is_405(ask, path, method):
    status, told = ask(f"/api/v1/{path}", method)
    assert (status, told["error"]["code"]) == (405, "method-not-allowed")


def test_incidents_that_stand_come_first(ask):
    _, page = ask("/api/v1/incidents")
    assert [(i["incident_id"], i["state"]) for i in page["items"]] == [("inc-000000000002", "open"), ("inc-000000000001", "resolved")]
    assert [i["state"] for i in ask("/api/v1/incidents?state=resolved")[1]["items"]] == ["resolved"]
    assert ask("/api/v1/incidents?state=acknowledged")[1]["items"] == []
    assert ask("/api/v1/incidents/inc-000000000002")[1]["label"] == "engine-crash"


def test_acknowledged_then_closed_and_closed_once_only():
    with served() as url:
        client = Client(url, TOKEN)
        assert client.ack("inc-000000000002").state == "acknowledged"
        assert client.incident("inc-000000000002").revision == 2
        assert client.close("inc-000000000002").resolved_at == T0 + 100_000_000
        assert {i.state for i in client.incidents()} == {"resolved"}
    mine = MemoryStore()
    fill(mine)
    ask = Asked(build_app(backend(mine)))
    ask("/api/v1/incidents/inc-000000000002/close", "POST")
    status, told = ask("/api/v1/incidents/inc-000000000002/close", "POST")
    assert (status, told["error"]["message"]) == (404, "incident inc-000000000002 is resolved already")
    mine.close()


def test_the_rest_of_the_paths_answer(ask):
    _, status = ask("/api/v1/status")
    assert (status["version"], status["engines"][0]["engine"], status["engines"][0]["waiting"]) == ("0.1.0", "e0", 4.0)
    assert status["engines"][0]["last_sample_at"] == "2026-11-29T12:00:04Z"
    assert {"auth-wrong-key", "engine-crash"} <= {b["id"] for b in ask("/api/v1/runbooks")[1]["items"]}
    _, series = ask(f"/api/v1/series?name=engine_samples.waiting&since={T0}&until={T0 + 10_000_000}")
    assert [p["value"] for p in series["items"]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert ask("/api/v1/series?name=engine_samples.waiting&engine=e9")[1]["items"] == []
    assert [d["attempted_at"] for d in ask("/api/v1/deliveries")[1]["items"]] == ["2026-11-29T12:00:00Z"]
    assert ask("/metrics")[0] == 200


class Clocked:
    """Time that passes only while somebody sleeps."""

    def __init__(self, monkeypatch, at_2s=lambda: None):
        self.now, self.at_2s = 0.0, at_2s
        monkeypatch.setattr("lensd.api.app.time.monotonic", lambda: self.now)
        monkeypatch.setattr("lensd.api.app.asyncio.sleep", self.sleep)

    async def sleep(self, seconds):
        self.now = round(self.now + seconds, 3)
        if self.now == 2.0:
            self.at_2s()


@pytest.fixture
def open_store():
    made = MemoryStore()
    made.append(batch_of({"requests": [_row(0, False)]}))
    yield made
    made.close()


def _row(revision, settled):
    ended = {"ended_at": T0 + 1_000_000, "outcome": "ok", "status": 200} if settled else {"outcome": "open"}
    return RequestRow(request_key=1, revision=revision, request_id="r", trace_id="t", started_at=T0, settled=settled, **ended)


@pytest.mark.parametrize(("wait", "took"), [("0", 0.0), ("", 0.0), ("1.5", 1.5), ("12", 12.0), ("3600", MAX_WAIT_S)])
def test_a_diagnosis_waits_until_the_time_is_over_for_a_request_that_does_not_settle(open_store, monkeypatch, wait, took):
    clock = Clocked(monkeypatch)
    status, told = Asked(build_app(backend(open_store)))(f"/api/v1/requests/r/diagnosis?wait={wait}")
    assert (status, told["subject"]["outcome"]) == (200, "open")
    assert clock.now == pytest.approx(took, abs=0.11)


def test_a_diagnosis_comes_as_soon_as_the_request_settles(open_store, monkeypatch):
    clock = Clocked(monkeypatch, at_2s=lambda: open_store.append(batch_of({"requests": [_row(1, True)]})))
    _, told = Asked(build_app(backend(open_store)))("/api/v1/requests/r/diagnosis?wait=12")
    assert (told["subject"]["settled"], told["subject"]["revision"]) == (True, 1)
    assert clock.now == pytest.approx(2.0, abs=0.11)


def test_a_diagnosis_waits_for_a_request_that_is_still_to_come_in(monkeypatch):
    store = MemoryStore()
    clock = Clocked(monkeypatch, at_2s=lambda: store.append(batch_of({"requests": [_row(0, True)]})))
    status, _ = Asked(build_app(backend(store)))("/api/v1/requests/r/diagnosis?wait=5")
    assert (status, clock.now) == (200, pytest.approx(2.0, abs=0.11))
    store.close()


def test_nobody_is_waited_for_who_has_left(open_store, monkeypatch):
    clock = Clocked(monkeypatch)
    ask = Asked(build_app(backend(open_store)))
    ask.message = {"type": "http.disconnect"}
    ask("/api/v1/requests/r/diagnosis?wait=12")
    assert clock.now == 0.0


def test_a_store_that_fails_is_told_as_503():
    closed = MemoryStore()
    closed.close()
    status, told = Asked(build_app(backend(closed)))("/api/v1/requests")
    assert (status, told["error"]["code"]) == (503, "store-error")


def test_a_fault_of_ours_is_500_in_the_same_shape_and_raised_on_for_the_log(store, monkeypatch):
    def breaks(*_):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("lensd.api.app.diagnose_row", breaks)
    ask = Asked(build_app(backend(store)))
    with pytest.raises(ZeroDivisionError):
        ask("/api/v1/requests/ok-1/diagnosis")
    assert (ask.status, msgspec.json.decode(ask.body)["error"]["code"]) == (500, "bug")


def test_both_readers_give_the_same_answers(tmp_path):
    fill_folder(tmp_path / "store")
    local = LocalReader.open(tmp_path / "store", Config())
    with served() as url:
        client = Client(url, TOKEN)
        assert client.requests(limit=3) == local.requests(limit=3)
        assert client.requests(limit=3, cursor=client.requests(limit=3).next) == local.requests(
            limit=3, cursor=client.requests(limit=3).next
        )
        assert client.request("again-1") == local.request("again-1")
        assert client.requests(id="twin") == local.requests(id="twin")
        assert client.incidents() == local.incidents()
        assert client.incident("inc-000000000001") == local.incident("inc-000000000001")
        for name in ("ok-1", "wrong-key-1", "svc/7"):
            assert client.diagnosis(name) == local.diagnosis(name)
    local.shut()


def test_incidents_are_the_structs_that_clients_read(ask):
    ask("/api/v1/incidents")
    assert msgspec.json.decode(ask.body, type=Page[Incident]).items[0].typical_requests == ("ok-1",)
