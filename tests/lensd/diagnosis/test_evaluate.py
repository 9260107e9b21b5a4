"""Three outcomes, each request on its own, and nothing a runbook does ends the evaluation."""

from datetime import datetime, timedelta

import pytest
from runbook_files import FRONT, SQL, write

from lensd.diagnosis.cases import fill
from lensd.diagnosis.evaluate import Fired, Quiet, Unknown, evaluate
from lensd.diagnosis.runbook import parse
from lensd.diagnosis.scope import PUBLIC, Scope, instant, microseconds
from lensd.errors import ConfigError
from lensd.records import Confidence
from lensd.store.memory import MemoryStore

AT = "2026-11-16 09:00:00"
WINDOW = (
    FRONT.replace("scope: request", "scope: window")
    .replace("subjects.queue_ms", "engine_samples.waiting")
    .replace("waited {queue_ms:.0f} ms", "{n:.0f} samples")
)
WINDOW_SQL = "select engine, count(*) as n from engine_samples where seen_at between $from and $to and waiting > $least_ms group by all"


@pytest.fixture
def store():
    made = MemoryStore()
    yield made
    made.close()


def judge(store, rows, *books, overrides=None, timeout_s=5.0, **scope):
    keys, (start, end) = fill(store, rows)
    scope = Scope(**{"from_us": start, "to_us": end, "keys": keys, **scope})
    with store.cursor() as cursor:
        return evaluate(cursor, books, scope, overrides=overrides, timeout_s=timeout_s)


def answers(evaluation, *requests):
    return [evaluation.results[0].of(request) for request in requests]


def test_each_request_has_its_own_answer(store, tmp_path):
    rows = {"subjects": [{"request_id": "slow", "queue_ms": 100.0}, {"request_id": "fast", "queue_ms": 1.0}, {"request_id": "dark"}]}
    slow, fast, dark = answers(judge(store, rows, parse(write(tmp_path))), "slow", "fast", "dark")
    assert isinstance(slow, Fired)
    assert [finding.request_id for finding in slow.findings] == ["slow"]
    assert isinstance(fast, Quiet)
    assert dark == Unknown(missing=("subjects.queue_ms",))


def test_a_firing_row_of_a_request_that_lacks_a_need_does_not_count(store, tmp_path):
    book = parse(write(tmp_path, sql="select request_id, 1.0 as queue_ms, $least_ms as x from subjects"))
    assert answers(judge(store, {"subjects": [{"request_id": "dark"}]}, book), "dark") == [Unknown(missing=("subjects.queue_ms",))]


def test_needs_of_another_table_are_judged_by_engine_and_time(store, tmp_path):
    book = parse(write(tmp_path, front=FRONT.replace("[subjects.queue_ms]", "[subjects.queue_ms, engine_samples.waiting]")))
    request = {"queue_ms": 100.0, "total_ms": 1000, "started_at": AT}
    rows = {
        "subjects": [
            {"request_id": "seen", "engine": "e0", **request},
            {"request_id": "other", "engine": "e1", **request},
            {"request_id": "late", "engine": "e0", **request, "started_at": "2026-11-16 09:05:00"},
            {"request_id": "nowhere", **request},
        ],
        "engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 0}, {"seen_at": AT, "engine": "e1", "running": 1}],
    }
    seen, other, late, nowhere = answers(judge(store, rows, book), "seen", "other", "late", "nowhere")
    assert isinstance(seen, Fired)
    assert other == late == Unknown(missing=("engine_samples.waiting",))
    assert isinstance(nowhere, Fired)  # an unknown engine may be the one that was sampled


def test_needs_any_takes_one_whole_group(store, tmp_path):
    groups = "[[engine_samples.waiting, engine_samples.running], [subjects.timeout_ms]]"
    book = parse(write(tmp_path, front=FRONT + f"needs_any: {groups}\n"))
    rows = {
        "subjects": [
            {"request_id": "a", "queue_ms": 100.0, "timeout_ms": 1.0, "started_at": AT},
            {"request_id": "b", "queue_ms": 100.0, "started_at": AT},
        ],
        "engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 1}],
    }
    with_timeout, without = answers(judge(store, rows, book), "a", "b")
    assert isinstance(with_timeout, Fired)
    assert without == Unknown(missing=("engine_samples.running", "subjects.timeout_ms"))


def test_missing_column_makes_a_row_unknown_and_says_that_the_rule_pointed_at_it(store, tmp_path):
    sql = "select request_id, queue_ms, 'subjects.decision, events.name' as missing from subjects where queue_ms > $least_ms"
    rows = {"subjects": [{"request_id": "r", "queue_ms": 100.0}, {"request_id": "q", "queue_ms": 1.0}]}
    pointed, quiet = answers(judge(store, rows, parse(write(tmp_path, sql=sql))), "r", "q")
    assert pointed == Unknown(missing=("subjects.decision", "events.name"), pointed=True)
    assert isinstance(quiet, Quiet)


def test_window_rule_fires_is_quiet_or_unknown_as_a_whole(store, tmp_path):
    book = parse(write(tmp_path, front=WINDOW, sql=WINDOW_SQL))
    assert answers(judge(store, {"engine_samples": [{"seen_at": AT, "engine": "e0", "running": 1}]}, book), None) == [
        Unknown(missing=("engine_samples.waiting",))
    ]
    assert isinstance(answers(judge(store, {"engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 1}]}, book), None)[0], Quiet)
    (fired,) = answers(judge(store, {"engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 50}]}, book), None)
    assert isinstance(fired, Fired)
    assert (fired.findings[0].engine, fired.findings[0].request_id) == ("e0", None)


def test_a_window_rule_is_asked_only_when_an_event_that_it_begins_with_is_there(store, tmp_path):
    front = WINDOW.replace("[engine_samples.waiting]", "[events.name]") + "wakes: [engine.oom, engine.load_oom]\n"
    book = parse(write(tmp_path, front=front, sql="select engine, count(*) as n, any_value($least_ms) as x from events group by all"))
    samples = [{"seen_at": AT, "engine": "e0", "waiting": 200}]
    assert answers(judge(store, {"engine_samples": samples}, book), None) == [Unknown(missing=("events.name",))]
    assert isinstance(*answers(judge(store, {"events": [{"seen_at": AT, "engine": "e0", "name": "engine.ready"}]}, book), None), Quiet)
    early = [{"seen_at": "2026-11-15 09:00:00", "engine": "e0", "name": "engine.oom"}]
    start = microseconds(instant(0).fromisoformat(AT)) - 1_000_000
    assert isinstance(*answers(judge(store, {"events": early}, book, from_us=start, to_us=start + 9_000_000), None), Quiet)
    assert isinstance(*answers(judge(store, {"events": [{"seen_at": AT, "engine": "e0", "name": "engine.load_oom"}]}, book), None), Fired)


def test_live_window_is_the_runbooks_own(store, tmp_path):
    book = parse(write(tmp_path, front=WINDOW + "window: 1m\n", sql=WINDOW_SQL))
    rows = {
        "engine_samples": [
            {"seen_at": "2026-11-16 08:58:30", "engine": "e0", "waiting": 50},
            {"seen_at": AT, "engine": "e0", "waiting": 60},
        ]
    }
    to_us = microseconds(instant(0).fromisoformat(AT)) + 1
    evaluation = judge(store, rows, book, from_us=None, to_us=to_us)
    assert [line.text for line in evaluation.findings[0].evidence] == ["1 samples"]


def test_scope_keeps_other_engines_out_and_unknown_ones_in(store, tmp_path):
    book = parse(write(tmp_path, front=WINDOW, sql=WINDOW_SQL.replace("engine, count", "any_value(engine) as engine, count")))
    rows = {"engine_samples": [{"seen_at": AT, "engine": e, "waiting": 50} for e in ("e0", "e1", None)]}
    assert judge(store, rows, book, engine="e0").findings[0].evidence[0].text == "2 samples"


def test_scope_by_model_holds_where_no_engine_is_known(store, tmp_path):
    book = parse(write(tmp_path, front=WINDOW, sql=WINDOW_SQL))
    rows = {"engine_samples": [{"seen_at": AT, "engine": f"e-{m}", "model": m, "waiting": 50} for m in ("a", "b")]}
    assert [finding.engine for finding in judge(store, rows, book, models=("b",)).findings] == ["e-b"]


def test_rows_without_an_instant_count_in_their_order_where_asked_for(store, tmp_path):
    sql = WINDOW_SQL.replace("count(*)", "arg_max(waiting, seen_at)")
    book = parse(write(tmp_path, front=WINDOW, sql=sql))
    rows = {"engine_samples": [{"seq": 2, "engine": "e0", "waiting": 70}, {"seq": 1, "engine": "e0", "waiting": 60}]}
    assert judge(store, rows, book, undated=False).findings == ()
    fresh = MemoryStore()
    try:
        assert judge(fresh, rows, book, undated=True).findings[0].evidence[0].text == "70 samples"
    finally:
        fresh.close()


def test_a_query_that_fails_makes_its_runbook_unknown_and_the_others_are_judged(store, tmp_path):
    endless = "select count(*) from range(1000000000) a, range(1000) b where hash(a.range) = b.range"
    bad = parse(write(tmp_path, "bad", sql="select request_id, nope from subjects where $least_ms > 0"))
    odd = parse(write(tmp_path, "odd", sql="select request_id, queue_ms, 'sure' as confidence, $least_ms as x from subjects"))
    evil = parse(write(tmp_path, "evil", sql="select 'r' as request_id, $least_ms as x from 'f.csv'"))
    need = parse(write(tmp_path, "need", front=FRONT.replace("subjects.queue_ms", "subjects.nope")))
    slow = parse(
        write(
            tmp_path,
            "slow",
            sql=f"select request_id, $least_ms as x, ({endless}) as queue_ms from subjects",
        )
    )
    good = parse(write(tmp_path, "good"))
    rows = {"subjects": [{"request_id": "r", "queue_ms": 100.0}]}
    evaluation = judge(store, rows, bad, odd, evil, need, slow, good, timeout_s=0.3)
    said = {result.runbook.id: result.of("r") for result in evaluation.results}
    assert isinstance(said.pop("good"), Fired)
    assert all(isinstance(answer, Unknown) and len(answer.missing) == 1 for answer in said.values()), said
    assert "nope" in said["bad"].missing[0]
    assert "not a public table" in said["evil"].missing[0]
    assert "longer than 0.3 s" in said["slow"].missing[0]


def test_evidence_lines_are_paired_with_cites_by_order_and_null_lines_go(store, tmp_path):
    front = FRONT.replace('  - "waited {queue_ms:.0f} ms"', '  - "a {queue_ms:.1f}"\n  - "b {ttft_ms:.0f}"\n  - "c {model}"\n  - "d"')
    sql = (
        "select request_id, queue_ms, ttft_ms, model, cite(src, 'queue_ms') as a_cite, cite(src, 'ttft_ms') as b_cite,"
        " cite(src, 'model') as c_cite from subjects where queue_ms > $least_ms"
    )
    rows = {"subjects": [{"request_id": "r", "queue_ms": 100.0, "model": "m", "src": "span:1"}]}
    evidence = judge(store, rows, parse(write(tmp_path, front=front, sql=sql))).findings[0].evidence
    assert [(line.text, line.source) for line in evidence] == [("a 100.0", "span:1#queue_ms"), ("c m", "span:1#model"), ("d", None)]


def test_a_value_that_its_format_does_not_take_is_written_as_it_is(store, tmp_path):
    sql = "select request_id, 'many' as queue_ms, $least_ms as x from subjects"
    rows = {"subjects": [{"request_id": "r", "queue_ms": 100.0}]}
    assert judge(store, rows, parse(write(tmp_path, sql=sql))).findings[0].evidence[0].text == "waited many ms"


def test_reserved_columns_go_before_the_runbooks_own(store, tmp_path):
    sql = "select request_id, queue_ms, 'certain' as confidence, 'gpu' as stage, timestamp '2026-11-16 09:00:00' as since_at, 0.5 as rank, $least_ms as x from subjects"  # noqa: E501
    finding = judge(store, {"subjects": [{"request_id": "r", "queue_ms": 100.0}]}, parse(write(tmp_path, sql=sql))).findings[0]
    assert (finding.confidence, finding.stage, finding.rank) == (Confidence.CERTAIN, "gpu", 0.5)
    assert finding.since_at is not None
    assert instant(finding.since_at) == instant(0).fromisoformat(AT)
    assert finding.cause == "A thing that happens: waited 100 ms"


def test_overrides_are_bound(store, tmp_path):
    rows = {"subjects": [{"request_id": "r", "queue_ms": 100.0}]}
    assert isinstance(answers(judge(store, rows, parse(write(tmp_path)), overrides={"thing": {"least_ms": 1000}}), "r")[0], Quiet)
    with pytest.raises(ConfigError), store.cursor() as cursor:
        evaluate(cursor, [parse(write(tmp_path))], Scope(to_us=0), overrides={"thing": {"nope": 1}})


def test_durations_are_bound_as_intervals(store, tmp_path):
    front = FRONT.replace("{least_ms: 10}", "{least_ms: 10, held: 90s}")
    sql = SQL.replace("queue_ms > $least_ms", "queue_ms > $least_ms and to_milliseconds(queue_ms::bigint) < $held")
    book = parse(write(tmp_path, front=front, sql=sql))
    assert book.params["held"] == timedelta(seconds=90)
    rows = {"subjects": [{"request_id": "a", "queue_ms": 89_000.0}, {"request_id": "b", "queue_ms": 91_000.0}]}
    assert [finding.request_id for finding in judge(store, rows, book).findings] == ["a"]


def test_a_request_without_an_id_goes_by_the_engines(store, tmp_path):
    rows = {
        "subjects": [{"engine_request_id": "chatcmpl-1", "queue_ms": 100.0}, {"trace_id": "t1", "queue_ms": 100.0}, {"queue_ms": 100.0}]
    }
    assert [f.request_id for f in judge(store, rows, parse(write(tmp_path))).findings] == ["chatcmpl-1", "t1", "3"]


def test_scope_by_condition_and_silence_names_what_it_rests_on(store, tmp_path):
    rows = {"requests": [{"request_id": "a", "queue_ms": 5.0}, {"request_id": "b", "queue_ms": 500.0}]}
    evaluation = judge(store, rows, parse(write(tmp_path)), keys=None, where="request_id = 'a'")
    assert answers(evaluation, "a") == [Quiet(because="queue_ms is 5")]
    assert list(evaluation.subjects) == ["a"]


def test_nothing_is_left_on_the_cursor(store, tmp_path):
    keys, (start, end) = fill(store, {"subjects": [{"request_id": "r", "queue_ms": 100.0}]})
    book = parse(write(tmp_path))
    with store.cursor() as cursor:
        scope = Scope(from_us=start, to_us=end, keys=keys, engine="e0", undated=True)
        for _ in range(2):
            assert len(evaluate(cursor, [book], scope).findings) == 1
        left = cursor.execute("select table_name from information_schema.tables where table_catalog = 'temp'").fetchall()
    assert left == []
    assert "subjects" in PUBLIC


STIRRED = WINDOW + "stirs: {engine_samples: bool_or(waiting > 0), events: bool_or(name = 'x')}\n"
ALWAYS = "select engine, 1 as n, $least_ms as x from engine_samples, (select $from, $to)"


@pytest.mark.parametrize(
    ("rows", "asked"),
    [
        ({"engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 0}]}, False),
        ({"engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 20}]}, True),
        ({"engine_samples": [{"engine": "e0", "waiting": 20}]}, True),  # of no known time
        ({"engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 0}], "events": [{"seen_at": AT, "name": "x"}]}, True),
        (
            {
                "engine_samples": [
                    {"seen_at": AT, "engine": "e0", "waiting": 0},
                    {"seen_at": "2026-11-16 07:00:00", "engine": "e0", "waiting": 20},
                ]
            },
            False,
        ),
    ],
    ids=["no sign", "a sign", "undated", "the other sign", "before its time"],
)
def test_a_window_rule_is_asked_only_where_one_of_its_signs_is_there(store, tmp_path, rows, asked):
    book = parse(write(tmp_path, front=STIRRED, sql=ALWAYS))
    end = microseconds(datetime(2026, 11, 16, 9, 1))
    [result] = judge(store, rows, book, from_us=None, to_us=end, keys=None).results
    assert (isinstance(result.of(None), Fired), isinstance(result.of(None), Quiet)) == (asked, not asked)


@pytest.mark.parametrize("sign", ["bool_or(wating > 0)", "bool_or(waiting > $nope)"])
def test_a_sign_that_cannot_be_looked_for_leaves_the_rule_asked_and_the_others_signs_as_they_are(store, tmp_path, sign):
    broken = parse(write(tmp_path, "broken", front=WINDOW + f'stirs: {{engine_samples: "{sign}"}}\n', sql=ALWAYS))
    sound = parse(write(tmp_path, "sound", front=STIRRED, sql=ALWAYS))
    rows = {"engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 0}]}
    assert [type(result.of(None)) for result in judge(store, rows, broken, sound, keys=None).results] == [Fired, Quiet]


def test_a_window_rule_that_lacks_what_it_needs_is_unknown_whatever_would_stir_it(store, tmp_path):
    book = parse(write(tmp_path, front=STIRRED, sql=WINDOW_SQL))
    [result] = judge(store, {"engine_samples": [{"seen_at": AT, "engine": "e0", "running": 1}]}, book, keys=None).results
    assert result.of(None) == Unknown(missing=("engine_samples.waiting",))


@pytest.mark.parametrize(("waiting", "asked"), [(9, False), (11, True)])
def test_what_stirs_a_rule_may_use_its_params(store, tmp_path, waiting, asked):
    front = WINDOW + "stirs: {engine_samples: max(waiting) > $least_ms}\n"
    rows = {"engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": waiting}]}
    [result] = judge(store, rows, parse(write(tmp_path, front=front, sql=ALWAYS)), keys=None).results
    assert isinstance(result.of(None), Fired) is asked
    overrides = {"thing": {"least_ms": 8}}
    [result] = judge(store, rows, parse(write(tmp_path, front=front, sql=ALWAYS)), keys=None, overrides=overrides).results
    assert isinstance(result.of(None), Fired)


@pytest.mark.parametrize(("front", "asked"), [("stirs_before: back\n", True), ("", False)], ids=["named", "not named"])
def test_what_came_before_a_window_stirs_a_rule_that_says_so(store, tmp_path, front, asked):
    stirred = WINDOW.replace("{least_ms: 10}", "{least_ms: 10, back: 1d}").replace("engine_samples.waiting", "events.name")
    book = parse(write(tmp_path, front=stirred + "stirs: {events: bool_or(name = 'x')}\n" + front, sql=f"{ALWAYS}, (select $back)"))
    rows = {
        "events": [{"seen_at": AT, "name": "y"}, {"seen_at": "2026-11-15 12:00:00", "name": "x"}],
        "engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 0}],
    }
    start = microseconds(datetime(2026, 11, 16, 8, 59))
    [result] = judge(store, rows, book, from_us=start, to_us=start + 120_000_000, keys=None).results
    assert isinstance(result.of(None), Fired) is asked


@pytest.mark.parametrize(
    ("span", "asked"),
    [
        ({"started_at": AT, "ended_at": AT, "status": "error"}, True),
        ({"started_at": "2026-11-16 08:30:00", "ended_at": AT, "status": "error"}, True),
        ({"started_at": "2026-11-16 08:30:00", "ended_at": "2026-11-16 08:31:00", "status": "error"}, False),
        ({"started_at": AT, "ended_at": AT, "status": "ok"}, False),
    ],
    ids=["in the window", "ended in it", "over before", "another"],
)
@pytest.mark.parametrize("condition", ["bool_or(status = 'error')", "count_if(status = 'error') > 0"], ids=["of a row", "of all"])
def test_spans_stir_a_rule_where_they_ran_in_its_window(store, tmp_path, span, asked, condition):
    book = parse(write(tmp_path, front=WINDOW + f'stirs: {{spans: "{condition}"}}\n', sql=ALWAYS))
    rows = {"spans": [{"trace_id": "t", "span_id": "s", **span}], "engine_samples": [{"seen_at": AT, "engine": "e0", "waiting": 0}]}
    start = microseconds(datetime(2026, 11, 16, 8, 59))
    [result] = judge(store, rows, book, from_us=start, to_us=start + 120_000_000, keys=None).results
    assert isinstance(result.of(None), Fired) is asked


SLIP = {"outcome": "refused", "status": 401, "started_at": "2026-11-16 09:00:00", "peer": "10.0.0.9", "src": "a.log:1"}
MANY = [{"hop": "proxy", "method": "POST", "status": 200, "seen_at": "2026-11-16 08:00:00", "src": f"b.log:{n}"} for n in range(40)]


@pytest.mark.parametrize(
    ("after", "others", "undated", "is_over"),
    [
        ({"seen_at": "2026-11-16 09:00:20", "peer": "10.0.0.9"}, MANY, True, True),
        ({"seen_at": "2026-11-16 09:00:20", "peer": None}, MANY, True, True),
        ({"seen_at": "2026-11-16 09:00:20", "peer": "10.0.0.7"}, MANY, True, False),
        ({"seen_at": "2026-11-16 09:00:20", "peer": None, "src": "c.log:2"}, MANY, True, False),
        ({"seen_at": "2026-11-16 09:00:20", "peer": None, "hop": "gateway"}, MANY, True, False),
        ({"seen_at": "2026-11-16 09:05:00", "peer": "10.0.0.9"}, MANY, True, False),
        ({"seen_at": "2026-11-16 08:59:50", "peer": "10.0.0.9"}, MANY, True, False),
        ({"seen_at": "2026-11-16 09:00:20", "peer": "10.0.0.9", "status": 403}, MANY, True, False),
        ({"seen_at": "2026-11-16 09:00:20", "peer": "10.0.0.9"}, [], True, False),
        ({"seen_at": "2026-11-16 09:00:20", "peer": "10.0.0.9"}, MANY, False, False),
    ],
    ids=[
        "served",
        "no address",
        "another caller",
        "another transcript",
        "somebody of a gateway's log",
        "late",
        "before",
        "refused again",
        "hardly anybody",
        "live",
    ],
)
def test_a_slip_that_its_caller_put_right_at_once_is_over_in_files(store, tmp_path, after, others, undated, is_over):
    call = {"hop": "client", "method": "POST", "status": 200, "src": "a.log:2", **after}
    rows = {"subjects": [{"request_id": "r", **SLIP}], "http_exchanges": [call, *others]}
    assert judge(store, rows, undated=undated).put_right == (frozenset({"r"}) if is_over else frozenset())
