"""A call's arguments by name."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import pytest

from spanreplay.codec import call_arguments


def pay(amount: int, to: str = "acme", *more: int, note: str | None = None, **extra: Any) -> None:
    """A function with every kind of parameter."""


class Till:
    """Has a method, a class method and is callable."""

    def pay(self, amount: int, to: str = "acme") -> None:
        """A method."""

    @classmethod
    def refund(cls, amount: int) -> None:
        """A class method."""

    def __call__(self, amount: int) -> None:
        """The call."""


class Mute:
    """A callable without a signature."""

    __signature__ = "none"

    def __call__(self, *args: Any) -> None:
        """The call."""


SPELLINGS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((5,), {}),
    ((), {"amount": 5}),
    ((5, "acme"), {}),
    ((5,), {"note": None, "to": "acme"}),
]


@pytest.mark.parametrize(("args", "kwargs"), SPELLINGS, ids=["positional", "named", "default_given", "all_named"])
def test_arguments_of_one_call_are_the_same_however_spelled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """f(5), f(amount=5) and f(5, 'acme') are one request."""
    assert call_arguments(pay, args, kwargs) == {"amount": 5, "to": "acme", "note": None}


def test_arguments_keep_the_variable_ones() -> None:
    """Extra positional and named arguments are stored under their parameter's name."""
    named = call_arguments(pay, (1, "b", 2, 3), {"x": 4})
    assert named == {"amount": 1, "to": "b", "more": [2, 3], "note": None, "extra": {"x": 4}}


def test_arguments_leave_out_what_is_excluded() -> None:
    """Injected parameters are left out of the request, whether named or among the extras."""
    named = call_arguments(pay, (1,), {"callbacks": object(), "note": "n"}, exclude={"callbacks", "note"})
    assert named == {"amount": 1, "to": "acme"}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Till().pay, {"amount": 1, "to": "acme"}),
        (Till.refund, {"amount": 1}),
        (Till(), {"amount": 1}),
        (functools.partial(pay, to="b"), {"amount": 1, "to": "b", "note": None}),
        (inspect.signature(pay), {"amount": 1, "to": "acme", "note": None}),
    ],
    ids=["method", "class_method", "callable", "partial", "signature"],
)
def test_arguments_of_any_callable(function: Any, expected: dict[str, Any]) -> None:
    """Methods (without their self), callables, partials and signatures all work."""
    assert call_arguments(function, (1,), {}) == expected


class Query:
    """Query whose truth test would send it to the database."""

    def __bool__(self) -> bool:
        raise AssertionError("asked for its truth")


def test_s36_arguments_are_not_asked_for_their_truth() -> None:
    """A data frame has no truth value, and a lazy query would be run to find it."""
    frame, query = np.ones(2), Query()
    named = call_arguments(pay, (frame, query), {"note": query, "x": query})
    assert named["amount"] is frame
    assert named == {"amount": frame, "to": query, "note": query, "extra": {"x": query}}


def test_arguments_that_do_not_fit_are_kept_as_given() -> None:
    """A call that will fail anyway, or whose function has no signature, keeps its arguments by position."""
    assert call_arguments(pay, (), {"to": "b"}) == {"args": [], "kwargs": {"to": "b"}}
    assert call_arguments(Mute(), ([1], 2), {}) == {"args": [[1], 2], "kwargs": {}}
