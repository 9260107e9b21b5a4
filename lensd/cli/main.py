"""The `lensd` command: finds the module of the verb, turns expected failures into one line and an exit status."""

import importlib
import os
import sys
from typing import Final

COMMANDS: Final = {
    # verb -> (module, extra that holds what it needs)
    "diagnose": ("diagnose", "cli"),
    "triage": ("triage", "cli"),
    "requests": ("requests", "cli"),
    "incidents": ("incidents", "cli"),
    "runbooks": ("runbooks", "cli"),
    "keys": ("keys", "cli"),
    "config": ("config", "cli"),
    "up": ("up", "all"),
    "serve": ("serve", "serve"),
    "gateway": ("gateway", "gateway"),
    "agent": ("agent", "agent"),
    "dashboard": ("dashboard", "dashboard"),
    "demo": ("demo", "all"),
}


def main() -> None:
    """Run `sys.argv`. Exit status as in `lensd --help`."""
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe: it has what it wants. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Exit status of one call; usage and expected failures are one line on stderr."""
    verb = next((a for a in arguments if not a.startswith("-")), None)
    extra = COMMANDS[verb][1] if verb in COMMANDS else "cli"
    try:
        app = _app(verb)
    except ModuleNotFoundError as error:
        return _missing(error, extra)
    return _run(app, arguments, extra)


def _app(verb: str | None) -> object:
    """The typer app with the one verb that was asked for, or with all of them for the help."""
    import typer

    app = typer.Typer(
        name="lensd",
        no_args_is_help=True,
        add_completion=verb not in COMMANDS,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Names the cause when a request to a self-hosted LLM server hangs, dies or comes back wrong.",
        epilog="Exit status: 0 nothing wrong, 3 a finding, 4 no such request, 5 too little to judge from, 2 usage, 1 a bug.",
        context_settings={"help_option_names": ["-h", "--help"]},
        result_callback=_end,
    )

    @app.callback()
    def _version(
        version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True, callback=_show_version),
    ) -> None:
        pass

    for name in [verb] if verb in COMMANDS else list(COMMANDS):
        assert name is not None
        importlib.import_module(f"lensd.cli.{COMMANDS[name][0]}").register(app)
    return app


def _end(status: object, **_: object) -> None:
    """A verb returns its exit status."""
    import typer

    raise typer.Exit(status if isinstance(status, int) else 0)


def _show_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        import typer

        print(importlib.metadata.version("lensd"))
        raise typer.Exit


def _run(app: object, arguments: list[str], extra: str) -> int:
    import typer

    from lensd.errors import LensdError

    try:
        typer.main.get_command(app)(args=arguments, prog_name="lensd")  # type: ignore[arg-type]
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except LensdError as error:
        print(f"lensd: {error}", file=sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as error:
        return _missing(error, extra)
    return 0


def _missing(error: ModuleNotFoundError, extra: str) -> int:
    """One line on the extra that brings the module; a module of ours that is missing is a bug."""
    if error.name is not None and error.name.split(".")[0] in ("lensd", "lensd_collectors", "lensd_dashboards"):
        raise error
    print(f"lensd: this needs the {extra} extra ({error.name} is not installed): pip install 'lensd[{extra}]'", file=sys.stderr)
    return 2
