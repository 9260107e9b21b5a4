"""Each thing that can be wrong in a runbook is found, with file and line; a good one has no problem."""

from datetime import timedelta
from pathlib import Path

import pytest
from runbook_files import CASES, FRONT, HEADINGS, SQL, write

from lensd.diagnosis.check import check, check_folders
from lensd.diagnosis.runbook import built_in_folder, load, override, parse, value
from lensd.errors import ConfigError, RunbookError
from lensd.store.memory import MemoryStore


@pytest.fixture
def cursor():
    store = MemoryStore()
    with store.cursor() as made:
        yield made
    store.close()


def front(old: str, new: str) -> str:
    assert old in FRONT
    return FRONT.replace(old, new)


def sql(old: str, new: str) -> str:
    assert old in SQL
    return SQL.replace(old, new)


BROKEN = {
    "unknown key": ({"front": FRONT + "sevrity: info\n"}, 15, "unknown field `sevrity`"),
    "bad enum": ({"front": front("severity: warning", "severity: bad")}, 4, "severity"),
    "missing key": ({"front": front("fix: do something\n", "")}, 2, "missing required field `fix`"),
    "not yaml": ({"front": front("fix: do something", "fix: a: b")}, 14, "not YAML"),
    "bad sql": ({"sql": "selec request_id"}, 25, "not one SELECT"),
    "unknown column": ({"sql": sql("queue_ms >", "queu_ms >")}, 25, "queu_ms"),
    "unknown column in a later line": (
        {"sql": "select request_id, queue_ms, src as queue_cite\nfrom subjects\nwhere queu_ms > $least_ms"},
        27,
        "queu_ms",
    ),
    "refused sql": ({"sql": "select 1 as request_id, 2 as queue_ms from 'f.csv' where $least_ms"}, 25, "f.csv is not a public table"),
    "two statements": ({"sql": SQL + "; select 1"}, 25, "2 statements"),
    "no request_id": ({"sql": sql("select request_id", "select request_key")}, 25, "returns no request_id"),
    "param without value": ({"sql": sql("$least_ms", "$most_ms")}, 25, "$most_ms, which params does not have"),
    "param without use": ({"front": front("{least_ms: 10}", "{least_ms: 10, other: 1}")}, 9, "params has other"),
    "clock": ({"sql": sql("queue_ms > $least_ms", "queue_ms > $least_ms and started_at < now()")}, 25, "calls now"),
    "chance": ({"sql": sql("queue_ms > $least_ms", "queue_ms > $least_ms and random() < 1")}, 25, "calls random"),
    "needs of no table": ({"front": front("subjects.queue_ms", "nothing.queue_ms")}, 8, "no public table nothing"),
    "needs of no column": ({"front": front("subjects.queue_ms", "subjects.que_ms")}, 8, "no column que_ms"),
    "template names no column": ({"front": front("{queue_ms:.0f}", "{wait_ms:.0f}")}, 13, "evidence names wait_ms"),
    "template with a conversion": ({"front": front("{queue_ms:.0f}", "{queue_ms!r}")}, 13, "not a plain format"),
    "template with an attribute": ({"front": front("{queue_ms:.0f}", "{queue_ms.real}")}, 13, "not a plain column name"),
    "template with an index": ({"front": front("{queue_ms:.0f}", "{queue_ms[0]}")}, 13, "not a plain column name"),
    "template with a nested spec": ({"front": front("{queue_ms:.0f}", "{queue_ms:{engine}}")}, 13, "not a plain format"),
    "template that the type does not take": ({"front": front("{queue_ms:.0f}", "{engine:.0f}")}, 13, "it is varchar"),
    "cite without a line": ({"sql": sql("as queue_cite", "as queue_cite, src as other_cite")}, 12, "other_cite has no evidence line"),
    "explains nothing": ({"front": front("explains: []", "explains: [nobody]")}, 11, "explains nobody"),
    "explains itself": ({"front": front("explains: []", "explains: [thing]")}, 11, "circle"),
    "missing heading": ({"headings": [h for h in HEADINGS if h != "Impact"]}, 1, "'## Impact' is missing"),
    "headings in disorder": ({"headings": ["Impact", "Meaning", *HEADINGS[2:]]}, 17, "another order"),
    "no cases": ({"cases": None}, 1, "thing.cases.yaml is missing"),
    "no unknown case": ({"cases": CASES.split("- case: c")[0]}, 1, "no case expects unknown"),
    "case with an unknown column": ({"cases": CASES.replace("queue_ms: 100", "queu_ms: 100")}, 1, "subjects has no column queu_ms"),
    "case with an unknown table": ({"cases": CASES.replace("- case: b\n", "- case: b\n  nowhere: []\n")}, 4, "nowhere"),
    "cases that are not yaml": ({"cases": "- case: [\n"}, 2, "not YAML"),
}


@pytest.mark.parametrize(("broken", "line", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_problem_is_found_in_its_place(tmp_path, cursor, broken, line, message):
    path = write(tmp_path, **broken)
    problems = check([path], cursor)
    assert any(message in problem.message for problem in problems), problems
    problem = next(problem for problem in problems if message in problem.message)
    assert problem.line == line, problem
    assert Path(problem.path).name.startswith("thing.")
    assert str(problem) == f"{problem.path}:{problem.line}: {problem.message}"
    assert "\n" not in str(problem)


def test_good_runbook_has_no_problem(tmp_path, cursor):
    assert check([write(tmp_path)], cursor) == []


def test_circle_over_two_runbooks(tmp_path, cursor):
    one = write(tmp_path, "one", front=front("explains: []", "explains: [two]"))
    two = write(tmp_path, "two", front=front("explains: []", "explains: [one]"))
    assert [problem.message for problem in check([one, two], cursor)] == [
        "explains goes in a circle: one explains itself through others",
        "explains goes in a circle: two explains itself through others",
    ]


def test_no_front_matter_and_no_query(tmp_path, cursor):
    path = tmp_path / "thing.md"
    path.write_text("# nothing\n")
    assert "no front matter" in check([path], cursor)[0].message
    path.write_text(f"---\n{FRONT}---\n\n## Meaning\nx\n")
    assert "no query" in check([path], cursor)[0].message


def test_window_rule_checks(tmp_path, cursor):
    window = front("scope: request", "scope: window")
    messages = [problem.message for problem in check([write(tmp_path, front=window, sql=sql("engine, ", ""))], cursor)]
    assert any("window rule has no subjects" in message for message in messages)
    assert any("none of engine, model, gpu, key_id" in message for message in messages)


def test_built_in_runbooks_have_no_problem():
    assert [str(problem) for problem in check_folders()] == []


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    assert "does not exist" in str(check_folders([tmp_path / "nowhere"])[0])


def test_load_gives_typed_values(tmp_path):
    text = FRONT + "hold: {open_after: 0s, close_after: 2h}\nalert: {min_requests: 5, within: 5m, min_share: 1%}\nwindow: 30m\n"
    book = load([write(tmp_path, front=text).parent])["thing"]
    assert (book.hold.open_after, book.hold.close_after, book.window) == (timedelta(0), timedelta(hours=2), timedelta(minutes=30))
    assert book.alert is not False
    assert (book.alert.min_requests, book.alert.within, book.alert.min_share) == (5, timedelta(minutes=5), 0.01)
    assert book.label == "thing"
    assert book.sections["Meaning"] == "Some text."


def test_alert_false_and_label(tmp_path):
    book = parse(write(tmp_path, "thing@window", front=FRONT + "alert: false\nlabel: thing\n"))
    assert book.alert is False
    assert (book.id, book.label) == ("thing@window", "thing")


def test_user_folder_replaces_by_id_and_retired_ones_are_gone(tmp_path):
    name = next(built_in_folder().glob("*.md")).stem
    write(tmp_path, name)
    write(tmp_path, "old", front=front("status: stable", "status: retired"))
    books = load([tmp_path])
    assert books[name].title == "A thing that happens"
    assert "old" not in books


def test_malformed_runbook_does_not_load(tmp_path):
    write(tmp_path, front=FRONT + "what: 1\n")
    with pytest.raises(RunbookError, match=r"thing\.md:15: front matter: .*what"):
        load([tmp_path])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("60s", timedelta(minutes=1)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("5%", 0.05),
        ("abc", "abc"),
        (3, 3),
        (True, True),
        ({"a": "1m", "b": {"c": "2%"}}, {"a": timedelta(minutes=1), "b": {"c": 0.02}}),
    ],
)
def test_value(written, expected):
    assert value(written) == expected


def test_override_reads_durations_and_names_what_is_near(tmp_path):
    books = load([write(tmp_path, front=front("{least_ms: 10}", "{least_ms: 10, held: 1m}")).parent])
    changed = override(books, {"thing": {"least_ms": 99, "held": "2m"}})
    assert changed["thing"].params == {"least_ms": 99, "held": timedelta(minutes=2)}
    assert books["thing"].params["least_ms"] == 10
    with pytest.raises(ConfigError, match="did you mean thing"):
        override(books, {"thingy": {}})
    with pytest.raises(ConfigError, match="did you mean least_ms"):
        override(books, {"thing": {"least": 1}})
