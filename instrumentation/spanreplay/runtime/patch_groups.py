"""Groups of patches, each guarded separately.

If a version of Python or of a library has lost a private name, one group fails, not the whole recording: the group's
missing notes become a named hole of the run, and a line of `spanreplay doctor`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spanreplay.model import guard
from spanreplay.model.errors import ConfigError
from spanreplay.model.levels import FULL, Level
from spanreplay.runtime.patches import Patches

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

__all__ = ["PatchGroups", "describe_missing"]

_SHAPE = (AttributeError, ImportError, TypeError)


class PatchGroups:
    """The groups of one installation; those that could not be installed are in `missing`."""

    def __init__(self, run: Run | None, *, is_replay: bool, level: Level = FULL) -> None:
        self.missing: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        """How many attributes each group has patched."""
        self._level = level
        self._run = run
        self._is_replay = is_replay

    def install(self, name: str, patches: Patches, patch: Callable[..., object], *args: Any) -> None:
        """Call `patch(patches, *args)`, completely or not at all; no-op for a group that the level does not include.

        Raises: ConfigError in a replay, which fails closed.
        """
        if name not in self._level:
            return
        mark, total = patches.mark(), patches.total
        try:
            patch(patches, *args)
        except Exception as exc:
            patches.undo_to(mark)
            if self._is_replay:
                library = " ".join(_name_library(exc))
                raise ConfigError(f"{name} can't be replayed: {library} is not as expected ({exc})") from exc
            self._note(name, exc)
        else:
            self.counts[name] = patches.total - total

    def _note(self, name: str, exc: Exception) -> None:
        library, version = _name_library(exc)
        why = f"{library} {version} is not as expected ({describe_missing(exc)})"
        row = {"seam": name, "library": library.lower(), "version": version, "state": "failed"}
        self.missing.append({**row, "reason": describe_missing(exc), "records": ""})
        guard.report_missing(name, f"{name} can't be recorded: {why}")
        if self._run is not None:
            self._run.hole(f"{name} could not be recorded: {why}")


def _name_library(exc: Exception) -> tuple[str, str]:
    """The distribution whose object lacks a name, and its version; Python if none has the name of the module."""
    owner = getattr(exc, "obj", None)
    kind = owner if isinstance(owner, (type, ModuleType)) else type(owner)
    module = (exc.name or "") if isinstance(exc, ImportError) else getattr(kind, "__module__", kind.__name__)
    parts = module.split(".")
    for count in range(len(parts) if parts[0] not in sys.stdlib_module_names else 0, 0, -1):
        name = "-".join(parts[:count])
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    return "Python", platform.python_version()


def describe_missing(exc: Exception) -> str:
    """The unexpected finding, in one line without any of the agent's values."""
    return str(exc) if isinstance(exc, _SHAPE) else type(exc).__name__
