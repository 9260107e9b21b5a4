"""What the SQL guard refuses and what it lets through, and that nothing happens beside it."""

import duckdb
import pytest

from lensd.diagnosis.guard import DENIED, check_select, parameters, run_guarded
from lensd.diagnosis.scope import PUBLIC
from lensd.errors import SqlLimitError, SqlRefusedError
from lensd.store.memory import MemoryStore

REFUSED = {
    "file read by name": "from 'requests.csv'",
    "file read by function": "from read_csv('/etc/passwd')",
    "file text": "select * from read_text('/etc/passwd')",
    "glob": "from glob('/*')",
    "file write": "copy requests to 'out.csv'",
    "file write of a query": "copy (select 1) to 'out.parquet'",
    "set": "set threads = 1",
    "pragma": "pragma database_list",
    "attach": "attach 'other.duckdb'",
    "insert": "insert into requests (request_key) values (1)",
    "insert in a cte": "with x as (insert into requests (request_key) values (1) returning 1) from x",
    "create": "create table mine as select 1",
    "second statement": "select 1; select 2",
    "second statement that is no select": "select 1; drop table requests",
    "no statement": " -- nothing",
    "explain": "explain select 1",
    "show": "show tables",
    "describe": "describe requests",
    "summarize": "summarize requests",
    "python variable": "from python_rows",
    "table named like a file": 'from "requests.parquet"',
    "system table": "from duckdb_settings()",
    "system view": "from duckdb_tables",
    "information schema": "from information_schema.tables",
    "catalog": "from pg_catalog.pg_class",
    "qualified public table": "from memory.main.requests",
    "held table": "from held.requests",
    "settings": "select current_setting('threads')",
    "environment": "select getenv('HOME')",
    "variable": "select getvariable('x')",
    "sql in a string": "from query('select 1')",
    "table by name in a string": "from query_table('requests')",
    "waiting": "select sleep_ms(1)",
    "qualified function": "select system.main.getvariable('x')",
    "cte hiding a file from itself": 'with "f.csv" as (from "f.csv") from "f.csv"',
    "cte of an inner query used outside": 'select * from (with "f.csv" as (select 1) from "f.csv"), "f.csv"',
    "cte before it is made": "with a as (from b), b as (select 1) from a",
    "unused cte": "with a as (from 'f.csv') select 1",
    "select list": "select (select 1 from 'f.csv') from requests",
    "where": "from requests where exists (from 'f.csv')",
    "in": "from requests where status in (select a from 'f.csv')",
    "any": "from requests where status = any (select a from 'f.csv')",
    "lateral": "from requests r, lateral (from 'f.csv')",
    "join": "from requests r join 'f.csv' f on true",
    "order by": "from requests order by (select 1 from 'f.csv')",
    "limit": "from requests limit (select 1 from 'f.csv')",
    "having": "select status from requests group by 1 having (select true from 'f.csv')",
    "qualify": "from requests qualify row_number() over (order by (select 1 from 'f.csv')) = 1",
    "window frame": "select sum(status) over (rows between (select 1 from 'f.csv') preceding and current row) from requests",
    "filter": "select count(*) filter ((select true from 'f.csv')) from requests",
    "argument of an allowed table function": "from range((select 1 from 'f.csv'))",
    "union": "select 1 union all select a from 'f.csv'",
    "replace": "select * replace ((select 1 from 'f.csv') as status) from requests",
    "lambda": "select list_transform([1], lambda x: (select 1 from 'f.csv'))",
    "pivot": "from (pivot requests on model in ('a') using count(*))",
    "recursive": "with recursive r as (select 1 union all select a from 'f.csv') from r",
}

ALLOWED = {
    "window": "select model, row_number() over (partition by engine order by started_at) from requests qualify row_number() over () = 1",
    "cte": "with a as (from requests), b as (from a) from b join a using (request_key)",
    "cte shadowing a public table": "with requests as (select 1 as x) from requests",
    "recursive": "with recursive r as (select 1 as n union all select n + 1 from r where n < 3) from r",
    "unnest": "from requests r, unnest([1, 2]) as t(x), lateral (select x + 1)",
    "range": "from range(3), generate_series(1, 2)",
    "types": "select status::decimal(10, 2), model::varchar[], cast(status as struct(a int)) from requests",
    "macros": "select attr(attributes, 'a'), cite(src, 'name') from spans",
    "asof": "from requests s asof join engine_samples e on s.engine = e.engine and s.started_at >= e.seen_at",
    "set operation": "select status from requests union by name select status from http_exchanges order by all limit 3 offset 1",
    "lists": "select [x * 2 for x in [1, 2]], {'a': 1}.a, case when true then 1 end, columns('^s') from requests",
    "subjects": "select request_id from subjects where started_at between $from and $to",
    "grouping": "select engine, max(status) filter (status > 1), arg_max(src, status) from requests group by grouping sets ((engine), ())",
    "trailing semicolon": "select 1;",
    "values": "from (values (1), (2)) t(a)",
}


@pytest.fixture
def cursor():
    store = MemoryStore()
    with store.cursor() as made:
        yield made
    store.close()


@pytest.mark.parametrize("sql", REFUSED.values(), ids=REFUSED.keys())
def test_refused(cursor, sql):
    python_rows = duckdb.sql("select 1")  # in reach of a replacement scan
    assert python_rows is not None
    with pytest.raises(SqlRefusedError) as refused:
        check_select(cursor, sql, PUBLIC)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("sql", ALLOWED.values(), ids=ALLOWED.keys())
def test_allowed(cursor, sql):
    check_select(cursor, sql, PUBLIC)


def test_message_names_the_offender(cursor):
    with pytest.raises(SqlRefusedError, match=r"f\.csv is not a public table"):
        check_select(cursor, "from 'f.csv'", PUBLIC)
    with pytest.raises(SqlRefusedError, match="2 statements"):
        check_select(cursor, "select 1; select 2", PUBLIC)


def test_every_volatile_function_of_this_duckdb_is_denied_or_known_to_be_harmless(cursor):
    """A new DuckDB may bring functions that reach outside; this one asks somebody to look."""
    harmless = {
        "random",
        "uuid",
        "uuidv4",
        "uuidv7",
        "gen_random_uuid",
        "now",
        "today",
        "current_date",
        "get_current_time",
        "get_current_timestamp",
        "transaction_timestamp",
    }
    volatile = {
        name
        for (name,) in cursor.execute(
            "select distinct function_name from duckdb_functions() where function_type = 'scalar' and stability <> 'CONSISTENT'"
        ).fetchall()
    }
    assert {name for name in volatile if not DENIED.match(name)} <= harmless


def test_parameters_are_found_and_only_those_used_are_bound(cursor):
    assert parameters(cursor, "select $a, (select $b from requests)") == {"a", "b"}
    columns, rows = run_guarded(cursor, "select $a + 1 as n", {"a": 1, "unused": 2}, timeout_s=5)
    assert [name for name, _ in columns] == ["n"]
    assert rows == [(2,)]


def test_a_parameter_without_a_value_is_named(cursor):
    with pytest.raises(SqlRefusedError, match=r"\$b, which has no value"):
        run_guarded(cursor, "select $a, $b", {"a": 1}, timeout_s=5)


def test_time_limit_interrupts_and_leaves_the_cursor_usable(cursor):
    slow = "select count(*) from range(1000000000) a, range(1000) b where hash(a.range) % 7 = hash(b.range) % 11"
    with pytest.raises(SqlLimitError, match=r"longer than 0\.1 s"):
        run_guarded(cursor, slow, {}, timeout_s=0.1)
    assert run_guarded(cursor, "select 1", {}, timeout_s=5)[1] == [(1,)]


def test_row_limit(cursor):
    assert len(run_guarded(cursor, "from range(10)", {}, timeout_s=5, max_rows=10)[1]) == 10
    with pytest.raises(SqlLimitError, match="more than 9 rows"):
        run_guarded(cursor, "from range(10)", {}, timeout_s=5, max_rows=9)


def test_a_query_that_does_not_bind_is_refused_in_one_line(cursor):
    with pytest.raises(SqlRefusedError, match="nope") as refused:
        run_guarded(cursor, "select nope from requests", {}, timeout_s=5)
    assert "\n" not in str(refused.value)
