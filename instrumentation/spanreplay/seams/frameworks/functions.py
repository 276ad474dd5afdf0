"""The user's function inside a framework's tool object, as a boundary.

The attribute is patched only for reads by those methods of the framework that call the function; other code gets the
original function. So tools made before the seam was installed are covered too, and the framework's callbacks, error
handling and formatting run for real.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from spanreplay import codec
from spanreplay.model import guard
from spanreplay.model.errors import Unserializable
from spanreplay.model.json_text import dump
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync, with_call
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run

Describe = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], "FunctionCall | None"]
"""Returns the call for (tool, function, args, kwargs); None for a function that is the framework's own control flow."""
_MISSING: Final = object()
_WHOLE: Final = ""
"""In a snapshot: the state as a whole."""


class State(Protocol):
    """An object of the agent's that a tool receives and may change: its final content is part of the tool's result."""

    async def read(self) -> Any:
        """Return the object's present content."""

    async def write(self, value: Any) -> None:
        """Set the object's content."""


@dataclasses.dataclass(frozen=True)
class Changed:
    """A recorded result of a tool that also changed the state that it received."""

    result: Any
    state: Any


@dataclasses.dataclass(frozen=True)
class Members:
    """The members of a state that a tool changed, where others (a client, a lock) can't be recorded."""

    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Several:
    """What a tool made of several states, by their number."""

    states: dict[str, Any]


class ObjectState(State):
    """An object of the agent's that a framework hands to each tool."""

    def __init__(self, held: Any) -> None:
        self._held = held

    async def read(self) -> Any:
        """Return the object itself: it is encoded immediately."""
        return self._held

    async def write(self, value: Any) -> None:
        """Give the object the content of another object of its class, or some members."""
        held = self._held
        if isinstance(value, Members):
            for name, member in value.values.items():
                if isinstance(held, dict):
                    held[name] = member
                else:
                    object.__setattr__(held, name, member)
        elif isinstance(held, dict):
            held.clear()
            held.update(value)
        elif isinstance(held, list):
            held[:] = value
        elif dataclasses.is_dataclass(held):
            for field in dataclasses.fields(held):
                object.__setattr__(held, field.name, getattr(value, field.name))
        else:
            vars(held).update(vars(value))


class FunctionAttribute:
    """A data descriptor for an attribute that holds a function; `callers` are names of functions of its module."""

    def __init__(
        self,
        owner: type,
        name: str,
        callers: frozenset[str],
        describe: Describe,
        *,
        is_async: bool,
        state_of: Callable[[Any, tuple[Any, ...], dict[str, Any]], State | None] | None = None,
    ) -> None:
        self._name = name
        self._module = owner.__module__
        self._callers = callers
        self._describe = describe
        self._is_async = is_async
        self._state_of = state_of
        self._default = getattr(owner, name, _MISSING)

    def __get__(self, tool: Any, owner: Any = None) -> Any:
        function = self._default if tool is None else tool.__dict__.get(self._name, self._default)
        if function is _MISSING:
            raise AttributeError(self._name)
        if tool is None or function is None or active_run() is None:
            return function
        caller = sys._getframe(1)
        if caller.f_code.co_name not in self._callers or caller.f_globals.get("__name__") != self._module:
            return function
        return (self._make_async if self._is_async else self._make_sync)(tool, function)

    def __set__(self, tool: Any, value: Any) -> None:
        tool.__dict__[self._name] = value

    def __delete__(self, tool: Any) -> None:
        del tool.__dict__[self._name]

    def _make_sync(self, tool: Any, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            function_call = self._describe(tool, function, args, kwargs)
            if function_call is None:
                return function(*args, **kwargs)
            made = with_call(function_call, function, args, kwargs) if _may_amend() else function_call
            return call_sync(lambda: made, lambda: function(*args, **kwargs))

        return call

    def _make_async(self, tool: Any, function: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            function_call = self._describe(tool, function, args, kwargs)
            if function_call is None:
                return await function(*args, **kwargs)
            state = self._state_of(tool, args, kwargs) if self._state_of is not None else None
            if state is None and _may_amend():
                function_call = with_call(function_call, function, args, kwargs)
            return await call_with_state(function_call, lambda: function(*args, **kwargs), state)

        return call


def _may_amend() -> bool:
    run = active_run()
    return run is not None and run.resolver.may_amend


async def call_with_state(
    function_call: FunctionCall, live: Callable[[], Awaitable[Any]], *states: State | None
) -> Any:
    """Run or serve a call together with its changes of states."""
    held = [state for state in states if state is not None]
    if not held:
        return await call_async(lambda: function_call, live)

    is_live = False

    async def watched() -> Any:
        nonlocal is_live
        is_live = True
        before = [await _snapshot(state) for state in held]
        result = await live()
        changes = [await _find_change(state, there) for state, there in zip(held, before, strict=True)]
        if all(change is _MISSING for change in changes):
            return result
        if len(held) == 1:
            return Changed(result, changes[0])
        return Changed(result, Several({str(n): each for n, each in enumerate(changes) if each is not _MISSING}))

    outcome = await call_async(lambda: function_call, watched)
    if not isinstance(outcome, Changed):
        return outcome
    if not is_live:
        several = outcome.state.states if isinstance(outcome.state, Several) else {"0": outcome.state}
        for number, value in several.items():
            await held[int(number)].write(value)
    return outcome.result


async def _find_change(state: State, before: dict[str, str]) -> Any:
    """Return what the call has made of a state, or of its members; _MISSING if nothing of it has changed."""
    after = await _snapshot(state)
    if before == after:
        return _MISSING
    now = await state.read()
    if after.keys() == before.keys() == {_WHOLE}:
        return now
    changed = {name: member_of(now, name) for name, text in after.items() if name and before.get(name) != text}
    return Members(changed) if changed else _MISSING


async def _snapshot(state: State) -> dict[str, str]:
    """Return the state as text, under `_WHOLE`; by member where a part of it can't be encoded."""
    try:
        held = await state.read()
        try:
            return {_WHOLE: dump(codec.encode(held))}
        except Unserializable:
            return {name: text for name, value in find_members(held).items() if (text := text_of(value))}
    except Exception as exc:  # noqa: BLE001 -- the agent's own object; its exceptions must not reach the agent
        guard.report_failure("reading a tool's state", exc)
        return {}


def find_members(held: Any) -> dict[str, Any]:
    """Return the members of a state object: a dictionary's items, or an object's own attributes."""
    found = held if isinstance(held, dict) else getattr(held, "__dict__", {})
    if not isinstance(held, dict) and dataclasses.is_dataclass(held):  # it may have slots instead
        found = {field.name: getattr(held, field.name, None) for field in dataclasses.fields(held)}
    return {name: value for name, value in list(found.items()) if isinstance(name, str)}


def member_of(held: Any, name: str) -> Any:
    """Return one of `find_members`."""
    return held[name] if isinstance(held, dict) else getattr(held, name)


def text_of(value: Any) -> str:
    """Return the text of a value; '' if it can't be encoded."""
    try:
        return dump(codec.encode(value))
    except Unserializable:
        return ""


def wrap_attribute(
    owner: type,
    name: str,
    patches: Patches,
    *,
    callers: frozenset[str],
    describe: Describe,
    is_async: bool,
    state_of: Callable[[Any, tuple[Any, ...], dict[str, Any]], State | None] | None = None,
) -> None:
    """Make the function in `owner.name` a boundary when read by `callers`, functions of owner's module."""
    attribute = FunctionAttribute(owner, name, callers, describe, is_async=is_async, state_of=state_of)
    patches.replace(owner, name, attribute)
