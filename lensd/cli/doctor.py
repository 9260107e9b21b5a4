"""`lensd doctor`: whether the parts reach each other, and what to do where they don't."""

import typer

from lensd.cli import options as o

TIMEOUT_S = 5.0
FOUND = 3


def register(app: typer.Typer) -> None:
    app.command(
        "doctor",
        short_help="Check configuration, daemon, engines and what they send.",
        help="Check configuration, token, daemon and each watched engine: a line each, ok, warn or fail, with what to do. Exits with 3 "
        "where one fails.",
    )(doctor)


def doctor(json_flag: o.JsonFlag = False, config: o.ConfigPath = None) -> int:
    from lensd_collectors.host.engine import fetch_with

    from lensd.attach.check import Health, as_text, fail, report
    from lensd.attach.doctor import examine
    from lensd.config import find
    from lensd.errors import ConfigError

    try:
        place, loaded = find(config), o.load_config(config)
        checks = list(examine(loaded, place, fetch_with(TIMEOUT_S)))
    except ConfigError as error:
        checks = [fail("configuration", str(error), do="mend it; lensd config check looks again")]
    told = report(checks)
    if json_flag:
        o.print_json(told)
    else:
        print(as_text(told), end="")
    return FOUND if told.worst is Health.FAIL else 0
