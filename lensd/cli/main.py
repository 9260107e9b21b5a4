"""The `lensd` command: finds the module of the verb, turns expected failures into one line and an exit status."""

import importlib
import itertools
import os
import sys
from typing import Final, cast

COMMANDS: Final = {
    # verb -> (module, extra that holds what it needs)
    "diagnose": ("diagnose", "cli"),
    "triage": ("triage", "cli"),
    "bundle": ("bundle", "cli"),
    "requests": ("requests", "cli"),
    "incidents": ("incidents", "cli"),
    "usage": ("usage", "cli"),
    "sql": ("sql", "cli"),
    "runbooks": ("runbooks", "cli"),
    "plan": ("plan", "cli"),
    "keys": ("keys", "cli"),
    "store": ("store", "cli"),
    "config": ("config", "cli"),
    "attach": ("attach", "agent"),
    "doctor": ("doctor", "agent"),
    "up": ("up", "all"),
    "serve": ("serve", "serve"),
    "gateway": ("gateway", "gateway"),
    "agent": ("agent", "agent"),
    "dashboard": ("dashboard", "dashboard"),
    "demo": ("demo", "all"),
}
INTERRUPTED: Final = 130
COMPLETING: Final = "_LENSD_COMPLETE"  # set by the shell's completion script


def main() -> None:
    """Run `sys.argv`. Exit status as in `lensd --help`."""
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe: it has what it wants. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except KeyboardInterrupt:
        status = INTERRUPTED
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Exit status of one call; usage and expected failures are one line on stderr, with --json also a document on stdout."""
    verb = next((a for a in arguments if not a.startswith("-")), None)
    extra = COMMANDS[verb][1] if verb in COMMANDS else "cli"
    try:
        return _ended(verb, arguments)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in ("lensd", "lensd_collectors", "lensd_dashboards"):
            raise  # a module of ours that is missing is a bug
        told = f"this needs the {extra} extra ({error.name} is not installed): pip install 'lensd[{extra}]'"
        return _fail(arguments, "extra-missing", told, 2)


def _ended(verb: str | None, arguments: list[str]) -> int:
    """Exit status of the call; expected failures are told."""
    from lensd.errors import LensdError

    try:
        return _called(verb, arguments)
    except LensdError as error:
        return _fail(arguments, error.code, str(error), error.exit_status)
    except (BrokenPipeError, ModuleNotFoundError):
        raise
    except Exception as error:
        if _wants_json(arguments):
            _print_error("bug", f"{type(error).__name__}: {error}")
        raise


def _called(verb: str | None, arguments: list[str]) -> int:
    if verb == "diagnose" == arguments[0] and COMPLETING not in os.environ:
        from lensd.cli import plain

        if (asked := plain.diagnose(arguments)) is not None:
            from lensd.cli.verdict import ask

            return ask(asked)
    return _run(_app(verb), arguments)


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
        epilog="Exit status: 0 nothing wrong, 3 a finding, 4 no such request, 5 too little to judge from, 2 usage, 130 Ctrl-C, 1 a bug.",
        context_settings={"help_option_names": ["-h", "--help"]},
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


def _show_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        import typer

        print(importlib.metadata.version("lensd"))
        raise typer.Exit


def _run(app: object, arguments: list[str]) -> int:
    """A verb returns its exit status. Typer's own way of ending hides a closed pipe and says a usage error in four lines."""
    import typer

    usage_error = cast(type[Exception], typer.BadParameter.__mro__[1])  # typer does not name it
    command = typer.main.get_command(app)  # type: ignore[arg-type]
    if COMPLETING in os.environ:
        command.main(args=arguments, prog_name="lensd")
    try:
        with command.make_context("lensd", list(arguments)) as context:
            status = command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except usage_error as error:
        return _misused(arguments, error)
    return status if isinstance(status, int) else 0


def _misused(arguments: list[str], error: BaseException) -> int:
    """The usage error in one line, with the help to look at; a call that lacks its verb gets the help itself."""
    message, context = error.format_message(), error.ctx  # type: ignore[attr-defined]
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)
        return 2
    message = message.replace("Value error, ", "").replace(": Input should be", ": it should be")
    message = message.partition(", unable to parse")[0].rstrip(".")
    shown = f"{message[:1].lower()}{message[1:]}"
    where = f"; see `{context.command_path} --help`" if context is not None else ""
    return _fail(arguments, "usage", f"{shown}{where}", 2)


def _fail(arguments: list[str], code: str, message: str, exit_status: int) -> int:
    """One line, and nothing in it that a terminal obeys: ids come from outside."""
    message = "".join(ch if ch.isprintable() else "?" for ch in " ".join(message.splitlines()))
    print(f"lensd: {message}", file=sys.stderr)
    if _wants_json(arguments):
        _print_error(code, message)
    return exit_status


def _wants_json(arguments: list[str]) -> bool:
    """Told by the words, since a call that does not parse has no options."""
    given = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in given or "--format=json" in given or ("--format", "json") in itertools.pairwise(given)


def _print_error(code: str, message: str) -> None:
    """stdout stays one document that parses, as for an answer."""
    import json

    print(json.dumps({"schema_version": 1, "error": {"code": code, "message": message}}, indent=2, ensure_ascii=False))
