"""State that a framework keeps and a tool may change: plain data (a session's state, an event's actions)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, Protocol

from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.seams.frameworks.functions import Changed

_UNKNOWN: Final[Any] = object()


class PlainState(Protocol):
    """State that a tool can reach; a `State` whose methods are synchronous."""

    def copy(self) -> Any:
        """Return the present state as independent data."""

    def restore(self, value: Any) -> None:
        """Restore, in place, the state that `copy` returned."""


class DictState:
    """A dictionary that the framework hands out."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held

    def copy(self) -> Any:
        """A copy of the dictionary."""
        return copy.deepcopy(self._held)

    def restore(self, value: Any) -> None:
        """Replace the content."""
        self._held.clear()
        self._held.update(value)


class Waiting:
    """Adapts a PlainState to the State that a coroutine's call takes."""

    def __init__(self, state: PlainState) -> None:
        self._state = state

    async def read(self) -> Any:
        """Return a copy of the state."""
        return self._state.copy()

    async def write(self, value: Any) -> None:
        """Restore the state."""
        self._state.restore(value)


def _copy(state: PlainState) -> Any:
    try:
        return state.copy()
    except Exception:  # noqa: BLE001 -- not plain data after all: its changes are not recorded
        return _UNKNOWN


def call_sync_with_state(function_call: FunctionCall, live: Callable[[], Any], state: PlainState) -> Any:
    """Run or serve a synchronous call together with its changes of a state."""
    is_live = False

    def watched() -> Any:
        nonlocal is_live
        is_live = True
        before = _copy(state)
        result = live()
        after = _copy(state)
        is_same = before is _UNKNOWN or after is _UNKNOWN or before == after
        return result if is_same else Changed(result, after)

    outcome = call_sync(lambda: function_call, watched)
    if not isinstance(outcome, Changed):
        return outcome
    if not is_live:
        state.restore(outcome.state)
    return outcome.result
