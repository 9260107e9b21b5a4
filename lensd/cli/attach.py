"""`lensd attach`: what is visible of a running engine, and the line that adds more."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lensd.cli import options as o

if TYPE_CHECKING:
    from lensd.attach.toml import Written

TIMEOUT_S = 5.0


def register(app: typer.Typer) -> None:
    app.command(
        "attach",
        short_help="Say what is visible of a running engine, and what adds more.",
        help="Look at a running engine without changing it: which stages, labels and ids are visible now, and the one line that adds "
        "more. Writes lensd.toml, never over one that says otherwise.",
    )(attach)


def attach(
    url: Annotated[str, typer.Argument(metavar="URL", help="The engine: http://127.0.0.1:8000.")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What to call it.", show_default="host:port of the URL")] = "",
    api_key_file: Annotated[str, typer.Option("--api-key-file", metavar="FILE", help="The key it wants, if it wants one.")] = "",
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The file to write.")] = "lensd.toml",
    json_flag: o.JsonFlag = False,
    config: o.ConfigPath = None,
) -> int:
    from lensd_collectors.host.config import WatchedEngine
    from lensd_collectors.host.engine import AgentError, fetch_with, resolve
    from lensd_collectors.host.look import look

    from lensd.attach import heard, show, toml
    from lensd.attach.see import House, links_of, see, silence
    from lensd.errors import ServerError, UsageError

    loaded = o.load_config(config)
    try:
        given = WatchedEngine(url=url, name=name, api_key_file=api_key_file)
        engine = resolve(heard.as_configured(loaded, resolve(given), given))
    except AgentError as error:
        raise UsageError(str(error)) from None
    looked = look(engine, fetch_with(TIMEOUT_S))
    if not looked.answers:
        raise ServerError(f"no engine at {looked.url}: {silence(looked)}")
    if not looked.is_engine:
        raise ServerError(f"what answers at {looked.url} is no engine that lensd knows: {silence(looked)}")
    coverage = heard.coverage(loaded)
    seen = see(
        looked,
        House(otlp=loaded.serve.otlp, token_file=loaded.token_file.absolute()),
        links_of(engine.name, coverage.items) if coverage is not None else None,
        heard.needs(loaded),
    )
    made = toml.entry(looked, api_key_file)
    written = toml.write(Path(out), made)
    if json_flag:
        o.print_json(_document(seen, out, written, toml.text(made)))
    else:
        print(show.as_text(seen), end="")
    return _told(out, written, toml.text(made), quiet=json_flag)


def _document(seen: object, out: str, written: "Written", text: str) -> dict[str, object]:
    import msgspec

    document: dict[str, object] = msgspec.to_builtins(seen)
    return document | {"config": {"path": out, "state": str(written), "text": text}}


def _told(out: str, written: "Written", text: str, quiet: bool) -> int:
    """What became of the file; 2 where one with other content is in the way."""
    if written == "differs":
        if not quiet:
            print(f"\n{out} would be\n\n{text}", end="")
        told = f"{out} is there already and says otherwise: it stays as it is; add the engine to it, or name another by --out"
        print(f"lensd: {told}", file=sys.stderr)
        return 2
    if not quiet:
        print(f"\n{'wrote' if written == 'written' else 'nothing to change in'} {out}; next: lensd up")
    return 0
