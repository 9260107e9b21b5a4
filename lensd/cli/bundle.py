"""`lensd bundle`: one request or incident as a file that can be mailed."""

from pathlib import Path
from typing import Annotated

import typer

from lensd.cli import options as o


def register(app: typer.Typer) -> None:
    app.command(
        "bundle",
        short_help="Pack a request or an incident to be looked at elsewhere.",
        help="Pack what is known around a request or an incident, without keys, prompts and callers' addresses, "
        "into one zip that `lensd triage` judges alike.",
    )(bundle)


def bundle(
    ident: Annotated[str, typer.Argument(metavar="ID", help="A request, as `lensd diagnose` takes it, or an incident's id.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Where to write it.", show_default="lensd-ID.zip")] = None,
    server: o.Server = None,
    store: o.StorePath = None,
    config: o.ConfigPath = None,
) -> int:
    import re

    from lensd.errors import UsageError

    with o.open_reader(o.load_config(config), server, store) as reader:
        packed = reader.incident_bundle(ident) if _is_incident(reader, ident) else reader.request_bundle(ident)
    place = out or Path(f"lensd-{re.sub(r'[^A-Za-z0-9._-]+', '-', ident)[:80]}.zip")
    try:
        place.write_bytes(packed)
    except OSError as error:
        raise UsageError(f"cannot write {place}: {error.strerror}") from None
    print(place)
    return 0


def _is_incident(reader: object, ident: str) -> bool:
    from lensd.errors import IncidentNotFoundError

    try:
        reader.incident(ident)  # type: ignore[attr-defined]
    except IncidentNotFoundError:
        return False
    return True
