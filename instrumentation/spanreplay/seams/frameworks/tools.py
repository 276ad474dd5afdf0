"""What the seams of frameworks share: what a tool declares of itself, and a function of any sort as a boundary."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.declared import wrap_function
from spanreplay.runtime.calls.function_calls import Leaf

_EFFECTS: Final = frozenset(each.value for each in Effect)
_BOUND: Final = "_spanreplay_leaf"
Describe = Callable[[tuple[Any, ...], dict[str, Any]], Leaf]
"""Makes a Leaf of the arguments of a call."""


def declared_effect(metadata: Any) -> str:
    """The effect that a tool's metadata names; a tool that names none may write."""
    declared = metadata.get("effect", "") if isinstance(metadata, Mapping) else ""
    return declared if declared in _EFFECTS else Effect.WRITE.value


def provider_id(call_id: Any, *made_up: str) -> str:
    """The id that the model gave a tool call; '' for one that the framework made up, with one of these prefixes."""
    shown = str(call_id or "")
    return "" if made_up and shown.startswith(made_up) else shown


def is_of(thing: Any, packages: tuple[str, ...]) -> bool:
    """Whether a function, method or class is defined in one of these packages or modules."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    module = str(getattr(thing, "__module__", ""))
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def bind_leaf(owner: Any, name: str, describe: Describe, wrap: Callable[[Any, Describe], Any] = wrap_function) -> None:
    """Make the function that `owner.name` holds a boundary, whatever sort of function it is; once.

    `wrap` makes a boundary of a function that is no generator. It stays one when the seam is uninstalled: without an
    active run it is the function itself that runs.
    """
    function = getattr(owner, name)
    if function is None or getattr(function, _BOUND, False):
        return
    innermost = inspect.unwrap(function)
    is_generator = inspect.isgeneratorfunction(innermost) or inspect.isasyncgenfunction(innermost)
    bound: Any = wrap_function(function, describe) if is_generator else wrap(function, describe)
    setattr(bound, _BOUND, True)
    setattr(owner, name, bound)
