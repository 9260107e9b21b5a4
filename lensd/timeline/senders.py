"""Which open requests have lost the process that told of them, since another one stands in its place.

A process says where it stands when it starts: a gateway the address it serves, an engine's middleware its engine. Only one
can stand there, so that a later start means that the earlier process is gone, with all it held. One that said that it drains
has made room itself: it may yet end what it holds.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from lensd_collectors import conventions as c

from lensd.store.interface import Cursor
from lensd.timeline.evidence import RequestEvidence, Sender, Signal

STARTED: Final = "started"
DRAINING: Final = "draining"

_STARTS: Final = """
select epoch_us(seen_at), host, engine, fields, src
from events where name = $event and attr(fields, $act) = $started and seen_at > make_timestamp($since) order by seen_at, seq
"""
_OWN: Final = """
select epoch_us(seen_at), host, engine, fields, src
from events where name = $event and attr(fields, $instance) in (select unnest($instances)) order by seen_at, seq
"""
_json = msgspec.json.Decoder()


def add_successors(cursor: Cursor, requests: Sequence[RequestEvidence]) -> None:
    """Tell each of these requests, none of which has ended, of the start that took its sender's place; most have none.

    Both are dated by the clock of one host, so that neither the order in which they came nor its distance from ours matters.
    """
    told = [(request, request.signals[-1].at, sender) for request in requests if (sender := request.signals[-1].sender) is not None]
    if not told:
        return
    starts = _acts(cursor, _STARTS, act=c.ACT, started=STARTED, since=max(0, min(at for _, at, _ in told)))
    rivals = [(request, sender, [s for s in starts if s.at > at and _may_replace(s.sender, sender)]) for request, at, sender in told]
    rivals = [found for found in rivals if found[2]]
    if not rivals:
        return
    own = _own_acts(cursor, {sender.instance for _, sender, _ in rivals})
    for request, sender, found in rivals:
        acts = own[sender.instance]
        if not any(act.fields.get(c.ACT) == DRAINING for act in acts):
            request.successor = next((s for s in found if _is_at(s.sender, _listen(sender, acts), sender.engine)), None)


def sender_of(cursor: Cursor, request: RequestEvidence) -> Sender | None:
    """Who told of an open request, with the address it serves where it ever said so."""
    sender = request.last_signal.sender if request.last_signal is not None else None
    if sender is None or sender.listen is not None:
        return sender
    return sender._replace(listen=_listen(sender, _own_acts(cursor, {sender.instance})[sender.instance]))


def _acts(cursor: Cursor, sql: str, **given: Any) -> list[Signal]:
    rows = cursor.execute(sql, {"event": c.EVENT_GATEWAY_ACT, **given}).fetchall()
    return [
        Signal(c.EVENT_GATEWAY_ACT, at, {c.HOST_NAME: host, c.ENGINE: engine} | (_json.decode(fields) if fields else {}), src)
        for at, host, engine, fields, src in rows
    ]


def _own_acts(cursor: Cursor, instances: Iterable[str]) -> dict[str, list[Signal]]:
    """Each instance's own acts. It may have started any time ago, so this reads all days: asked for where somebody was replaced only."""
    by_instance: dict[str, list[Signal]] = defaultdict(list)
    for act in _acts(cursor, _OWN, instance=c.SERVICE_INSTANCE_ID, instances=sorted(instances)):
        if (sender := act.sender) is not None:
            by_instance[sender.instance].append(act)
    return by_instance


def _may_replace(new: Sender | None, old: Sender) -> bool:
    if new is None or new.host is None or new.instance == old.instance:
        return False
    return (new.service, new.host) == (old.service, old.host)


def _listen(sender: Sender, acts: Iterable[Signal]) -> str | None:
    """The address that a sender serves, as its events say, else as its start did."""
    starts = (act.sender for act in acts if act.fields.get(c.ACT) == STARTED)
    return sender.listen or next((start.listen for start in starts if start is not None and start.listen is not None), None)


def _is_at(new: Sender | None, listen: str | None, engine: str | None) -> bool:
    """Whether the new process stands where the old one stood: at its address; where neither has one, in the same engine."""
    if new is None or new.listen != listen:
        return False
    return listen is not None or (engine is not None and new.engine == engine)
