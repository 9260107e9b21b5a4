"""Methods of other libraries replaced by ones around them, and put back."""

import functools
from collections.abc import Callable
from typing import Any

Plain = Callable[..., Any]


class Patches:
    """What was replaced, in order. Each replacement is made by a function that takes the plain method and gives one around it."""

    def __init__(self) -> None:
        self.is_on = True
        self._done: list[tuple[type, str, Plain, Plain]] = []

    def around(self, cls: type, name: str, make: Callable[[Plain], Plain]) -> None:
        """Replaces the method that `cls` itself has; leaves a class alone that has none of that name."""
        plain = cls.__dict__.get(name)
        if plain is None:
            return
        made = functools.wraps(plain)(make(plain))
        setattr(cls, name, made)
        self._done.append((cls, name, plain, made))

    def undo(self) -> None:
        """Puts each method back. One that somebody else has put theirs around stays, and passes through."""
        self.is_on = False
        for cls, name, plain, made in reversed(self._done):
            if cls.__dict__.get(name) is made:
                setattr(cls, name, plain)
        self._done.clear()


def owner(cls: type, name: str) -> type:
    """The class that has the method which `cls` inherits."""
    return next((base for base in cls.__mro__ if name in base.__dict__), cls)
