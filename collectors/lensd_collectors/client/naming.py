"""Puts a request's id into the text of an error: `str(error)` gives it, type and arguments stay as they are.

For that the error's class is given a `__str__` that adds the id to errors that have one. A class that cannot be changed
(TimeoutError and others of Python's own) has it in the error's argument.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

MARK: Final = "_lensd_request"
_lock = threading.Lock()
_changed: dict[type, Callable[[Any], str] | None] = {}  # classes with our __str__, and the one of their own they had


def name_request(error: BaseException, request_id: str) -> None:
    """Adds the id, once. A cancellation gets a note instead: who cancels may compare its text. Never raises."""
    with contextlib.suppress(Exception):
        if not isinstance(error, Exception):
            error.add_note(f"request {request_id}")
        elif request_id not in str(error):
            _name(error, request_id)


def forget() -> None:
    """Gives every class back the text it had."""
    with _lock:
        for cls, own in _changed.items():
            if own is None:
                del cls.__str__
            else:
                cls.__str__ = own  # type: ignore[method-assign, assignment]
        _changed.clear()


def _name(error: Exception, request_id: str) -> None:
    if _is_ours_to_change(type(error)):
        _teach(type(error))
        error.__dict__[MARK] = request_id
    elif isinstance(error, OSError) and isinstance(error.strerror, str):
        error.strerror = f"{error.strerror} (request {request_id})"
    else:
        error.args = (f"{error} (request {request_id})".strip(),)


def _is_ours_to_change(cls: type) -> bool:
    return bool(cls.__flags__ & (1 << 9))  # made by a class statement


def _teach(cls: type) -> None:
    with _lock:
        if next(base for base in cls.__mro__ if "__str__" in base.__dict__) in _changed:
            return
        plain: Callable[[Any], str] = cls.__str__  # type: ignore[assignment]

        def __str__(self: BaseException) -> str:
            text = plain(self)
            request_id = self.__dict__.get(MARK)
            return text if request_id is None or request_id in text else f"{text} (request {request_id})".strip()

        _changed[cls] = cls.__dict__.get("__str__")
        cls.__str__ = __str__  # type: ignore[method-assign, assignment]
