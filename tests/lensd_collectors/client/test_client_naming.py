"""The id stands in `str(error)` once, whatever the error; type and arguments stay; forgotten, the classes are as they were."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.client.failures import kind_of
from lensd_collectors.client.naming import forget, name_request

ID = "4bf92f3577b34da6a3ce929d0e0e4736"


class Plain(Exception):
    pass


class Below(Plain):
    pass


class Spoken(OSError):
    def __str__(self) -> str:
        return f"spoken {self.args}"


class BelowSpoken(Spoken):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot say")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget()


@given(st.sampled_from([Plain, Below, Spoken, BelowSpoken]), st.lists(st.text() | st.integers() | st.none(), max_size=3), st.integers(1, 3))
def test_errors_that_classes_make(cls: type[Exception], args: list[Any], times: int) -> None:
    error, before = cls(*args), str(cls(*args))
    for _ in range(times):
        name_request(error, ID)
    assert type(error) is cls
    assert error.args == cls(*args).args
    assert str(error).count(ID) == 1
    assert str(error).startswith(before)
    assert str(cls(*args)) == before, "other errors of the class are as ever"


@pytest.mark.parametrize("order", [(Plain, Below), (Below, Plain), (Spoken, BelowSpoken), (BelowSpoken, Spoken)])
def test_a_class_and_the_one_above_it_in_either_order(order: tuple[type[Exception], ...]) -> None:
    own = [("__str__" in vars(cls), cls.__str__) for cls in order]
    for cls in order:
        name_request(error := cls("x"), ID)
        assert str(error).count(ID) == 1
    forget()
    assert [("__str__" in vars(cls), cls.__str__) for cls in order] == own


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), TimeoutError("timed out"), ConnectionResetError(104, "Connection reset by peer"), ValueError("a", 2), KeyError("k")],
    ids=repr,
)
def test_errors_of_pythons_own(error: Exception) -> None:
    kind = type(error)
    name_request(error, ID)
    name_request(error, ID)
    assert type(error) is kind
    assert str(error).count(ID) == 1


def test_an_error_that_cannot_speak_stays_silent() -> None:
    name_request(Mute(), ID)


def test_a_cancellation_keeps_its_text_and_has_a_note() -> None:
    error = asyncio.CancelledError("by scope 7")
    name_request(error, ID)
    assert error.args == ("by scope 7",)
    assert ID in error.__notes__[0]


def chained(outer: Exception, *causes: Exception) -> Exception:
    error = outer
    for cause in causes:
        error.__cause__, error = cause, cause
    return outer


def named(name: str, *bases: type) -> Exception:
    return type(name, bases or (Exception,), {})()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (chained(named("APITimeoutError"), named("ReadTimeout")), "read_timeout"),
        (chained(named("APITimeoutError"), named("ConnectTimeout")), "connect_timeout"),
        (chained(named("APIConnectionError"), named("ConnectError"), ConnectionRefusedError()), "connection_refused"),
        (Exception(named("ReadTimeoutError")), "read_timeout"),
        (
            chained(named("NewConnectionError", type("ConnectTimeoutError", (Exception,), {})), ConnectionRefusedError()),
            "connection_refused",
        ),
        (TimeoutError(), "timeout"),
        (chained(TimeoutError(), asyncio.CancelledError()), "timeout"),  # type: ignore[arg-type]
        (asyncio.CancelledError(), "cancelled"),
        (ValueError("x"), "ValueError"),
    ],
)
def test_what_an_error_comes_to(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_errors_that_go_in_circles_end() -> None:
    error = ValueError()
    error.__cause__ = error
    assert kind_of(error) == "ValueError"
