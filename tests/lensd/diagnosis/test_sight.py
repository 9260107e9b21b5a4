"""What rules see of a store that holds other days: the time of what they judge, and nothing that a copy of it would not say."""

from datetime import timedelta

import pytest
from judged_house import BOOKS, T0, Call, S, logged, scrape
from lensd_collectors.rows import HttpExchange, RequestRow
from runbook_files import FRONT, write

from lensd.diagnosis import sight
from lensd.diagnosis.diagnose import diagnose_row
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.reach import NEAR, reach_of
from lensd.diagnosis.runbook import parse
from lensd.diagnosis.scope import Scope
from lensd.diagnosis.sight import bound
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.store.memory import MemoryStore
from lensd.store.queries import rows
from lensd.timeline.assembler import assemble_all
from lensd.timeline.limits import Limits

HOUR, DAY = 3600, 86_400
NOW = T0 + HOUR * S
WINDOW = (
    FRONT.replace("scope: request", "scope: window")
    .replace("subjects.queue_ms", "events.name")
    .replace("waited {queue_ms:.0f} ms", "{n:.0f} events")
    .replace("params: {least_ms: 10}", "params: {PARAMS}")
)
EVENTS = "select engine, count(*) as n from events where seen_at between $from - {back} and $to and engine is not null group by all"


@pytest.fixture
def store():
    made = MemoryStore()
    yield made
    made.close()


def surroundings():
    """Three requests of one engine: one that went well, one that waited, one that its engine failed."""
    calls = [
        Call(1, at=0),
        Call(2, at=20, total=9_200, queue=9_000),
        Call(3, at=40, about={"lensd.outcome": "failed", "lensd.decision": "engine_error", "http.response.status_code": 500}),
    ]
    return {
        "spans": [span for call in calls for span in call.all()],
        "engine_samples": [scrape(at, running=8, waiting=6 if 15 < at < 35 else 0) for at in range(-300, 100, 5)],
        "events": [logged(39, "engine.log.error")],
    }


def others():
    """Other days on the same engine, in which all went differently."""
    calls = [
        Call(1_000 + 100 * day + number, at=day * DAY + number * 7, queue=queue, total=queue + 200, about=about)
        for day in (-3, -2, 2, 3)
        for number, (queue, about) in enumerate([(5, {}), (30_000, {}), (5, {"lensd.outcome": "caller_gone"}), (5, {})] * 6)
    ]
    made = {
        "spans": [span for call in calls for span in call.all()],
        "engine_samples": [scrape(day * DAY + at, running=64, waiting=40) for day in (-3, 3) for at in range(0, 600, 5)],
        "events": [
            logged(day * DAY + 30, name) for day in (-3, 3) for name in ("engine.oom", "engine.dead", "engine.started", "engine.ready")
        ],
        "http_exchanges": [
            HttpExchange(seen_at=T0 + (2 * DAY + n) * S, hop="client", method="POST", path="/v1/chat/completions", status=401, src=f"x:{n}")
            for n in range(9)
        ],
    }
    return {table: list(given) for table, given in made.items()}


def documents(folder, *parts):
    """The diagnoses of the three requests, by their ids, over a store of these rows."""
    made = FolderStore(folder)
    try:
        for part in parts:
            made.append(batch_of(part))
        with made.cursor() as cursor:
            made.append(batch_of({"requests": [request.row for request in assemble_all(cursor, None, NOW)]}))
        with made.cursor() as cursor:
            found = rows(cursor, "select * from requests where request_id in ('r1', 'r2', 'r3') order by request_id")
            return {row["request_id"]: diagnose_row(cursor, row, BOOKS, {}, Limits(), NOW) for row in found}
    finally:
        made.close()


def test_much_other_traffic_days_around_changes_nothing_of_a_diagnosis(tmp_path):
    alone = documents(tmp_path / "alone", surroundings())
    among = documents(tmp_path / "among", others(), surroundings())
    assert [told.verdict.label for told in alone.values()] == ["no-incident", "queue-saturation", "inconclusive"]
    assert among == alone


@pytest.mark.parametrize("most", [0, sight.MOST_VALUES], ids=["read from the store", "copied"])
def test_a_copy_says_what_the_store_says(tmp_path, monkeypatch, most):
    expected = documents(tmp_path / "expected", surroundings())
    monkeypatch.setattr(sight, "MOST_VALUES", most)
    assert documents(tmp_path / "asked", surroundings()) == expected


@pytest.mark.parametrize(
    ("params", "sql", "reach"),
    [
        ("least: 1", "select $least", NEAR),
        ("near: 15m", "select $near", NEAR),
        ("far: 1d", "select $far", timedelta(days=2)),
        ("far: 1d", "select 1", NEAR),
        ("least: 1", "select $from - interval 1 hour", timedelta(hours=2)),
        ("least: 1", "select $from - interval '3' days, to_hours(5)", timedelta(days=6)),
        ("least: 1", "select to_weeks(1)", timedelta(days=14)),
    ],
)
def test_a_rule_reaches_twice_as_far_as_the_longest_time_that_it_names(tmp_path, params, sql, reach):
    assert reach_of(parse(write(tmp_path, front=WINDOW.replace("PARAMS", params), sql=sql))) == reach


@pytest.mark.parametrize(
    ("params", "back", "found"),
    [("near: 10m", "$near", 1), ("far: 1d", "$far", 2), ("far: 3d", "$far", 3)],
    ids=["near", "a day", "three days"],
)
def test_each_rule_is_shown_what_it_looks_back_at(store, tmp_path, params, back, found):
    store.append(batch_of({"events": [logged(at, "engine.started") for at in (-2 * DAY, -0.5 * DAY, 0)]}))
    book = parse(write(tmp_path, front=WINDOW.replace("PARAMS", params), sql=EVENTS.format(back=back)))
    near = parse(write(tmp_path, "near", front=WINDOW.replace("PARAMS", "least: 1m"), sql=EVENTS.format(back="$least")))
    with store.cursor() as cursor:
        evaluation = evaluate(cursor, [book, near], Scope(from_us=T0 - 600 * S, to_us=T0 + 60 * S))
    assert [line.text for finding in evaluation.findings for line in finding.evidence] == [f"{found} events", "1 events"]
    assert [result.runbook.id for result in evaluation.results] == ["thing", "near"]


def test_rows_of_no_known_time_are_seen(store, tmp_path):
    store.append(batch_of({"events": [logged(0, "a"), logged(0, "b"), logged(-2 * DAY, "c")]}))
    sql = "select 'e0' as engine, count(*) as n from events where $least > timestamp '1970-01-01' - $from"
    undated = logged(0, "d")
    undated.seen_at = None
    store.append(batch_of({"events": [undated]}))
    book = parse(write(tmp_path, front=WINDOW.replace("PARAMS", "least: 1m"), sql=sql))
    with store.cursor() as cursor:
        [finding] = evaluate(cursor, [book], Scope(from_us=T0 - 600 * S, to_us=T0 + 60 * S)).findings
    assert finding.evidence[0].text == "3 events"


def revision(number, revision, at, **told):
    return RequestRow(request_key=number, revision=revision, request_id=f"r{number}", started_at=T0 + round(at * S), **told)


@pytest.mark.parametrize("most", [0, sight.MOST_VALUES], ids=["read from the store", "copied"])
@pytest.mark.parametrize("from_us", [T0 - 600 * S, None], ids=["of a request", "at a tick"])
def test_requests_are_seen_in_their_last_revision(store, monkeypatch, most, from_us):
    monkeypatch.setattr(sight, "MOST_VALUES", most)
    store.append(batch_of({"requests": [revision(1, 0, 5), revision(2, 0, 5), revision(3, 0, -900), revision(4, 0, -5 * HOUR)]}))
    store.append(
        batch_of({"requests": [revision(1, 1, 0, label="x"), revision(2, 1, 5, withdrawn=True), revision(5, 1, 5, label="first")]})
    )
    store.append(batch_of({"requests": [revision(5, 1, 5, label="second"), revision(6, 0, HOUR)]}))
    with store.cursor() as cursor, bound(cursor, Scope(from_us=from_us, to_us=T0 + 60 * S)) as seen:
        seen.look(["requests"], T0 - 600 * S)
        found = cursor.execute("select request_id, revision, label from requests order by all").fetchall()
    assert found == [("r1", 1, "x"), ("r3", 0, None), ("r5", 1, "second")]


def test_nothing_is_left_of_a_sight(store):
    store.append(batch_of({"events": [logged(0, "a")], "requests": [revision(1, 0, 0)]}))
    with store.cursor() as cursor:
        with bound(cursor, Scope(from_us=T0 - 600 * S, to_us=T0 + 60 * S, engine="e0")) as seen:
            seen.look(["events", "requests", "config_facts", "spans"], T0 - 600 * S)
            seen.look(["events"], T0 - 600 * S, 2 * DAY * S)
        left = cursor.execute("select table_name from information_schema.tables where table_catalog = 'temp'").fetchall()
    assert left == []
