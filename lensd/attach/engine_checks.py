"""What `lensd doctor` says of one engine: its link, samples, log, spans, plugin, middleware, front end and metric names."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from lensd_collectors.dialects import load as load_dialects
from lensd_collectors.host.look import PLUGIN_GROUP, Looked
from lensd_collectors.host.names import Lack, Why, lacking

from lensd import rungs
from lensd.api.items import Link
from lensd.attach.check import Check, Health, fail, ok, warn
from lensd.attach.see import (
    MIDDLEWARE,
    House,
    elsewhere,
    is_rust,
    left_out,
    line_for,
    listing,
    older,
    plugin_loads,
    sends_elsewhere,
    silence,
    span_faults,
)

LATE_S: Final = 10.0  # a sample older than this, and than three scrapes, is late
FEATURES: Final = ("--speculative-config",)
"""Flags without which there is nothing to show: what only they show is no loss."""

Found = Iterator[Check]


def engine_checks(looked: Looked, links: Sequence[Link] | None, house: House, now_s: float, scrape_every_s: float) -> Found:
    """`links`: what the daemon has heard of this engine, None without one. `now_s` in seconds since the epoch."""
    last = {link.kind: now_s - datetime.fromisoformat(link.last_at).timestamp() for link in links or ()}
    for check in _all(looked, last if links is not None else None, house, max(LATE_S, 3 * scrape_every_s)):
        yield Check(about=check.about, health=check.health, said=check.said, do=check.do, names=check.names, engine=looked.engine)


Ages = Mapping[str, float]
"""Kind of source to the seconds since it was heard of last."""


def _all(looked: Looked, last: Ages | None, house: House, late_s: float) -> Found:
    if not looked.answers:
        do = "start it, or mend its url in [[agent.engines]]"
        yield fail("link", f"{looked.url}: {silence(looked)}", do=do)
    elif not looked.is_engine:
        do = "mend its url, or name its key by api_key_file, in [[agent.engines]]"
        yield fail("link", f"what answers at {looked.url} is no engine that lensd knows: {silence(looked)}", do=do)
    else:
        models = ", ".join(looked.models) or "no model told"
        yield ok("link", f"{looked.kind} {looked.version or '(version not known)'}, {models}, at {looked.url}")
    if last is not None:
        yield _samples(last, late_s)
    yield _log(looked, last)
    if looked.kind == "vllm":
        if is_rust(looked):
            do = "start vLLM without VLLM_USE_RUST_FRONTEND, or put the gateway before it"
            said = "the Rust one, which is not supported: middleware, plugin and spans do not come out of it"
            yield warn("front end", said, do=do)
        else:
            yield from _spans(looked, last, house)
            yield _plugin(looked, last, house)
            yield _middleware(looked, last, house)
    if looked.names:
        yield from _names(looked)


def _samples(last: Ages, late_s: float) -> Check:
    if "scrape" not in last:
        return fail("samples", "none has come in a day", do="start lensd agent on the engine's host")
    if last["scrape"] > late_s:
        do = "is lensd agent running, and does the engine answer it?"
        return fail("samples", f"the last one is {ago(last['scrape'])} old", do=do)
    return ok("samples", f"the last one is {ago(last['scrape'])} old")


def _log(looked: Looked, last: Ages | None) -> Check:
    if looked.log.spec:
        heard = f", last line of note {ago(last['log'])} ago" if last and "log" in last else ""
        if looked.log.kind == "file" and looked.log.spec != "-" and not Path(looked.log.spec).is_file():
            do = "mend log of the engine in [[agent.engines]]"
            return fail("log", f"there is no file {looked.log.spec}", do=do)
        return ok("log", f"{'standard input of lensd agent' if looked.log.spec == '-' else looked.log.spec}{heard}")
    return warn("log", looked.log.why or "not known where it goes", do="name it by log in [[agent.engines]]")


def _spans(looked: Looked, last: Ages | None, house: House) -> Found:
    flags, environment = _known(looked)
    traces = "otlp-traces-endpoint" in flags
    if traces and "disable-log-stats" in flags:
        said = "--disable-log-stats beside --otlp-traces-endpoint: vLLM ends at the first request that finishes"
        yield fail("spans", said, do="take --disable-log-stats out")
    if last is not None and "llm_request" in last:
        yield ok("spans", f"the last one is of {ago(last['llm_request'])} ago")
    elif traces and elsewhere(flags, house):
        yield warn("spans", span_faults(flags, environment, house)[0])
    elif traces and looked.process and looked.process.environment is not None and (faults := span_faults(flags, environment, house)):
        for fault in faults:
            said, _, do = fault.partition(": ")
            yield fail("spans", said, do=do or line_for("2", looked, house))
    elif traces and looked.export_failed:
        said = "vLLM's log says that it failed to export them"
        yield fail("spans", said, do=line_for("2", looked, house))
    elif traces:
        yield warn("spans", "none has come in a day", do="they come when a request ends; has one?")
    elif plugin_loads(looked) and "LENSD_OTLP" in environment and not sends_elsewhere(environment, house):
        yield ok("spans", "not sent; the plugin tells the same")
    elif older(looked.version, rungs.rung("2").since):
        yield ok("spans", f"vLLM {looked.version} has none of requests")
    else:
        yield warn("spans", f"{_unseen(looked)}vLLM sends none", do=line_for("2", looked, house))


def _plugin(looked: Looked, last: Ages | None, house: House) -> Check:
    _, environment = _known(looked)
    listed = left_out(looked)
    installed = bool(looked.process and looked.process.has_lensd) or "lensd" in (looked.log_plugins or ())
    if last is not None and "plugin" in last:
        return ok("plugin", f"its last record is of {ago(last['plugin'])} ago")
    if listed is not None:
        health = Health.FAIL if installed or "LENSD_OTLP" in environment else Health.WARN
        said = f"VLLM_PLUGINS={shlex.quote(listed)} leaves lensd out"
        return Check(about="plugin", health=health, said=said, do=listing(listed))
    if older(looked.version, rungs.rung("3a").since):
        return ok("plugin", f"vLLM {looked.version} tells a plugin no request ids: they come with 0.22")
    if not installed:
        known = looked.process is not None and looked.process.has_lensd is False
        said = "lensd is not installed in vLLM's environment" if known else f"{_unseen(looked)}no record has come"
        return warn("plugin", said, do=line_for("3b", looked, house))
    if "LENSD_OTLP" not in environment and looked.process and looked.process.environment is not None:
        said = "installed, but vLLM has no LENSD_OTLP in its environment: it sends nothing"
        return warn("plugin", said, do=line_for("3b", looked, house))
    if fault := sends_elsewhere(environment, house):
        return fail("plugin", fault, do=line_for("3b", looked, house))
    if looked.log_plugins is not None and "lensd" not in looked.log_plugins:
        said = f"vLLM's log lists its plugins ({', '.join(looked.log_plugins) or 'none'}), and lensd is not among them"
        return fail("plugin", said, do="install lensd where vLLM's Python finds it, and start vLLM again")
    do = f"it comes when a request ends; if one has, vLLM's log says why below {PLUGIN_GROUP!r}"
    return warn("plugin", "no record has come in a day", do=do)


def _middleware(looked: Looked, last: Ages | None, house: House) -> Check:
    flags, environment = _known(looked)
    if last is not None and "middleware" in last:
        return ok("middleware", f"its last request is of {ago(last['middleware'])} ago")
    if any(MIDDLEWARE in given for given in flags.get("middleware", ())):
        if "LENSD_OTLP" not in environment and looked.process and looked.process.environment is not None:
            said = "loaded, but vLLM has no LENSD_OTLP in its environment: it sends nothing"
            return fail("middleware", said, do=line_for("3b", looked, house))
        if fault := sends_elsewhere(environment, house):
            return fail("middleware", fault, do=line_for("3b", looked, house))
        return warn("middleware", "no request has come in a day", do="send one; if it stays silent, look at the door")
    return warn("middleware", f"{_unseen(looked)}not loaded", do=line_for("3b", looked, house))


def _names(looked: Looked) -> Found:
    """Names that a column is read from are a loss where no other name of it is shown; all others are only counted."""
    dialect = load_dialects().get(looked.kind)
    if dialect is None or not dialect.names:
        return
    lacks = lacking(looked.names, dialect, looked.version)
    by_name = {lack.name: lack for lack in lacks}
    for column, sources in dialect.metrics.items():
        bare = [source.removeprefix("sum:").partition("{")[0] for source in map(str, sources)]
        gone = [by_name[name] for name in bare if name in by_name]
        if bare and len(gone) == len(bare) and not any(lack.flag in FEATURES for lack in gone):
            said = f"the server does not show {gone[0].name}, so {column} is not known: {_reason(gone[0])}"
            yield warn("names", said, do=_mend(gone[0]), names=tuple(lack.name for lack in gone))
    by_flag = sum(lack.why is Why.FLAG for lack in lacks)
    said = f"{len(dialect.names) - len(lacks)} of the {len(dialect.names)} known are shown"
    others = len(lacks) - by_flag
    more = f"; {by_flag} come with what it was not started with, {others} with other versions (--json names them)" if lacks else ""
    yield ok("names", f"{said}{more}", names=tuple(lack.name for lack in lacks))


def _reason(lack: Lack) -> str:
    return {
        Why.TOO_OLD: f"it comes with vLLM {lack.since}",
        Why.GONE: "this version has it no more",
        Why.FLAG: f"it comes with {lack.flag}",
        Why.STATS_OFF: "it shows none of its own figures",
    }[lack.why]


def _mend(lack: Lack) -> str | None:
    return {Why.FLAG: f"start vLLM with {lack.flag}", Why.STATS_OFF: "take --disable-log-stats out"}.get(lack.why)


def _known(looked: Looked) -> tuple[Mapping[str, Sequence[str]], Mapping[str, str]]:
    process = looked.process
    return (process.flags or {}, process.environment or {}) if process is not None else ({}, {})


def _unseen(looked: Looked) -> str:
    """Said first where how vLLM was started cannot be read from here."""
    process = looked.process
    seen = process is not None and process.flags is not None and process.environment is not None
    return "" if seen else "as far as can be seen from here, "


def ago(seconds: float) -> str:
    """Seconds as people say them.

    >>> ago(0.4), ago(75), ago(7300), ago(200000)
    ('0 s', '75 s', '2 h', '2 days')
    """
    seconds = max(0.0, seconds)
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"
