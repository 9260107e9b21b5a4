"""What is asked of the daemon: paths of its API as the dashboard and the command line ask for them, and SQL as rules do."""

import random
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote

from query.store import Made

HOUR: Final = 3_600_000_000


class Ask(NamedTuple):
    """A path under the API's prefix with its query, and a body where it is posted; made anew for each question."""

    name: str
    path: Callable[[random.Random], str]
    body: Callable[[random.Random], dict[str, object]] | None = None


def asks(store: Made) -> list[Ask]:
    end, day = store.end, f"since={store.end - 24 * HOUR}&until={store.end}"
    hour = f"since={store.end - HOUR}&until={store.end}"

    def named(kind: str) -> Ask:
        return Ask(f"request by {kind}", lambda chance: f"requests?id={quote(_name(store, chance, kind))}")

    def sql(name: str, query: Callable[[random.Random], str]) -> Ask:
        return Ask(f"sql: {name}", lambda _: "sql", lambda chance: {"query": query(chance)})

    def at(chance: random.Random) -> int:
        return store.at(chance.randrange(store.requests))

    return [
        *map(named, store.names(0)),
        Ask("request, unknown id", lambda chance: f"requests?id=nobody-{chance.random()}"),
        Ask("requests, newest 100", lambda _: "requests"),
        Ask("requests, status 500", lambda _: "requests?status=500"),
        Ask("requests, key and model", lambda chance: f"requests?key=team-{chance.randrange(12)}&model=llama-8b"),
        Ask("requests, a label", lambda _: "requests?label=queue-saturation"),
        Ask("requests, a page further back", lambda chance: f"requests?cursor={at(chance)}-0"),
        Ask("a session", lambda chance: f"sessions/session-{chance.randrange(store.requests // 50)}"),
        Ask("TTFT percentiles, a day", lambda _: f"series?name=requests.ttft_ms&{day}"),
        Ask("TTFT percentiles, an hour", lambda _: f"series?name=requests.ttft_ms&{hour}"),
        Ask("stages, a day", lambda _: f"stages?{day}"),
        Ask("stages, an hour", lambda _: f"stages?{hour}"),
        Ask("refusals, a day", lambda _: f"refusals?{day}"),
        Ask("series of engines, a day", lambda _: f"series?name=engine_samples.waiting&{day}"),
        Ask("series of one engine, an hour", lambda _: f"series?name=engine_samples.kv_usage&engine=e0&{hour}"),
        Ask("series of cards, a day", lambda _: f"series?name=gpu_samples.used_bytes&{day}"),
        Ask("cards", lambda _: "gpus"),
        Ask("memory, an hour", lambda _: f"memory?{hour}"),
        sql("spans of a trace, by its time", lambda chance: _spans(store, chance, timed=True)),
        sql("spans of a trace", lambda chance: _spans(store, chance, timed=False)),
        sql("requests by key", lambda chance: f"select * from requests where request_key in ({chance.getrandbits(64)})"),
        sql("requests of ten minutes", lambda chance: _ten_minutes(at(chance))),
        sql("the last minute", lambda _: f"select count(*) from spans where started_at > make_timestamp({end - 60_000_000})"),
    ]


INFORMATION: Final = ("usage by key, a day",)


def usage(store: Made) -> Ask:
    return Ask(INFORMATION[0], lambda _: f"usage?by=key&since={store.end - 24 * HOUR}&until={store.end}")


def _name(store: Made, chance: random.Random, kind: str) -> str:
    return store.names(chance.randrange(store.requests))[kind]


def _spans(store: Made, chance: random.Random, *, timed: bool) -> str:
    number = chance.randrange(store.requests)
    low, high = store.at(number) - HOUR, store.at(number) + HOUR
    when = f" and started_at between make_timestamp({low}) and make_timestamp({high})" if timed else ""
    return f"select * from spans where trace_id = '{store.names(number)['trace id']}'{when} order by started_at"


def _ten_minutes(at: int) -> str:
    return (
        "select engine, count(*) as n, quantile_cont(ttft_ms, 0.95) as p95 from requests"
        f" where started_at between make_timestamp({at}) and make_timestamp({at + 600_000_000}) group by all"
    )
