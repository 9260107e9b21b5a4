"""What a small incident is."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Incident:
    """`label` is the verdict; None: nothing here may be named, neither a cause nor health. `says` must stand in the quotes.

    A look-alike may have a label too, another one than it looks like.
    """

    name: str
    files: dict[str, str]
    label: str | None = None
    stage: str | None = None
    says: tuple[str, ...] = ()
    never_said: tuple[str, ...] = field(default=())
