"""The API's lists that are read from the store alone: each of a cursor and the query of the request."""

from collections.abc import Callable
from typing import Final

from starlette.datastructures import QueryParams

from lensd.api.answers import Listed
from lensd.api.query import DAY_US, instant, span, whole_number
from lensd.errors import UsageError
from lensd.store import queries, usage
from lensd.store.interface import Cursor
from lensd.store.names import find_requests

Reads = Callable[[Cursor, QueryParams, int], Listed]
"""A list of a cursor, the query and the present instant (microseconds since the epoch). Raises UsageError for a value it does not take."""


def requests(cursor: Cursor, query: QueryParams, now: int) -> Listed:
    """Requests newest first, or all those of one name."""
    if ident := query.get("id"):
        return Listed(find_requests(cursor, ident), table="requests")
    limit, after = whole_number(query, "limit", least=1), query.get("cursor") or None
    try:
        page = queries.list_requests(cursor, _filter(query), limit or queries.DEFAULT_PAGE, after)
    except ValueError as error:
        raise UsageError(f"cursor: {error}") from None
    return Listed(page.items, page.next, "requests")


def series(cursor: Cursor, query: QueryParams, now: int) -> Listed:
    """One column over time."""
    name = query.get("name", "")
    known = queries.SERIES | queries.REQUEST_SERIES.keys()
    if name not in known:
        raise UsageError(f"no series {name!r}; known: {', '.join(sorted(known))}")
    since, until = span(query, now)
    if name in queries.REQUEST_SERIES:
        return Listed(queries.request_series(cursor, name, _filter(query)._replace(since=since, until=until)))
    of = queries.SeriesOf(query.get("engine") or None, query.get("host") or None, query.get("gpu") or None)
    return Listed(queries.series(cursor, name, of, since, until))


def stages(cursor: Cursor, query: QueryParams, now: int) -> Listed:
    """How long requests were in each stage, the last hour where no time is given."""
    since, until = span(query, now)
    return Listed(usage.stages(cursor, _filter(query)._replace(since=since, until=until)))


def refusals(cursor: Cursor, query: QueryParams, now: int) -> Listed:
    """What was refused, the last day where no time is given."""
    since, until = span(query, now, DAY_US)
    wanted = _filter(query)._replace(since=since, until=until)
    return Listed(usage.refusals(cursor, wanted, whole_number(query, "limit", least=1) or queries.DEFAULT_PAGE))


def used(cursor: Cursor, query: QueryParams, now: int) -> Listed:
    """What was used by key, model or session, the last day where no time is given."""
    by = query.get("by") or "key"
    if by not in usage.USED_BY:
        raise UsageError(f"by = {by!r} is none of {', '.join(usage.USED_BY)}")
    since, until = span(query, now, DAY_US)
    return Listed(usage.usage(cursor, by, since, until, whole_number(query, "limit", least=1) or queries.MAX_PAGE))


def deliveries(cursor: Cursor, query: QueryParams, now: int) -> Listed:
    """Attempts to tell a destination, newest first."""
    return Listed(queries.rows(cursor, f"select * from deliveries order by attempted_at desc limit {queries.MAX_PAGE}"), table="deliveries")


def _filter(query: QueryParams) -> queries.RequestFilter:
    return queries.RequestFilter(
        key=query.get("key") or None,
        model=query.get("model") or None,
        engine=query.get("engine") or None,
        status=whole_number(query, "status"),
        outcome=query.get("outcome") or None,
        label=query.get("label") or None,
        session=query.get("session") or None,
        since=instant(query, "since"),
        until=instant(query, "until"),
    )


OF_THE_STORE: Final[dict[str, Reads]] = {
    "requests": requests,
    "series": series,
    "stages": stages,
    "refusals": refusals,
    "usage": used,
    "deliveries": deliveries,
}
"""Path under the API's prefix to what reads its list."""
