"""What is said of a request whose end nobody has told: where it stands, or stood when its sender fell silent."""

from datetime import UTC, datetime
from typing import Final

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Stage

from lensd.diagnosis.causes import INCONCLUSIVE
from lensd.records import Confidence, Severity, StageTime, Verdict
from lensd.timeline.assembler import Assembled
from lensd.timeline.evidence import RequestEvidence, Sender
from lensd.words import NAMES, clock, duration

MOST_MESSAGE: Final = 200  # characters of what the caller's own error said


def of_open(request: Assembled) -> Verdict:
    """Where an open request stands, for how long, and what it waits for."""
    engine = request.row.engine or "the engine"
    stage, waited = _standing(request)
    if stage.stage is Stage.DECODE:
        said = _of_streaming(request.evidence, waited)
    elif stage.stage is Stage.PREFILL:
        said = f"handed to {engine}; nobody waits there any more, and no byte has come: in prefill for {duration(waited)} (estimated)"
    elif stage.stage is Stage.QUEUE:
        said = (
            f"handed to {engine} {duration(waited)} ago and no byte has come; queue (estimated): without the engine's own record "
            "prefill cannot be told apart"
        )
    else:
        said = f"in the gateway for {duration(request.timeline.total_ms)}, not handed to an engine yet"
    return Verdict(
        label=INCONCLUSIVE,
        stage=stage.stage.value,
        severity=Severity.INFO,
        confidence=Confidence.POSSIBLE,
        cause=f"still open: {said}",
        fix="ask again, or look at the engine: does its token counter move?",
    )


def of_lost(request: Assembled, sender: Sender | None) -> Verdict:
    """Who stopped telling of a lost request, when, where it stood then, and what that means for its caller.

    A cause is not named: of the process that could tell one nothing more has come.
    """
    who, last, new = _name(request, sender), request.evidence.signals[-1].at, request.evidence.successor
    stage, time = _stood_in(request)
    if new is not None:
        heard = f"for {time} when last heard of, at {_at(last)}" if time else f"last heard of at {_at(last)}"
        cause = f"lost: {who} was restarted at {_at(new.at)} while the request stood in {stage} ({heard})"
        meant = "its caller's connection broke when the old process died"
        fix = "let the caller send it again; why the old process ended is in its own log, its supervisor's or the kernel's"
    else:
        cause = f"lost: {who} stopped sending at {_at(last)} while the request stood in {stage}{f' for {time}' if time else ''}"
        meant = "if that process died, its caller's connection broke then"
        fix = f"see whether {who} still runs and reaches lensd's OTLP door; if it died, let the caller send the request again"
    return Verdict(
        label=INCONCLUSIVE,
        stage=_standing(request)[0].stage.value,
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        cause=f"{cause}; its end is unknown; {_of_caller(request) or meant}",
        fix=fix,
    )


def _standing(request: Assembled) -> tuple[StageTime, float | None]:
    """The last stage that was reached, and the time in it so far."""
    stages = {s.stage: s for s in request.timeline.stages}
    reached = (stages[s] for s in (Stage.DECODE, Stage.PREFILL, Stage.QUEUE) if stages[s].duration_ms is not None)
    stage = next(reached, stages[Stage.AUTH_ROUTING])
    return stage, stage.duration_ms


def _stood_in(request: Assembled) -> tuple[str, str]:
    """The stage, and the time in it when the request was last heard of ("" where nobody saw it begin)."""
    stage, time = _standing(request)
    if stage.stage is Stage.QUEUE and stage.source == "estimate":
        return "queue or prefill", duration(time)  # from outside they cannot be told apart
    return NAMES.get(stage.stage, stage.stage.value), duration(time)


def _of_streaming(request: RequestEvidence, decoding_ms: float | None) -> str:
    last = request.last_signal
    silent = last.fields.get(c.PROGRESS_SILENT_MS) if last is not None else None
    chunks = last.fields.get(c.CHUNKS) if last is not None else None
    parts = [f"streaming for {duration(decoding_ms)}"]
    parts += [f"{chunks} chunks so far"] if chunks is not None else []
    parts += [f"last byte {duration(float(silent))} before that was said"] if silent is not None else []
    return ", ".join(parts)


def _name(request: Assembled, sender: Sender | None) -> str:
    """The process that told of the request: by its address, else by its host; a middleware by its engine."""
    if request.evidence.is_inside_engine:
        return f"the middleware in {request.row.engine or 'the engine'}"
    if sender is None or not (sender.listen or sender.host):
        return "the gateway"
    return f"the gateway {sender.listen}" if sender.listen else f"the gateway on {sender.host}"


def _of_caller(request: Assembled) -> str | None:
    """What the caller's own instrumentation saw of the end."""
    client = request.evidence.client
    if client is None:
        return None
    message = f": {client.status_message[:MOST_MESSAGE]}" if client.status_message else ""
    how = f"in an error{message}" if client.status == "error" else "without an error"
    return f"its caller saw it end {how}, {duration((client.end - client.start) / 1000)} after sending it"


def _at(us: int) -> str:
    return clock(datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"))
