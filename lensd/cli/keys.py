"""`lensd keys add|ls|revoke|explain`: the keys that the gateway knows, and what one of them would be answered."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lensd.cli import options as o

if TYPE_CHECKING:
    from pathlib import Path

    from lensd_collectors.gateway.explain import Explanation

MAX_STDIN: Final = 1 << 16
LONGEST: Final = timedelta(days=36_525)
EXIT: Final = {"ok": 0, "refused": 3, "unknown": 5}
_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}

Id = Annotated[str, typer.Argument(metavar="ID", help="Name of the key, shown wherever the key is meant.")]
File = Annotated[str | None, typer.Option("--file", metavar="FILE", help="Keys file.", show_default="gateway.keys_file")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys of the gateway; stored hashed, shown once.")
    group.command("add", help="Make a key and print it, this once.")(add)
    group.command("ls", help="List keys: what each may use, and until when.")(ls)
    group.command("revoke", help="Disable a key; the running gateway follows within about a second.")(revoke)
    group.command(
        "explain",
        short_help="Say step by step what the gateway would answer.",
        help="Say step by step what the gateway would answer: 0 it lets the request in, 3 it refuses, 5 that cannot be told.",
    )(explain)
    app.add_typer(group, name="keys")


def add(
    ident: Id,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="Model it may use, * and ? allowed; repeatable. [default: all]")
    ] = None,
    route: Annotated[
        list[str] | None, typer.Option("--route", metavar="PATH", help="Path it may use, * and ? allowed; repeatable. [default: all]")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="30d, 12h, 2027-01-31 or 2027-01-31T09:00 (UTC).", show_default="never")
    ] = None,
    requests_per_min: Annotated[int, typer.Option("--requests-per-min", metavar="N", help="Most requests a minute; 0: any.")] = 0,
    tokens_per_min: Annotated[int, typer.Option("--tokens-per-min", metavar="N", help="Most tokens a minute; 0: any.")] = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", help="Most requests at the same time; 0: any.")] = 0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Largest max_tokens of a request; 0: any.")] = 0,
    max_prompt_tokens: Annotated[int, typer.Option("--max-prompt-tokens", metavar="N", help="Longest prompt; 0: any.")] = 0,
    given: Annotated[bool, typer.Option("--import", help="Take a key that callers have already, from stdin.")] = False,
    file: File = None,
    config: o.ConfigPath = None,
) -> int:
    import msgspec
    from lensd_collectors.gateway import keys

    with _keys_file(file, config) as place:
        models = tuple(model or ("*",))
        secret, entry = ("", keys.entry_of(ident, _read_key(), models)) if given else keys.new_key(ident, models)
        entry = msgspec.structs.replace(
            entry,
            routes=tuple(route or ()),
            expires=_expiry(expires, datetime.now(UTC)) if expires is not None else None,
            requests_per_min=requests_per_min,
            tokens_per_min=tokens_per_min,
            concurrency=concurrency,
            max_tokens=max_tokens,
            max_prompt_tokens=max_prompt_tokens,
        )
        keys.append(place, entry)
    print(secret or f"{entry.id} is the key that ends in {entry.last4}")
    if entry.expires is not None:
        print(f"lensd: it expires {_clock(entry.expires)} UTC", file=sys.stderr)
    return 0


def ls(
    file: File = None,
    json_flag: o.JsonFlag = False,
    config: o.ConfigPath = None,
) -> int:
    import msgspec
    from lensd_collectors.gateway import keys

    from lensd.cli.table import Columns, print_table

    now = datetime.now(UTC)
    with _keys_file(file, config) as place:
        entries = keys.read_keys(place)
    if json_flag:
        items = [{**msgspec.to_builtins(entry), "state": entry.state(now)} for entry in entries]
        o.print_json({"items": [{name: value for name, value in item.items() if name != "sha256"} for item in items], "next": None})
        return 0
    columns: Columns = {
        "id": "id",
        "key": lambda entry: f"...{entry.last4}",
        "models": lambda entry: ", ".join(entry.models) or "none",
        "routes": lambda entry: ", ".join(entry.routes) or "all",
        "limits": lambda entry: ", ".join(entry.limits()),
        "expires (UTC)": lambda entry: _clock(entry.expires),
        "state": lambda entry: entry.state(now),
    }
    print_table(entries, columns, empty=f"no keys in {place}")
    return 0


def revoke(
    ident: Id,
    delete: Annotated[bool, typer.Option("--delete", help="Take it out of the file: nothing can name it then.")] = False,
    file: File = None,
    config: o.ConfigPath = None,
) -> int:
    from lensd_collectors.gateway import keys

    with _keys_file(file, config) as place:
        old = (keys.delete if delete else keys.revoke)(place, ident)
    print(f"{ident} is {'deleted' if delete else 'disabled already' if old.disabled else 'disabled'}")
    return 0


def explain(
    key_id: Annotated[str, typer.Option("--key-id", metavar="ID", help="Key, as `lensd keys ls` names it.", show_default=False)] = "",
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Model that is asked for.", show_default=False)] = "",
    route: Annotated[str, typer.Option("--route", metavar="PATH", help="Path that is called.")] = "/v1/chat/completions",
    header: Annotated[bool, typer.Option("--header-stdin", help="Take the headers that a client sends, one a line, from stdin.")] = False,
    file: File = None,
    json_flag: o.JsonFlag = False,
    config: o.ConfigPath = None,
) -> int:
    from lensd_collectors.gateway.explain import Question, explain, read_presented
    from lensd_collectors.gateway.keyring import KeyRing
    from lensd_collectors.gateway.survey import Served, ask_served

    from lensd.errors import UsageError

    if not key_id and not header:
        raise UsageError("whose key? name it by --key-id, or give what the client sends on stdin with --header-stdin")
    loaded = o.load_config(config).gateway
    presented = read_presented(_read_stdin()) if header else None
    with _keys_file(file, config) as place:
        served = ask_served(loaded.upstreams) if model else Served()
        told = explain(Question(key_id, presented, model, route), KeyRing(place), loaded, served, time.time_ns())
    if not loaded.require_key:
        print("lensd: gateway.require_key = false: the gateway looks at no key; this is what it would do if it did", file=sys.stderr)
    if json_flag:
        o.print_json(told)
    else:
        _print_explanation(told)
    return EXIT[told.result]


def _print_explanation(told: "Explanation") -> None:
    from lensd.cli.table import print_table

    print_table(told.steps, {"step": "name", "state": "state", "because": "text"}, empty="")
    answer = told.answer
    if answer is None:
        print("\nanswer: " + ("the request goes on to an engine" if told.result == "ok" else "cannot be told"))
        return
    print(f"\nanswer: {answer.status} {answer.code}: {answer.message}")
    print(f"record: {answer.decision}: {answer.reason}")
    if not answer.is_sure:
        print("A step before it is not known: the answer may be another refusal.")


@contextmanager
def _keys_file(file: str | None, config: str | None) -> "Iterator[Path]":
    """The keys file's place; what goes wrong with it is a usage error."""
    from pathlib import Path

    from lensd_collectors.gateway.keys import KeysError
    from lensd_collectors.gateway.routes import GatewayError

    from lensd.errors import UsageError

    try:
        yield Path(file or o.load_config(config).gateway.keys_file)
    except (KeysError, GatewayError) as error:
        raise UsageError(str(error)) from None


def _read_key() -> str:
    """From stdin, never from the command line, which every process of the machine can read."""
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("key: ").strip()
    return _read_stdin().strip()


def _read_stdin() -> str:
    return sys.stdin.buffer.read(MAX_STDIN).decode(errors="replace")


def _expiry(text: str, now: datetime) -> datetime:
    """The instant, in whole seconds; a date is its first. Raises UsageError for what is no time, is past, or is a mistake."""
    from lensd.errors import UsageError

    try:
        if found := re.fullmatch(r"(\d{1,6})([mhdw])", text):
            at = now + int(found[1]) * _UNITS[found[2]]
        else:
            at = datetime.fromisoformat(text)
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).replace(microsecond=0)
    except OverflowError:
        at = datetime.max.replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"--expires {text!r} is no time: write 30d, 12h, 2027-01-31 or 2027-01-31T09:00 (UTC)") from None
    if at <= now:
        raise UsageError(f"--expires {text} is in the past")
    if at - now > LONGEST:
        raise UsageError(f"--expires {text} is more than 100 years away: leave it out for a key that does not expire")
    return at


def _clock(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if at is not None else ""
