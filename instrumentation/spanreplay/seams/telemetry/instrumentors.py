"""Keeps off standard error the messages of OpenTelemetry's instrumentors that a run without them would not print.

`opentelemetry-instrument` loads every installed instrumentor. Nobody asked for the one that fails to load, and a
library that instruments something itself (`ThreadingInstrumentor().instrument()`) assumes that it is the first to do
so. Whatever the agent, or one of its libraries, instruments itself logs and exports as it would without us.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import warnings
from types import FrameType
from typing import Any, Final, NamedTuple

import wrapt.patches

from spanreplay.model import guard, ids
from spanreplay.runtime.caller import caller
from spanreplay.runtime.patches import Patches

_FRAMES_MAX: Final = 60
_OWN: Final = "spanreplay"
_OPENTELEMETRY: Final = "opentelemetry"
_MISSING: Final = object()


class _Wrapped(NamedTuple):
    """An attribute that an instrumentor has replaced."""

    owner: Any
    name: str
    before: Any
    now: Any

    def is_on_top(self) -> bool:
        """Whether nobody else has replaced it since."""
        return vars(self.owner).get(self.name, _MISSING) is self.now

    def restore(self) -> None:
        """Put back what was there, unless that has happened or somebody else has wrapped it since."""
        if not self.is_on_top():
            return
        if self.before is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


class Instrumentors:
    """The instrumentors of one process that were loaded unasked. Installed before they are."""

    def __init__(self) -> None:
        self._is_loading = True
        self._unasked: dict[type, Any] = {}
        self._wrapped: dict[type, list[_Wrapped]] = {}
        self._loaded_now: list[type] = []
        self._folders: tuple[str, ...] = ()
        self._loggers: frozenset[str] = frozenset()

    def install(self, patches: Patches) -> None:
        """Observe instrumentations, what they wrap, log records and warnings."""
        from opentelemetry.instrumentation import instrumentor

        self._patch_instrument(patches, vars(instrumentor)["BaseInstrumentor"])  # which it does not export
        self._patch_logs(patches)
        self._patch_warnings(patches)
        self._patch_wrapping(patches)

    def loaded(self) -> None:
        """Note that every instrumentor is loaded; from now on the agent runs."""
        self._is_loading = False

    def _patch_instrument(self, patches: Patches, cls: Any) -> None:
        real = cls.instrument

        def instrument(instrumentor: Any, **kwargs: Any) -> Any:
            kind = type(instrumentor)
            if self._is_loading:
                self._unasked[kind] = instrumentor
                guard.guarded("instrumentors", self._describe)
                self._loaded_now.append(kind)
                try:
                    return real(instrumentor, **kwargs)
                finally:
                    self._loaded_now.pop()
            elif kind in self._unasked:
                # The provider and the options are the agent's from here on, not those that it was loaded with
                guard.guarded("instrumentors", self._take_out, kind)
                guard.guarded("instrumentors", self._describe)
                if getattr(instrumentor, "_is_instrumented_by_opentelemetry", False):
                    return None
            return real(instrumentor, **kwargs)

        instrument.__qualname__, instrument.__doc__ = real.__qualname__, real.__doc__
        patches.replace(cls, real.__name__, instrument)

    def _patch_wrapping(self, patches: Patches) -> None:
        """Note what instrumentors wrap while they are loaded: their own undoing leaves out some or all of it."""
        real = wrapt.patches.apply_patch

        def apply_patch(parent: Any, attribute: str, replacement: Any) -> None:
            before = getattr(parent, "__dict__", {}).get(attribute, _MISSING)
            real(parent, attribute, replacement)
            if self._loaded_now and getattr(parent, "__dict__", {}).get(attribute) is replacement:
                found = self._wrapped.setdefault(self._loaded_now[-1], [])
                found.append(_Wrapped(parent, attribute, before, replacement))

        patches.replace(wrapt.patches, "apply_patch", apply_patch)

    def take_out_unasked(self) -> None:
        """Undo every instrumentor that nobody asked for, the last first; no-op while they are loaded."""
        if not self._is_loading:
            for kind in reversed(tuple(self._unasked)):
                guard.guarded("instrumentors", self._take_out, kind)
            guard.guarded("instrumentors", self._describe)

    def _take_out(self, kind: type) -> None:
        instrumentor, wrapped = self._unasked.pop(kind), self._wrapped.pop(kind, [])
        # An instrumentor that can't be taken out would, if applied twice, create every span twice
        is_undone_here = bool(wrapped) and all(found.is_on_top() for found in wrapped)
        if getattr(instrumentor, "_is_instrumented_by_opentelemetry", False) and (_can_undo(kind) or is_undone_here):
            instrumentor.uninstrument()
        for found in reversed(wrapped):
            found.restore()

    def _describe(self) -> None:
        """Find the folders of the unasked instrumentors' code, and the names of their loggers."""
        packages = {kind.__module__ for kind in self._unasked}
        self._folders = tuple(filter(None, map(_find_folder, packages)))
        self._loggers = frozenset({_OPENTELEMETRY, *(name.partition(".")[0] for name in packages)})

    def _patch_logs(self, patches: Patches) -> None:
        real = logging.Logger.handle

        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            top = record.name.partition(".")[0]
            if top == _OWN or not (self._is_loading or (top in self._loggers and self._is_theirs(sys._getframe(1)))):
                real(logger, record)

        caller.between.add(handle.__code__)  # the stack tells who logs
        patches.replace(logging.Logger, "handle", handle)

    def _is_theirs(self, frame: FrameType | None) -> bool:
        """Whether code of an unasked instrumentor complains here, or OpenTelemetry does so about it."""
        for _ in range(_FRAMES_MAX):
            if frame is None:
                return False
            filename = frame.f_code.co_filename
            if filename.startswith(self._folders):
                return True
            top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if not (ids.is_stdlib_file(filename) or filename == __file__ or top in self._loggers):
                return False
            frame = frame.f_back
        return False

    def _patch_warnings(self, patches: Patches) -> None:
        real = warnings.showwarning

        def showwarning(
            message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
        ) -> None:
            if not self._is_loading and not (self._folders and filename.startswith(self._folders)):
                real(message, category, filename, lineno, file, line)

        patches.replace(warnings, "showwarning", showwarning)


def _can_undo(kind: Any) -> bool:
    """Whether an instrumentor's own `_uninstrument` does anything; some are empty."""
    code = getattr(kind._uninstrument, "__code__", None)
    return code is None or bool(code.co_names or code.co_freevars)


def _find_folder(module: str) -> str:
    """The folder of a package with a trailing separator, or the file of a module; '' if unknown."""
    spec = getattr(sys.modules.get(module), "__spec__", None) or importlib.util.find_spec(module)
    if spec is None:
        return ""
    if spec.submodule_search_locations:
        return next(iter(spec.submodule_search_locations)) + os.sep
    return str(spec.origin or "")
