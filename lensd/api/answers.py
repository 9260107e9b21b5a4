"""How the API answers: JSON documents, lists also as a stream of Arrow where the caller's Accept header asks for it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from lensd.api.items import text_of
from lensd.store.schema import arrow_schema

ARROW: Final = "application/vnd.apache.arrow.stream"
NEXT: Final = b"next"
"""Key of the next page's cursor in the metadata of a stream's schema."""


class Listed(NamedTuple):
    """Rows of a list as dicts (instants as naive UTC datetimes) or structs, and the cursor of the next page.

    `table`: the public table that they are rows of, where they are whole ones.
    """

    items: Sequence[Mapping[str, Any] | msgspec.Struct]
    next: str | None = None
    table: str | None = None


def listed(request: Request, found: Listed) -> Response:
    """`{"items", "next"}`, or the same rows as Arrow."""
    if not wants_arrow(request):
        return json({"items": [as_json(item) for item in found.items], "next": found.next})
    plain = [msgspec.to_builtins(item) if isinstance(item, msgspec.Struct) else dict(item) for item in found.items]
    schema = arrow_schema(found.table) if found.table is not None else None
    return arrow(pa.Table.from_pylist(plain, schema=schema), found.next)


def wants_arrow(request: Request) -> bool:
    return ARROW in request.headers.get("accept", "")


def arrow(table: pa.Table, next_page: str | None = None) -> Response:
    """The rows as an Arrow stream; the next page's cursor is in its schema's metadata."""
    if next_page is not None:
        table = table.replace_schema_metadata({NEXT: next_page.encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Response(sink.getvalue().to_pybytes(), media_type=ARROW)


def json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error(status: int, code: str, message: str) -> Response:
    return json({"error": {"code": code, "message": message}}, status)


def as_json(item: Mapping[str, Any] | msgspec.Struct) -> Any:
    """Instants with their zone, so that they read as RFC 3339."""
    if isinstance(item, msgspec.Struct):
        return item
    return {name: text_of(value) if isinstance(value, datetime) else value for name, value in item.items()}
