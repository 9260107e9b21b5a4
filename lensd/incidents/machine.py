"""The machine that turns findings into incidents, tick by tick."""

import hashlib
import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final, cast

import msgspec
from lensd_collectors.rows import IncidentRow

from lensd.errors import IncidentNotFoundError
from lensd.incidents.group import CLOSE_AFTER_US, EFFECTS, LINES, MAX_REQUESTS, Group, Requests, restored, with_state
from lensd.incidents.roots import Index
from lensd.incidents.rows import from_row
from lensd.incidents.rules import Rule, Rules, Served, counts, twin_labels, us
from lensd.incidents.subject import Subject, fits, is_of, same_place, subject_of
from lensd.records import Evidence, Finding, Incident

REFRESH_US: Final = 60_000_000  # an incident that merely goes on is written no more often than this
CLOSED_US: Final = 24 * 3_600_000_000  # a cause that a person closed and that goes on opens again after this
MAX_GROUPS: Final = 4096  # names of models come from callers


class Incidents:
    """All incidents that stand. A lock guards it: people ack and close from other threads."""

    def __init__(self) -> None:
        self._groups: dict[Subject, Group] = {}
        self._served: deque[tuple[int, Sequence[Served]]] = deque()
        self._now = 0
        self._lock = threading.Lock()

    def update(
        self,
        findings: Sequence[Finding],
        runbooks: Rules,
        now_us: int,
        *,
        served: Sequence[Served] = (),
        unknown: Collection[str] = (),
    ) -> list[Incident]:
        """One tick: the incidents that changed, each in its new revision, to be stored.

        `findings`: of request rules those of requests settled since the last tick, of window rules all that stand now.
        `served`: what was settled since the last tick; never given, shares are not judged. `unknown`: labels of which a window
        rule could not be evaluated; they do not count as absent.
        """
        with self._lock:
            if now_us < self._now:
                self._set_back(now_us)
            self._now = now_us
            self._remember(served, runbooks, now_us)
            live = [f for f in findings if counts(f, runbooks)]
            index = Index(live, runbooks)
            explained = [(f, root) for f in live if (root := index.root(f) or self._standing_root(f)) is not None]
            effects = {id(f) for f, _ in explained}
            twins = twin_labels(runbooks)
            paused = {rule.label for rule in runbooks.values() if rule.scope == "window" and rule.label in unknown}
            for f in live:
                opens = bool(runbooks[f.runbook].alert) and id(f) not in effects
                if opens or self._has_incident(f, twins):
                    self._take(f, runbooks[f.runbook], now_us, twins)
            for f, root in explained:
                self._note(self._place(root, twins) if isinstance(root, Finding) else root, f)
            return [new for group in list(self._groups.values()) if (new := self._turn(group, now_us, paused)) is not None]

    def standing(self) -> list[Incident]:
        """Open and acknowledged incidents as last written."""
        with self._lock:
            return [group.incident for group in self._groups.values() if group.incident is not None]

    def ack(self, incident_id: str) -> Incident:
        """The incident in its new revision; raises IncidentNotFoundError where none of that id stands."""
        with self._lock:
            group, incident = self._find(incident_id)
            if incident.state == "open":
                incident = msgspec.structs.replace(incident, state="acknowledged", revision=incident.revision + 1)
                group.incident = incident
            return incident

    def close(self, incident_id: str, now_us: int) -> Incident:
        """The incident, resolved; it opens anew once its cause was absent for `close_after` or has gone on for a day."""
        with self._lock:
            group, _ = self._find(incident_id)
            group.closed_at = now_us
            return self._resolve(group, now_us)

    def restore(self, rows: Iterable[IncidentRow], runbooks: Rules | None = None) -> None:
        """Takes up what was stored (the last revision of each), so that a restart neither opens nor tells anything again."""
        close_after = {rule.label: us(rule.hold.close_after) for rule in (runbooks or {}).values()}
        with self._lock:
            for row in sorted(rows, key=lambda row: row.opened_at):
                incident = from_row(row)
                group = restored(incident, close_after.get(row.label, CLOSE_AFTER_US))
                if incident.resolved_at is not None and incident.resolved_at - incident.last_seen_at >= group.close_after:
                    self._groups.pop(group.subject, None)  # ended by itself
                else:
                    self._groups[group.subject] = group

    def _find(self, incident_id: str) -> tuple[Group, Incident]:
        for group in self._groups.values():
            if group.incident is not None and group.incident.incident_id == incident_id:
                return group, group.incident
        raise IncidentNotFoundError(f"no open incident {incident_id}; `lensd incidents ls` shows those that stand")

    def _set_back(self, now: int) -> None:
        """The clock was set back: what lies ahead of it now would hold incidents open, and count as fresh, for as long."""
        self._served = deque(entry for entry in self._served if entry[0] <= now)
        for group in self._groups.values():
            group.hits = deque((hit for hit in group.hits if hit[0] <= now), MAX_REQUESTS)
            group.seen_at, group.quiet_since, group.written_at = (
                min(at, now) for at in (group.seen_at, group.quiet_since, group.written_at)
            )
            group.stood_since = group.stood_since and min(group.stood_since, now)
            group.closed_at = group.closed_at and min(group.closed_at, now)

    def _remember(self, served: Sequence[Served], runbooks: Rules, now: int) -> None:
        longest = max((us(rule.alert.within) for rule in runbooks.values() if rule.alert), default=0)
        if served:
            self._served.append((now, tuple(served)))
        while self._served and self._served[0][0] <= now - longest:
            self._served.popleft()

    def _standing_root(self, finding: Finding) -> Group | None:
        """The incident of the label that explains a finding, where that label did not fire at this tick."""
        if finding.explained_by is None:
            return None
        groups = (group for group in self._groups.values() if group.incident is not None)
        return next((g for g in groups if g.subject.label == finding.explained_by and same_place(g.subject, finding)), None)

    def _has_incident(self, finding: Finding, twins: Collection[str]) -> bool:
        group = self._place(finding, twins)
        return group is not None and group.incident is not None

    def _place(self, finding: Finding, twins: Collection[str]) -> Group | None:
        """The group a finding belongs to. Two files of one label may know the subject unequally well: unknown matches."""
        exact = self._groups.get(_stands_on(finding, twins))
        if exact is not None or finding.label not in twins:
            return exact
        alike = (g for g in self._groups.values() if g.subject.label == finding.label)
        return next((g for g in alike if same_place(g.subject, finding) and fits(g.subject.key_id, finding.key_id)), None)

    def _take(self, finding: Finding, rule: Rule, now: int, twins: Collection[str]) -> None:
        """Counts a finding towards its subject's incident."""
        group = self._place(finding, twins)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                return
            subject = _stands_on(finding, twins)
            group = self._groups[subject] = Group(subject)
        group.close_after = us(rule.hold.close_after)
        if rule.scope == "request":
            if finding.request_id is None or not group.requests.add(finding.request_id, finding.request_key):
                return  # told again after late data
            group.gate = rule.alert or None
            group.hits.append((now, finding.request_id, finding.request_key))
        else:
            group.open_after = us(rule.hold.open_after)
            group.stood_since = now if group.stood_since is None else group.stood_since
            group.stood_at = now
        group.seen_at = group.quiet_since = now
        group.finding = finding
        group.first = group.first or finding.evidence[:LINES]

    def _note(self, group: Group | None, effect: Finding) -> None:
        """Records an effect on its cause."""
        if group is None:
            return
        if effect.request_id is not None:
            group.requests.add(effect.request_id, effect.request_key)
        start = f"explains {effect.label}: "
        known = any(line.text.startswith(start) for line in (*group.first, *group.effects))
        if not known and effect.label != group.subject.label and len(group.effects) < EFFECTS:
            group.effects += (Evidence(text=start + effect.cause),)

    def _turn(self, group: Group, now: int, paused: Collection[str]) -> Incident | None:
        """What this tick makes of a group: its incident's new revision, or None."""
        seen = group.seen_at == now
        if group.quiet_since == 0 or group.subject.label in paused:
            group.quiet_since = now
        if group.stood_at != now:
            group.stood_since = None
        if group.closed_at is not None:
            if now - group.quiet_since >= group.close_after or now - group.closed_at >= CLOSED_US:
                del self._groups[group.subject]
            return None
        if group.incident is None:
            if seen and self._opens(group, now):
                return self._open(group, now)
            if not seen and (group.gate is None or not self._trim(group, now)):
                del self._groups[group.subject]
            return None
        if now - group.quiet_since >= group.close_after:
            return self._resolve(group, now)
        return self._refresh(group, now)

    def _opens(self, group: Group, now: int) -> bool:
        stood = group.stood_since is not None and group.open_after is not None and now - group.stood_since >= group.open_after
        return stood or self._gate_opens(group, now)

    def _gate_opens(self, group: Group, now: int) -> bool:
        if group.gate is None:
            return False
        hits = self._trim(group, now)
        if hits < max(1, group.gate.min_requests):
            return False
        since = now - us(group.gate.within)
        total = sum(s.count for at, tick in self._served if at > since for s in tick if is_of(s, group.subject))
        return total == 0 or hits >= group.gate.min_share * total

    def _trim(self, group: Group, now: int) -> int:
        """Requests hit within the gate's time, older ones forgotten."""
        since = now - (us(group.gate.within) if group.gate is not None else 0)
        while group.hits and group.hits[0][0] <= since:
            group.hits.popleft()
        return len(group.hits)

    def _open(self, group: Group, now: int) -> Incident:
        finding = cast(Finding, group.finding)
        if group.stood_since is None:  # those that fell out of the gate's time are no part of it
            group.requests = Requests()
            for _, request_id, key in group.hits:
                group.requests.add(request_id, key)
        incident = Incident(
            incident_id=_new_id(group.subject, now),
            revision=1,
            state="open",
            severity=finding.severity,
            stage=finding.stage,
            confidence=finding.confidence,
            cause=finding.cause,
            fix=finding.fix,
            opened_at=now,
            last_seen_at=now,
            **group.subject._asdict(),
        )
        group.incident, group.written_at = with_state(incident, group), now
        return group.incident

    def _refresh(self, group: Group, now: int) -> Incident | None:
        """A new revision at once for news, at times while it goes on, else None."""
        old = cast(Incident, group.incident)
        new = with_state(old, group)
        news = new.confidence is not old.confidence or (old.requests_hit == 0 and new.requests_hit > 0)
        if new == old or not (news or now - group.written_at >= REFRESH_US):
            return None
        group.incident, group.written_at = msgspec.structs.replace(new, revision=old.revision + 1), now
        return group.incident

    def _resolve(self, group: Group, now: int) -> Incident:
        old = cast(Incident, group.incident)
        new = msgspec.structs.replace(with_state(old, group), state="resolved", resolved_at=now, revision=old.revision + 1)
        group.incident = None
        if group.closed_at is None:
            del self._groups[group.subject]
        return new


def _stands_on(finding: Finding, twins: Collection[str]) -> Subject:
    """What hits an engine or a GPU as a whole, and is seen on it too, stands on that alone, whichever request tells of it first."""
    subject = subject_of(finding)
    whole = finding.label in twins and finding.stage in ("engine", "gpu") and finding.engine is not None
    return subject._replace(model=None, key_id=None) if whole else subject


def _new_id(subject: Subject, now: int) -> str:
    text = msgspec.json.encode((*subject, now))
    return "inc-" + hashlib.blake2b(text, digest_size=6).hexdigest()
