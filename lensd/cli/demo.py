"""`lensd demo`: the whole, against a small real engine, with faults on purpose."""

from typing import Annotated

import typer

EngineUrl = Annotated[
    str | None,
    typer.Option("--engine-url", metavar="URL", envvar="ENGINE_URL", help="A running engine; it is neither flooded nor killed."),
]
EngineKeyFile = Annotated[
    str, typer.Option("--engine-key-file", metavar="FILE", envvar="ENGINE_KEY_FILE", help="File with that engine's key.")
]


def register(app: typer.Typer) -> None:
    app.command(
        "demo",
        short_help="Run it all against a small real engine, and break it.",
        help="Run everything against a small real engine, break it in seven ways, and name each cause.",
    )(demo)


def demo(
    once: Annotated[bool, typer.Option("--once", help="End after the tour; 0 only if every fault was named right.")] = False,
    engine_url: EngineUrl = None,
    engine_key_file: EngineKeyFile = "",
    engine_dir: Annotated[str, typer.Option("--engine-dir", metavar="FOLDER", help="Where the demo's own engine is built.")] = ".engine",
    folder: Annotated[str, typer.Option("--folder", metavar="FOLDER", help="The demo's store, keys, logs.")] = ".demo",
) -> int:
    from pathlib import Path

    from lensd.demo.run import run

    return run(Path(folder), Path(engine_dir), engine_url, engine_key_file, once=once)
