"""Wraps attributes and restores the originals by identity."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

Wrapper = Callable[[Any, Any, Any, Any], Any]
"""wrapt's signature: (wrapped, instance, args, kwargs)."""

_MISSING = object()


def require(value: object, *names: str) -> None:
    """Check, while installing, what will be used later in the agent's calls. Raises: AttributeError."""
    for name in names:
        if not hasattr(value, name):
            raise AttributeError(f"{type(value).__module__}.{type(value).__qualname__} has no {name!r}", obj=value)


class Patches:
    """The patches made so far, so that they can be undone; not thread-safe, used while installing."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self.beside = 0
        """How many more attributes a nested `Patches` has patched; one entry here undoes them all."""

    @property
    def total(self) -> int:
        """How many attributes are patched."""
        return len(self._undo) + self.beside

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Wrap `owner.name`. Raises: AttributeError if there is no such attribute."""
        # Not getattr: it binds, and would turn an inherited static or class method into a plain one
        places = owner.__mro__ if isinstance(owner, type) else (owner,)
        found: Any = next((vars(place)[name] for place in places if name in vars(place)), _MISSING)
        original = getattr(owner, name) if found is _MISSING else found
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, wrapt.FunctionWrapper(original, wrapper))

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`."""
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def mark(self) -> int:
        """The number of patches now, for `undo_to`."""
        return len(self._undo)

    def undo(self) -> None:
        """Restore everything, newest first; afterwards nothing is patched."""
        self.undo_to(0)

    def undo_libraries(self) -> None:
        """Restore everything except patches of Python itself."""
        kept = []
        while self._undo:
            found = self._undo.pop()
            if _is_of_python(found[0]):
                kept.append(found)
            else:
                _restore(*found)
        self._undo = kept[::-1]

    def undo_to(self, mark: int) -> None:
        """Restore everything patched after the mark, newest first."""
        while len(self._undo) > mark:
            _restore(*self._undo.pop())


def _restore(owner: Any, name: str, original: Any) -> None:
    if original is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def _is_of_python(owner: Any) -> bool:
    module = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", "")
    return str(module).partition(".")[0] in sys.stdlib_module_names
