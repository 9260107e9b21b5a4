"""From what fired to one verdict: which finding explains which, which is the root, and what may not be said.

A finding that another explains stands under it; a guess explains nothing that is certain, save what says only that something is
wrong (`precedence` 0). The root is what nothing else explains; then the more certain, then the higher `precedence`, then the
worse, then `rank` (the share of the time or of the requests held), then the better quoted, then the later. Symptoms are never a
verdict; a negative is one only where no cause fires and it accounts for every doubt; where neither does, the verdict says what
would have to be known.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from lensd_collectors.conventions import Decision, Outcome

from lensd.diagnosis.doubts import Doubt, of_outcomes, unanswered
from lensd.diagnosis.evaluate import Answer, Evaluation, Fired, Judged, Quiet, Result, Unknown
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import microseconds
from lensd.records import (
    CONFIDENCE_RANK,
    SEVERITY_RANK,
    Confidence,
    Evidence,
    Finding,
    NotEvaluated,
    RuledOut,
    Severity,
    Subject,
    Verdict,
)

LATE_US: Final = 60_000_000  # a cause may seem to begin this much after its effect
NOTICED_US: Final = 5_000_000  # the first sign of a death comes this much after the request that it cut
STANDS_ON: Final = ("engine", "model", "gpu", "request_id")
MOST_NAMED: Final = 4  # missing things named in one sentence
INCONCLUSIVE: Final = "inconclusive"
ANY: Final = "\0"  # index of causes on whatever request
MOST_REQUESTS: Final = 5  # ids named where a finding stands on many

BEFORE_ENGINE: Final = frozenset(
    {
        Decision.KEY_MISSING, Decision.KEY_MALFORMED, Decision.KEY_WRONG_HEADER, Decision.KEY_FOREIGN, Decision.KEY_UNKNOWN,
        Decision.KEY_EXPIRED, Decision.KEY_DISABLED, Decision.ROUTE_NOT_ALLOWED, Decision.MODEL_NOT_ALLOWED, Decision.MODEL_UNKNOWN,
        Decision.PATH_UNKNOWN, Decision.METHOD_NOT_ALLOWED, Decision.BODY_TOO_LARGE, Decision.BODY_MALFORMED, Decision.BODY_AMBIGUOUS,
        Decision.BODY_TIMEOUT, Decision.MAX_TOKENS_TOO_LARGE, Decision.PROMPT_TOO_LONG, Decision.CONTEXT_TOO_LONG, Decision.RATE_LIMITED,
        Decision.GATEWAY_STOPPING, Decision.GATEWAY_ERROR, Decision.UPSTREAM_CREDENTIAL_REFUSED,
    }
)  # fmt: skip
"""Decisions that no state of the engine can have caused."""


class Conclusion(NamedTuple):
    verdict: Verdict
    findings: tuple[Finding, ...]  # best first, each with what explains it
    ruled_out: tuple[RuledOut, ...]
    not_evaluated: tuple[NotEvaluated, ...]


def conclude(evaluation: Evaluation, subject: Subject, doubts: Sequence[Doubt] = (), *, with_reasons: bool = True) -> Conclusion:
    """The verdict on one request, or on a folder of files (`subject.kind`), where findings of many requests become one.

    `doubts`: what else there is, besides the requests, that does not look well; one for which no negative of the window accounts
    stands against every negative. `with_reasons` False leaves out what was ruled out and what could not be judged.
    """
    judged = _judged(evaluation, subject)
    request = judged.request_id if judged is not None else None
    books = {result.runbook.id: result.runbook for result in evaluation.results}
    answers = [(result, result.of(request)) for result in evaluation.results]
    fired = [finding for _, answer in answers if isinstance(answer, Fired) for finding in answer.findings]
    if judged is None:
        fired = gather(finding for finding in fired if finding.request_id not in evaluation.put_right)
    else:
        fired = [finding for finding in fired if _concerns(finding, judged)]
    findings = rank(merge(fired), books)
    spared = {r.runbook.label for r, answer in answers if r.runbook.scope == "request" and isinstance(answer, Quiet)}
    grounds = _grounds(findings, judged)
    left = _standing_against(evaluation, judged, doubts) if grounds else ()
    asked = _is_asked(evaluation, judged)
    negatives = grounds if not left and not asked else []
    verdict = _verdict(findings, negatives, judged, spared) or inconclusive(answers, judged, () if asked else left)
    findings = [finding for finding in findings if finding.kind != "negative" or finding.label == verdict.label]
    if not with_reasons:
        return Conclusion(verdict, tuple(findings), (), ())
    said = {finding.label for finding in findings}
    return Conclusion(verdict, tuple(findings), _ruled_out(answers, said), _not_evaluated(answers, said))


def rank(findings: Iterable[Finding], runbooks: Mapping[str, Runbook]) -> list[Finding]:
    """The findings best first, each with the label of the finding that explains it."""
    given = sorted(findings, key=lambda finding: _order(finding, runbooks))
    by_effect: dict[tuple[str, str | None], list[tuple[int, Finding]]] = {}
    for number, cause in enumerate(given):
        for label in cause.explains if cause.kind == "cause" else ():
            by_effect.setdefault((label, cause.request_id), []).append((number, cause))
            if cause.request_id is not None:
                by_effect.setdefault((label, ANY), []).append((number, cause))
    named = []
    for effect in given:
        requests = (effect.request_id, None) if effect.request_id is not None else (ANY, None)
        candidates = [entry for request in requests for entry in by_effect.get((effect.label, request), ())]
        above = (entry for entry in candidates if explains(entry[1], effect) and _outweighs(entry[1], effect, runbooks))
        first = min(above, default=None, key=lambda entry: entry[0])
        named.append(msgspec.structs.replace(effect, explained_by=first[1].label if first else None))
    return sorted(named, key=lambda finding: (finding.explained_by is not None, *_order(finding, runbooks)))


def explains(cause: Finding, effect: Finding) -> bool:
    """Whether `cause` names the effect's label, stands on the same (or an unknown) engine, model, gpu and request, and began in time."""
    if cause.kind != "cause" or effect.label not in cause.explains or cause.label == effect.label:
        return False
    if any(not _matches(getattr(cause, name), getattr(effect, name)) for name in STANDS_ON):
        return False
    return cause.since_at is None or effect.since_at is None or cause.since_at <= effect.since_at + LATE_US


def gather(findings: Iterable[Finding]) -> list[Finding]:
    """One finding a runbook, engine, model, gpu and key: the surest of them, with how many requests it stands on."""
    groups: dict[tuple[str | None, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.runbook, finding.engine, finding.model, finding.gpu, finding.key_id), []).append(finding)
    gathered = []
    for group in groups.values():
        best = max(group, key=lambda finding: (CONFIDENCE_RANK[finding.confidence], finding.rank))
        requests = list(dict.fromkeys(finding.request_id for finding in group if finding.request_id is not None))
        if len(requests) > 1:
            more = f" and {len(requests) - MOST_REQUESTS} more" if len(requests) > MOST_REQUESTS else ""
            line = Evidence(text=f"{len(requests)} requests: {', '.join(requests[:MOST_REQUESTS])}{more}")
            begun = [finding.since_at for finding in group if finding.since_at is not None]
            best = msgspec.structs.replace(
                best, request_id=None, evidence=(*best.evidence, line), since_at=min(begun) if len(begun) == len(group) else None
            )
        gathered.append(best)
    return gathered


def merge(findings: Sequence[Finding]) -> list[Finding]:
    """One finding where `<id>` and `<id>@window` found the same label on the same engine, model and gpu: the surer, with all lines."""
    merged: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (-CONFIDENCE_RANK[f.confidence], f.request_id is None)):
        same = next((number for number, other in enumerate(merged) if _is_same(other, finding)), None)
        if same is None:
            merged.append(finding)
        elif merged[same].runbook != finding.runbook:
            merged[same] = _joined(merged[same], finding)
    return merged


def inconclusive(answers: Sequence[tuple[Result, Answer]], judged: Judged | None, doubts: Sequence[Doubt] = ()) -> Verdict:
    """What is said where the evidence does not carry a verdict: which missing thing would carry it, the most telling first."""
    asked = [(result.runbook, answer) for result, answer in answers if isinstance(answer, Unknown) and result.runbook.kind == "cause"]
    names = telling(asked)
    if doubts:
        cause = f"could not tell: what was served was served well, but {'; '.join(map(str, doubts[:MOST_NAMED]))}"
        fix = "look at what is named; a runbook of your own can name its cause"
    elif names:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        cause = f"could not tell, because this is missing: {', '.join(names[:MOST_NAMED])}{more}"
        fix = "attach what is missing (see not_evaluated), then look again"
    else:
        cause = "could not tell: no rule fits what is known, and nothing known says that all is well"
        fix = "look at the timeline and the findings shown; a runbook of your own can name this cause"
    well = judged is not None and judged.outcome == Outcome.OK
    return Verdict(
        label=INCONCLUSIVE,
        stage=judged.where if judged is not None else "none",
        severity=Severity.INFO if well else Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        cause=cause,
        fix=fix,
    )


def telling(asked: Sequence[tuple[Runbook, Unknown]]) -> list[str]:
    """Names of what is missing, the most telling first.

    Where rules saw something that fits and asked, only what they asked for. Else a name is worth the more, the fewer others its
    rule lacks besides it and the more of what that rule needs is there.
    """
    pointed = [entry for entry in asked if entry[1].pointed]
    worth: Counter[str] = Counter()
    for book, unknown in pointed or asked:
        needed = {*book.needs, *(need for group in book.needs_any for need in group)}
        had = len(needed.difference(unknown.missing))
        for name in unknown.missing:
            worth[name] += (1 + had) / len(unknown.missing) ** 2  # type: ignore[assignment]
    return [name for name, _ in worth.most_common()]


def verdict_of(finding: Finding) -> Verdict:
    return Verdict(
        label=finding.label,
        stage=finding.stage,
        severity=finding.severity,
        confidence=finding.confidence,
        cause=finding.cause,
        fix=finding.fix,
    )


def _judged(evaluation: Evaluation, subject: Subject) -> Judged | None:
    """The request that is judged; one without an id of its own is the only one in the scope."""
    if subject.kind != "request":
        return None
    if subject.request_id in evaluation.subjects:
        return evaluation.subjects[subject.request_id]
    return next(iter(evaluation.subjects.values())) if len(evaluation.subjects) == 1 else None


def _verdict(findings: Sequence[Finding], negatives: Sequence[Finding], judged: Judged | None, spared: set[str]) -> Verdict | None:
    """A request's own cause, or the window cause that explains it, goes before a window cause that only stands beside it.

    `spared`: labels whose request rule looked at this request and was quiet, whatever the engine suffered in the window.
    """
    causes = [finding for finding in findings if finding.kind == "cause"]
    if judged is not None:
        own = _with_explaining([finding for finding in causes if finding.request_id is not None], causes)
        if not own and negatives:
            return verdict_of(negatives[0])  # whatever stands on the engine did not reach this request
        reaching = [] if judged.decision in BEFORE_ENGINE else [finding for finding in causes if finding.label not in spared]
        causes = own or reaching
    roots = [finding for finding in causes if finding.explained_by is None] or causes
    if roots:
        return _beside(verdict_of(roots[0]), roots[1:] if judged is None else ())
    return verdict_of(negatives[0]) if negatives else None


def _beside(verdict: Verdict, others: Sequence[Finding]) -> Verdict:
    """The verdict on files, with what is no less sure and has nothing to do with it."""
    sure = [one for one in others if one.label != verdict.label and CONFIDENCE_RANK[one.confidence] >= CONFIDENCE_RANK[verdict.confidence]]
    labels = list(dict.fromkeys(one.label for one in sure if one.confidence is not Confidence.POSSIBLE))
    return msgspec.structs.replace(verdict, cause=f"{verdict.cause}; beside it, {' and '.join(labels)}") if labels else verdict


def _with_explaining(own: Sequence[Finding], causes: Sequence[Finding]) -> list[Finding]:
    """`own` and every cause above them, best first."""
    labels = {finding.label for finding in own}
    while True:
        above = {f.explained_by for f in causes if f.label in labels and f.explained_by is not None}
        if above <= labels:
            return [finding for finding in causes if finding in own or finding.label in labels - {f.label for f in own}]
        labels |= above


def _grounds(findings: Sequence[Finding], judged: Judged | None) -> list[Finding]:
    """What says that all is well, best first: of a request only what was seen of it itself."""
    negatives = [one for one in findings if one.kind == "negative" and (judged is None or one.request_id == judged.request_id)]
    return sorted(negatives, key=lambda one: -one.rank)


def _standing_against(evaluation: Evaluation, judged: Judged | None, doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
    """What no negative accounts for: of the doubts given, and of requests without grounds of their own."""
    if judged is not None:
        return unanswered(doubts, ())
    negatives = [(result.runbook, one) for result in evaluation.results if result.runbook.kind == "negative" for one in result.findings]
    served = {finding.request_id for _, finding in negatives}
    accounted = {name for book, finding in negatives if finding.request_id is None for name in book.accounts_for}
    unserved = {name: subject.outcome for name, subject in evaluation.subjects.items() if name not in served | evaluation.put_right}
    return unanswered((*of_outcomes(unserved), *doubts), accounted)


def _is_asked(evaluation: Evaluation, judged: Judged | None) -> bool:
    """Whether a rule saw something that fits it and asks for more: of a request about that, of files about any and the whole."""
    causes = [result for result in evaluation.results if result.runbook.kind == "cause"]
    subjects = set(evaluation.subjects) if judged is None else {judged.request_id}
    if judged is None and any(result.window_unknown is not None and result.window_unknown.pointed for result in causes):
        return True
    subjects -= evaluation.put_right if judged is None else set()
    return any(unknown.pointed for result in causes for name, unknown in result.unknown.items() if name in subjects)


def _concerns(finding: Finding, judged: Judged) -> bool:
    """Whether a finding stands on the request, or on its engine and model before it ended."""
    if finding.request_id is not None:
        return finding.request_id == judged.request_id
    if not _matches(finding.engine, judged.engine):
        return False
    if finding.engine is None and not _matches(finding.model, judged.model):
        return False
    if finding.since_at is None or judged.ended_at is None:
        return True
    return finding.since_at <= microseconds(judged.ended_at) + NOTICED_US


def _order(finding: Finding, runbooks: Mapping[str, Runbook]) -> tuple[int, int, int, float, int, int]:
    book = runbooks.get(finding.runbook)
    quoted = sum(line.source is not None for line in finding.evidence)
    return (
        -CONFIDENCE_RANK[finding.confidence],
        -(book.precedence if book else 0),
        -SEVERITY_RANK[finding.severity],
        -finding.rank,
        -quoted,
        -(finding.since_at or 0),
    )


def _outweighs(cause: Finding, effect: Finding, runbooks: Mapping[str, Runbook]) -> bool:
    """A guess does not go before what is certain, save where that names no cause of its own."""
    if cause.confidence is not Confidence.POSSIBLE or effect.confidence is not Confidence.CERTAIN:
        return True
    book = runbooks.get(effect.runbook)
    return book is not None and book.precedence == 0


def _is_same(one: Finding, other: Finding) -> bool:
    return one.label == other.label and all(_matches(getattr(one, name), getattr(other, name)) for name in STANDS_ON)


def _joined(kept: Finding, other: Finding) -> Finding:
    """The kept finding with what the other knows besides."""
    texts = {line.text for line in kept.evidence}
    lines: tuple[Evidence, ...] = kept.evidence + tuple(line for line in other.evidence if line.text not in texts)
    known = {name: getattr(kept, name) or getattr(other, name) for name in (*STANDS_ON, "key_id")}
    return msgspec.structs.replace(kept, evidence=lines, explains=tuple(dict.fromkeys(kept.explains + other.explains)), **known)


def _matches(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


def _ruled_out(answers: Sequence[tuple[Result, Answer]], said: set[str]) -> tuple[RuledOut, ...]:
    quiet = {r.runbook.label: a.because for r, a in answers if isinstance(a, Quiet) and r.runbook.kind == "cause"}
    unknown = {r.runbook.label for r, a in answers if isinstance(a, Unknown)}
    return tuple(RuledOut(label=label, because=because) for label, because in quiet.items() if label not in said | unknown)


def _not_evaluated(answers: Sequence[tuple[Result, Answer]], said: set[str]) -> tuple[NotEvaluated, ...]:
    """What could not be judged, what was asked for first, then what lacks least; beside a rule that asked, others of its label do not."""
    unknown = [(r.runbook.label, answer) for r, answer in answers if isinstance(answer, Unknown) and r.runbook.label not in said]
    asked = {label for label, answer in unknown if answer.pointed}
    missing: dict[str, tuple[str, ...]] = {}
    for label, answer in unknown:
        if answer.pointed or label not in asked:
            missing[label] = tuple(dict.fromkeys(missing.get(label, ()) + answer.missing))
    missing = dict(sorted(missing.items(), key=lambda entry: (entry[0] not in asked, len(entry[1]))))
    return tuple(NotEvaluated(label=label, missing=names) for label, names in missing.items())
