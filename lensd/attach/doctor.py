"""Whether the parts of lensd reach each other, line by line: ok, warn or fail, and what to do."""

import http.client
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from lensd_collectors.host.engine import AgentError, Fetch, resolve, without_secrets
from lensd_collectors.host.look import look

from lensd.api.client import Client
from lensd.api.items import Coverage, NotRead, ServerStatus
from lensd.attach.check import Check, Health, fail, ok, warn
from lensd.attach.engine_checks import engine_checks
from lensd.attach.see import House, links_of
from lensd.config import Config, read_token
from lensd.errors import LensdError, NoAnswerError, UnauthorizedError

PROBE_S = 2.0


def examine(config: Config, place: Path | None, fetch: Fetch) -> Iterator[Check]:
    """Every check in order, each yielded as it is known. Engines are sent GETs only."""
    yield ok("configuration", str(place) if place else "no lensd.toml: defaults and environment")
    yield _token(config)
    status, coverage = None, None
    try:
        client = Client(config.api_url, read_token(config.token_file), timeout_s=PROBE_S)
        status = client.status()
        coverage = client.coverage()
    except (LensdError, OSError) as error:
        yield _no_daemon(config, error)
    if status is not None:
        yield _daemon(status)
        yield from _left_out(status)
        yield _door(config)
    yield from _engines(config, coverage, fetch)
    for source in coverage.not_read if coverage is not None else ():
        yield _not_read(source)


def _token(config: Config) -> Check:
    path = config.token_file
    try:
        token = read_token(path)
        mode = stat.S_IMODE(path.stat().st_mode) if token is not None else 0
    except (LensdError, OSError) as error:
        return fail("token", str(error), do="let this user read it, or set serve.token_file")
    if token is None:
        return warn("token", f"no {path} yet", do="lensd serve makes it at its first start")
    if mode & 0o077:
        return warn("token", f"{path} can be read by others (mode {mode:04o})", do=f"chmod 600 {path}")
    return ok("token", str(path))


def _no_daemon(config: Config, error: Exception) -> Check:
    if isinstance(error, UnauthorizedError):
        do = f"{config.token_file} is not the token of the daemon that runs: name its file by serve.token_file"
        return fail("daemon", f"{config.api_url} refuses the token", do=do)
    if isinstance(error, NoAnswerError):
        kept = "" if (config.store_folder / "store.json").is_file() else f"; {config.store_folder} holds no store yet"
        return fail("daemon", f"nobody answers at {config.api_url}{kept}", do="start it: lensd serve, or lensd up")
    return fail("daemon", str(error), do="is it of this version?")


def _daemon(status: ServerStatus) -> Check:
    said = f"lensd {status.version or '?'}, pid {status.pid}, store {status.store}"
    if status.lag_s is not None and status.lag_s > 5:
        do = "it drains slower than it is told: look at its log, or tell it less"
        return warn("daemon", f"{said}, {status.lag_s:.0f} s behind", do=do)
    if bad := status.counts.get("failed_appends"):
        return warn("daemon", f"{said}; {bad} writes failed", do="is its disk full? its log says why")
    return ok("daemon", said)


def _left_out(status: ServerStatus) -> Iterator[Check]:
    """Damaged files that the daemon does not serve."""
    for file, reason in sorted(status.left_out.items()):
        yield warn("store", f"{file} is damaged and left out: {reason}", do="stop the daemon; lensd store check says what can be saved")


def _door(config: Config) -> Check:
    """The OTLP door by its own sign of life."""
    host, _, port = config.serve.otlp.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PROBE_S)
    try:
        connection.request("GET", "/healthz")
        if connection.getresponse().status == 200:
            return ok("OTLP door", config.serve.otlp)
        said = f"what answers at {config.serve.otlp} is no door of lensd's"
    except (OSError, http.client.HTTPException):
        said = f"nobody answers at {config.serve.otlp}"
    finally:
        connection.close()
    return fail("OTLP door", said, do="is serve.otlp that of the daemon that runs?")


def _engines(config: Config, coverage: Coverage | None, fetch: Fetch) -> Iterator[Check]:
    if not config.agent.engines:
        yield warn("engines", "none is watched", do="lensd attach URL")
    house = House(otlp=config.serve.otlp, token_file=config.token_file.absolute())
    for watched in config.agent.engines:
        try:
            engine = resolve(watched)
        except AgentError as error:
            name = watched.name or without_secrets(watched.url)
            yield Check(about="link", engine=name, health=Health.FAIL, said=str(error), do="mend [[agent.engines]]")
            continue
        looked = look(engine, fetch)
        links = links_of(engine.name, coverage.items) if coverage is not None else None
        yield from engine_checks(looked, links, house, time.time(), config.agent.scrape_interval_s)


def _not_read(source: NotRead) -> Check:
    where = f" on {source.host}" if source.host else ""
    said = f"the agent{where} cannot read {source.source or 'a source'}: {source.reason or source.state or 'not known why'}"
    return Check(
        about="source", engine=source.engine, health=Health.WARN, said=said, do="give it the right to, or do without what it tells"
    )
