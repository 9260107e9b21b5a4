"""`lensd usage`: requests, tokens, errors and latencies by key, model or session."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lensd.cli import options as o
from lensd.cli.table import Columns, print_table

if TYPE_CHECKING:
    from lensd.api.items import UsageItem

By = StrEnum("By", ["key", "model", "session"])


def register(app: typer.Typer) -> None:
    app.command("usage", help="Requests, tokens, errors and latencies by key, model or session.")(usage)


def usage(
    by: Annotated[By, typer.Option("--by", help="What to add up by.")] = By.key,
    since: Annotated[str, typer.Option("--since", metavar="WHEN", help="Started after: 2026-01-31T09:00, 09:00 or 15m.")] = "1d",
    until: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Started before.", show_default="now")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, metavar="N", help="At most this many, those that used most.")] = 50,
    json_flag: o.JsonFlag = False,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    from_us, to_us = o.instant(since), o.instant(until)
    with o.open_reader(o.load_config(config), server, store) as reader:
        items: tuple[UsageItem, ...] = reader.usage(by.value, since=from_us, until=to_us, limit=limit)
    if json_flag:
        o.print_json({"items": items, "next": None})
        return 0
    print_table(items, _columns(by.value), empty="no requests in that time")
    return 0


def _columns(by: str) -> Columns:
    from lensd.words import duration

    return {
        by: "name",
        "requests": "requests",
        "errors": "errors",
        "refused": "refused",
        "tokens in": "prompt_tokens",
        "cached": "cached_tokens",
        "out": "completion_tokens",
        "TTFT p50": lambda item: duration(item.ttft_p50_ms),
        "p95": lambda item: duration(item.ttft_p95_ms),
        "TPOT p50": lambda item: duration(item.tpot_p50_ms),
        "p95 ": lambda item: duration(item.tpot_p95_ms),
    }
