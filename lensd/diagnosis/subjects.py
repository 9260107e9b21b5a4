"""`subjects`: a temporary table of the request rows that are judged, on the evaluating cursor alone."""

from lensd.diagnosis.scope import SUBJECTS, Scope
from lensd.store.catalog import HELD
from lensd.store.interface import Cursor


def make_subjects(cursor: Cursor, scope: Scope) -> None:
    """A request without an id of its own goes by the engine's id for it, else its trace, else its key.

    Ids repeat: several of one id, chosen by key, are told apart by their keys.
    """
    requests = "memory.main.requests"
    if scope.keys is None and scope.where is None:
        chosen = "false"
    else:
        parts = [f"({scope.where})"] if scope.where is not None else []
        if scope.keys is not None:
            parts.append(f"request_key in ({', '.join(str(int(key)) for key in scope.keys) or 'null'})")
        chosen = " and ".join(parts)
    if scope.where is None and scope.keys is not None and scope.from_us is not None:
        requests = _last_of(chosen, scope.from_us, scope.to_us)
    name = "coalesce(request_id, engine_request_id, trace_id, request_key::varchar)"
    order = ""
    if scope.keys is not None:
        order = " order by started_at, request_key"
        name = f"if(count(*) over (partition by {name}) > 1, {name} || '#' || request_key, {name})"
    cursor.execute(
        f"create or replace temp table {SUBJECTS} as select * replace ({name} as request_id) from {requests} where {chosen}{order}"
    )


def _last_of(chosen: str, from_us: int, to_us: int) -> str:
    """The chosen requests in their last revision. Not by the view: it looks for later revisions of every request there is first."""
    return (
        f"(select * exclude (appended) from {HELD}.every_requests where {chosen}"
        f" and started_at between make_timestamp({int(from_us)}) and make_timestamp({int(to_us)})"
        " qualify row_number() over (partition by request_key order by revision desc, appended desc) = 1)"
    )
