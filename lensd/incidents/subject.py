"""What an incident stands on."""

from typing import Final, NamedTuple

from lensd.incidents.rules import Served
from lensd.records import Finding, Incident


class Subject(NamedTuple):
    """What an incident stands on; None: nothing said."""

    label: str
    engine: str | None
    model: str | None
    gpu: str | None
    key_id: str | None


SUBJECT: Final = Subject._fields


def subject_of(of: Finding | Incident) -> Subject:
    return Subject(of.label, of.engine, of.model, of.gpu, of.key_id)


def same_place(subject: Subject, finding: Finding) -> bool:
    return fits(subject.engine, finding.engine) and fits(subject.model, finding.model) and fits(subject.gpu, finding.gpu)


def is_of(served: Served, subject: Subject) -> bool:
    """Whether requests count towards the whole that a subject's share is taken of."""
    return all(
        wanted is None or wanted == given
        for wanted, given in ((subject.engine, served.engine), (subject.model, served.model), (subject.key_id, served.key_id))
    )


def fits(one: str | None, other: str | None) -> bool:
    """Whether two may be the same; unknown matches."""
    return one is None or other is None or one == other
