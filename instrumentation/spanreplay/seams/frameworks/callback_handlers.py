"""What LangChain's callback handlers count and collect while a tool's body works: tokens of models that it asks.

A replay does not run the body, so no handler hears of the models in it. What a body has changed in the handlers is part
of the tool's recorded result. Handlers that trace runs are left alone: they report, and the agent does not read them.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from spanreplay.runtime.caller.caller import FOREIGN, classify
from spanreplay.seams.frameworks.functions import find_members, text_of

__all__ = ["HandlerState", "watch"]

_CONFIG: Final = "langchain_core.runnables.config"
_TRACERS: Final = ("run_map", "runs", "order_map")
"""Members of handlers that keep a tree of runs."""


def _find_handlers() -> list[Any]:
    """Return the handlers that hear of what the running tool does, except those that trace."""
    module = sys.modules.get(_CONFIG)
    variable = getattr(module, "var_child_runnable_config", None)
    config = None if variable is None else variable.get()
    manager = config.get("callbacks") if isinstance(config, dict) else None
    found = getattr(manager, "inheritable_handlers", None) or ()
    return [each for each in found if _is_read(each)]


def _is_read(handler: Any) -> bool:
    if any(hasattr(handler, name) for name in _TRACERS):
        return False
    module = sys.modules.get(type(handler).__module__)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and classify(file) != FOREIGN


def watch() -> HandlerState | None:
    """Return what to watch around the body of the running tool; None without such handlers."""
    found = _find_handlers()
    return HandlerState(found) if found else None


class HandlerState:
    """The state of handlers around the body of a tool."""

    def __init__(self, handlers: list[Any]) -> None:
        self.has_begun = False
        self._handlers = handlers
        self._before: dict[str, str] = {}

    def _read(self) -> dict[str, Any]:
        return {
            f"{number}.{name}": value
            for number, handler in enumerate(self._handlers)
            for name, value in find_members(handler).items()
        }

    def begin(self) -> None:
        """Keep what the handlers hold before the body runs."""
        self.has_begun = True
        self._before = {key: text_of(value) for key, value in self._read().items()}

    def end(self) -> dict[str, Any]:
        """Return the members that the body has changed."""
        now = ((key, value, text_of(value)) for key, value in self._read().items())
        return {key: value for key, value, text in now if text and text != self._before.get(key)}

    def restore(self, changed: dict[str, Any]) -> None:
        """Set the members that the body had changed."""
        for key, value in changed.items():
            number, _, name = key.partition(".")
            setattr(self._handlers[int(number)], name, value)
