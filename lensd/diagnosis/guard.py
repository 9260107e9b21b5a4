"""SQL that other people wrote runs only as one SELECT over the public tables, within a time and a row limit.

DuckDB's own parser gives the statement as JSON (`json_serialize_sql`, SELECT only); the guard walks it and lets through
what it knows. A name that is not a public table or a CTE in scope is refused, so neither a file nor a Python variable nor a
system table can be reached through it. The instance has external access off besides; this is the first of two fences.
"""

import json
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

import duckdb

from lensd.errors import SqlLimitError, SqlRefusedError
from lensd.store.interface import Cursor

T = TypeVar("T")
TABLE_FUNCTIONS: Final = frozenset({"unnest", "range", "generate_series"})
PLAIN_REFS: Final = frozenset({"EMPTY", "JOIN", "SUBQUERY", "EXPRESSION_LIST"})
QUERY_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
MODIFIERS: Final = frozenset(
    {"ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER", "ASCENDING", "DESCENDING", "ORDER_DEFAULT"}
)
# Functions that reach outside the query: environment, settings, variables, files, catalogs, other SQL, sequences, waiting.
DENIED: Final = re.compile(
    r"^(?:read_\w+|write_\w+|duckdb_\w+|pragma_\w+|pg_(?!typeof$)\w+|has_\w+|inet_\w+|getenv|getvariable|nextval|currval|setseed|sleep_ms"
    r"|current_(?!date$|time$|timestamp$|localtime$|localtimestamp$)\w+|session_user|user|version|in_search_path|txid_current|stats"
    r"|error|glob|query|query_table|json_execute_\w+|json_serialize_\w+|json_deserialize_\w+|from_json_plan|which_secret"
    r"|(?:col_|obj_|shobj_)description|get_block_size|format_pg_type|format_type|map_to_pg_oid|parse_duckdb_log_message|enable_\w+)$"
)

Scope = frozenset[str]
MOST_ACCEPTED: Final = 512
_ACCEPTED: Final[set[tuple[str, Scope]]] = set()  # statements let through before: rules run at every tick
_NAMED: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {}  # their params and tables


def check_select(cursor: Cursor, sql: str, tables: Collection[str]) -> None:
    """Return only if `sql` is one SELECT over `tables` (lower case) and its own CTEs; raises SqlRefusedError otherwise."""
    accepted = (sql, frozenset(tables))
    if accepted in _ACCEPTED:
        return
    _walk(_parse(cursor, sql), accepted[1], frozenset())
    if len(_ACCEPTED) >= MOST_ACCEPTED:
        _ACCEPTED.clear()
    _ACCEPTED.add(accepted)


def parameters(cursor: Cursor, sql: str) -> frozenset[str]:
    """Names that `sql` uses as `$name`."""
    return _named(cursor, sql)[0]


def tables(cursor: Cursor, sql: str) -> frozenset[str]:
    """Names that `sql` reads from, lower case: tables, and CTEs of its own."""
    return _named(cursor, sql)[1]


def _named(cursor: Cursor, sql: str) -> tuple[frozenset[str], frozenset[str]]:
    if sql not in _NAMED:
        if len(_NAMED) >= MOST_ACCEPTED:
            _NAMED.clear()
        every = list(nodes(_parse(cursor, sql)))
        _NAMED[sql] = (
            frozenset(str(node["identifier"]) for node in every if node.get("class") == "PARAMETER"),
            frozenset(str(node["table_name"]).lower() for node in every if node.get("type") == "BASE_TABLE"),
        )
    return _NAMED[sql]


def functions(cursor: Cursor, sql: str) -> frozenset[str]:
    """Names of the functions that `sql` calls, lower case."""
    return frozenset(str(node["function_name"]).lower() for node in nodes(_parse(cursor, sql)) if node.get("class") == "FUNCTION")


def run_guarded(
    cursor: Cursor, sql: str, params: Mapping[str, object], *, timeout_s: float, max_rows: int = 10_000
) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
    """Columns (name, DuckDB type) and rows of a query that `check_select` let through.

    Parameters that the query does not use are left out. Raises SqlLimitError over the time or row limit, SqlRefusedError
    where DuckDB does not take the query (unknown column, wrong type, value out of range).
    """
    columns, rows = fetched(cursor, sql, params, lambda result: result.fetchmany(max_rows + 1), timeout_s=timeout_s)
    if len(rows) > max_rows:
        raise SqlLimitError(f"query gives more than {max_rows} rows; add a limit or group them")
    return columns, rows


def fetched(
    cursor: Cursor, sql: str, params: Mapping[str, object], fetch: Callable[[Any], T], *, timeout_s: float
) -> tuple[list[tuple[str, str]], T]:
    """Columns as `run_guarded` gives them, and what `fetch` takes of the query's result within the time limit."""
    used = parameters(cursor, sql)
    absent = sorted(used - params.keys())
    if absent:
        raise SqlRefusedError(f"sql uses ${absent[0]}, which has no value")
    stop = threading.Timer(timeout_s, cursor.interrupt)  # type: ignore[attr-defined]
    stop.daemon = True
    stop.start()
    try:
        result = cursor.execute(sql, {name: params[name] for name in used})
        return [(str(column[0]), str(column[1])) for column in result.description], fetch(result)
    except duckdb.InterruptException:
        raise SqlLimitError(f"query took longer than {timeout_s:g} s and was stopped; narrow its time range") from None
    except duckdb.Error as error:
        raise SqlRefusedError(f"query does not run: {first_line(error)}") from None
    finally:
        stop.cancel()
        stop.join()


def first_line(error: Exception) -> str:
    """The first line of an error's text, with the line of the query it speaks of, as part of a one-line message."""
    text = str(error).strip() or type(error).__name__
    place = re.search(r"^LINE (\d+):", text, re.M)
    return text.splitlines()[0] + (f" (line {place[1]} of the query)" if place else "")


def nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Every object of a serialised statement, outermost first."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(reversed(list(node.values())))
        elif isinstance(node, list):
            stack.extend(reversed(node))


def _parse(cursor: Cursor, sql: str) -> dict[str, Any]:
    try:
        text = cursor.execute("select json_serialize_sql($sql)", {"sql": sql}).fetchone()[0]
    except duckdb.Error as error:
        raise SqlRefusedError(f"sql does not parse: {first_line(error)}") from None
    document: dict[str, Any] = json.loads(text)
    if document["error"]:
        why = "" if document["error_type"] == "not implemented" else f": {str(document['error_message']).splitlines()[0]}"
        raise SqlRefusedError(f"sql is not one SELECT{why}")
    statements = document["statements"]
    if len(statements) != 1:
        raise SqlRefusedError(f"sql holds {len(statements)} statements; one SELECT is allowed")
    node: dict[str, Any] = statements[0]["node"]
    return node


def _walk(node: object, tables: Scope, ctes: Scope) -> None:
    if isinstance(node, list):
        for item in node:
            _walk(item, tables, ctes)
        return
    if not isinstance(node, dict):
        return
    kind = node.get("type")
    if "class" in node:
        _check_expression(node)
    elif isinstance(kind, str):
        if kind in QUERY_NODES:
            _walk_query(node, tables, ctes)
            return
        if kind not in MODIFIERS and not kind.endswith("_TYPE_INFO"):
            _check_reference(node, kind, tables, ctes)
    for key, value in node.items():
        if not (node.get("class") == "CONSTANT" and key == "value"):
            _walk(value, tables, ctes)


def _walk_query(node: dict[str, Any], tables: Scope, ctes: Scope) -> None:
    """A CTE is seen by those after it and by the query, by itself only in the second half of a recursive one."""
    for entry in (node.get("cte_map") or {}).get("map", []):
        body = dict(entry["value"])
        _walk(body, tables, ctes)
        ctes = ctes | {str(entry["key"]).lower()}
    for key, value in node.items():
        if key == "cte_map":
            continue
        inner = ctes
        if node["type"] == "RECURSIVE_CTE_NODE" and key == "right":
            inner = ctes | {str(node["cte_name"]).lower()}
        if node["type"] == "CTE_NODE" and key == "child":
            inner = ctes | {str(node["cte_name"]).lower()}
        _walk(value, tables, inner)


def _check_expression(node: dict[str, Any]) -> None:
    if node["class"] != "FUNCTION":
        return
    name = str(node["function_name"]).lower()
    if node.get("catalog") or node.get("schema") not in ("", "main", None):
        raise SqlRefusedError(f"function {node.get('schema')}.{name} is qualified; call functions by their plain name")
    if DENIED.match(name):
        raise SqlRefusedError(f"function {name} reaches outside the public tables and is not allowed")


def _check_reference(node: dict[str, Any], kind: str, tables: Scope, ctes: Scope) -> None:
    if kind in PLAIN_REFS:
        return
    if kind == "TABLE_FUNCTION":
        call = node.get("function") or {}
        name = str(call.get("function_name", "?")).lower()
        if name not in TABLE_FUNCTIONS:
            raise SqlRefusedError(f"table function {name} is not allowed; only {', '.join(sorted(TABLE_FUNCTIONS))} are")
        return
    if kind != "BASE_TABLE":
        raise SqlRefusedError(f"sql uses {kind.lower()}, which is not allowed; write a plain SELECT")
    name = str(node["table_name"])
    place = node.get("schema_name") or node.get("catalog_name")
    if place:
        raise SqlRefusedError(f"table {place}.{name} is qualified; name public tables plainly")
    if node.get("at_clause"):
        raise SqlRefusedError(f"table {name} is asked for at another version; leave out the AT clause")
    if name.lower() not in tables and name.lower() not in ctes:
        raise SqlRefusedError(f"table {name} is not a public table; those are {', '.join(sorted(tables))}")
