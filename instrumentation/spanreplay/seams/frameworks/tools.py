"""Common parts of the framework seams: a tool's declared effect, and functions of any kind as a boundary."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.declared import wrap_function
from spanreplay.runtime.calls.function_calls import FunctionCall

_EFFECTS: Final = frozenset(each.value for each in Effect)
_BOUND: Final = "_spanreplay_leaf"
Describe = Callable[[tuple[Any, ...], dict[str, Any]], FunctionCall]
"""Makes a FunctionCall from the arguments of a call."""


def declared_effect(metadata: Any) -> str:
    """Return the effect that a tool's metadata declares; without one, the tool may write."""
    declared = metadata.get("effect", "") if isinstance(metadata, Mapping) else ""
    return declared if declared in _EFFECTS else Effect.WRITE.value


def provider_id(call_id: Any, *made_up: str) -> str:
    """Return the model's ID of a tool call; '' for an ID that the framework made up, with one of these prefixes."""
    shown = str(call_id or "")
    return "" if made_up and shown.startswith(made_up) else shown


def is_of(thing: Any, packages: tuple[str, ...]) -> bool:
    """Whether a function, method or class is defined in one of these packages or modules."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    module = str(getattr(thing, "__module__", ""))
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def bind_function_call(
    owner: Any, name: str, describe: Describe, wrap: Callable[[Any, Describe], Any] = wrap_function
) -> None:
    """Make the function in `owner.name` a boundary, whatever kind of function it is; once.

    `wrap` makes a boundary of a function that is not a generator. The wrapper stays when the seam is uninstalled:
    without an active run it only calls the function.
    """
    function = getattr(owner, name)
    if function is None or getattr(function, _BOUND, False):
        return
    innermost = inspect.unwrap(function)
    is_generator = inspect.isgeneratorfunction(innermost) or inspect.isasyncgenfunction(innermost)
    bound: Any = wrap_function(function, describe) if is_generator else wrap(function, describe)
    setattr(bound, _BOUND, True)
    setattr(owner, name, bound)
