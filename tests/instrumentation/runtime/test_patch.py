"""Patches: everything that is wrapped becomes the very same object again."""

from __future__ import annotations

import types
from typing import Any

import pytest

from spanreplay.runtime.patches import Patches


class Base:
    """A class with methods to patch."""

    def method(self) -> str:
        """Plain method."""
        return "method"

    @staticmethod
    def static() -> str:
        """Static method."""
        return "static"

    @classmethod
    def of_class(cls) -> str:
        """Class method."""
        return cls.__name__


class Child(Base):
    """A class that inherits everything."""


def _loudly(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return f"{wrapped(*args, **kwargs)}!"


@pytest.mark.parametrize("owner", [Base, Child], ids=["defined", "inherited"])
@pytest.mark.parametrize(("name", "plain"), [("method", "method"), ("static", "static"), ("of_class", None)])
def test_every_sort_of_method_is_wrapped_and_restored(owner: type[Base], name: str, plain: str | None) -> None:
    """Plain, static and class methods, also inherited ones, work while wrapped, and are restored by identity."""
    before = vars(owner).get(name)
    patches = Patches()
    patches.wrap(owner, name, _loudly)
    assert getattr(owner(), name)() == f"{plain or owner.__name__}!"
    patches.undo()
    assert vars(owner).get(name) is before
    assert getattr(owner(), name)() == (plain or owner.__name__)


def test_wrapping_twice_is_undone_in_turn() -> None:
    """Patches of one attribute are undone newest first, back to the original."""
    module = types.ModuleType("m")
    module.f = f = lambda: "f"  # type: ignore[attr-defined]  # a module is made of attributes
    patches = Patches()
    for _ in range(3):
        patches.wrap(module, "f", _loudly)
    assert module.f() == "f!!!"
    patches.undo()
    assert module.f is f
    patches.undo()
    assert module.f is f


def test_missing_attribute_is_refused_and_nothing_is_left() -> None:
    """A library without the attribute raises AttributeError, and stays unchanged."""
    patches = Patches()
    with pytest.raises(AttributeError):
        patches.wrap(Base, "no_such_method", _loudly)
    patches.undo()
    assert not hasattr(Base, "no_such_method")


def test_replaced_attribute_of_an_instance_is_removed() -> None:
    """A patch put on an instance is removed, so that the class's attribute is visible again."""
    one = Base()
    patches = Patches()
    patches.replace(one, "method", lambda: "other")
    assert one.method() == "other"
    patches.undo()
    assert "method" not in vars(one)
    assert one.method() == "method"
