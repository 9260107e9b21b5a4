"""`lensd requests ls`: what came through, newest first."""

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lensd.cli import options as o
from lensd.cli.table import Columns, clock, print_table

if TYPE_CHECKING:
    from lensd.api.items import RequestItem, SessionCall
    from lensd.config import Config

Outcome = StrEnum("Outcome", ["ok", "refused", "failed", "timed_out", "caller_gone", "cut", "open", "lost"])


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Requests as they were seen.")
    group.command("ls", help="List requests, newest first.")(ls)
    app.add_typer(group, name="requests")


def ls(
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Of this key id.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Of this model.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", metavar="NAME", help="On this engine.")] = None,
    status: Annotated[int | None, typer.Option("--status", metavar="CODE", help="Answered with this HTTP status.")] = None,
    outcome: Annotated[Outcome | None, typer.Option("--outcome", help="Ended like this.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Started after: 2026-01-31T09:00, 09:00 or 15m.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Started before.")] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="The calls of this session in order, with the prompt tokens of each turn.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, metavar="N", help="At most this many, up to 500.")] = 50,
    json_flag: o.JsonFlag = False,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    from_us, to_us = o.instant(since), o.instant(until)
    filtered = any(value is not None for value in (key, model, engine, status, outcome, since, until))
    if session is not None:
        if filtered:
            raise typer.BadParameter("it lists a whole session, so it goes with no other filter", param_hint="--session")
        return _session(session, limit, json_flag, o.load_config(config), server, store)
    with o.open_reader(o.load_config(config), server, store) as reader:
        page = reader.requests(
            key=key,
            model=model,
            engine=engine,
            status=status,
            outcome=outcome.value if outcome is not None else None,
            since=from_us,
            until=to_us,
            limit=limit,
        )
    if json_flag:
        o.print_json(page)
        return 0
    print_table(page.items, columns(), empty="no requests that these filters let through" if filtered else "no requests yet")
    if page.next is not None:
        print(f"lensd: these are the newest {len(page.items)}; --limit shows more, --until earlier ones", file=sys.stderr)
    return 0


def _session(ident: str, limit: int, as_json: bool, config: "Config", server: str | None, store: str | None) -> int:
    with o.open_reader(config, server, store) as reader:
        calls: tuple[SessionCall, ...] = reader.session(ident)
    shown = calls[-limit:]
    if as_json:
        o.print_json({"items": shown, "next": None})
        return 0

    def grown(call: "SessionCall") -> str | None:
        return None if call.grew_by is None else f"{call.grew_by:+d}"

    last = columns()
    verdict = last.pop("verdict")
    turns: Columns = {"turn": "turn", **last, "prompt tokens": "prompt_tokens", "grown by": grown, "verdict": verdict}
    print_table(shown, turns, empty="no call of that session")
    if len(shown) < len(calls):
        print(f"lensd: these are the last {len(shown)} of {len(calls)} calls; --limit shows more", file=sys.stderr)
    return 0


def columns() -> dict[str, str | Callable[[Any], Any]]:
    """How requests are listed."""
    from lensd.words import duration

    def name(item: "RequestItem") -> str | None:
        return item.request_id or item.engine_request_id or item.trace_id

    return {
        "started (UTC)": lambda item: clock(item.started_at),
        "request": name,
        "model": "model",
        "key": "key_id",
        "outcome": "outcome",
        "status": "status",
        "total": lambda item: duration(item.total_ms),
        "first token": lambda item: duration(item.ttft_ms),
        "verdict": "label",
    }
