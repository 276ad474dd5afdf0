"""The seams of one process: installed when their libraries are imported, undone together."""

from __future__ import annotations

import platform
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from wrapt import register_post_import_hook

from spanreplay.model import guard
from spanreplay.runtime.patch_groups import describe_missing
from spanreplay.runtime.patches import Patches
from spanreplay.seams import table as _table
from spanreplay.seams.table import Seam


@dataclass
class Status:
    """The state of one seam in this process: waiting, installed or failed."""

    seam: Seam
    state: str = "waiting"
    reason: str = "its library has not been imported"
    modules: list[str] = field(default_factory=list)
    patched: int = 0
    """The number of attributes that it has replaced."""


class InstalledSeams:
    """The seams of this process."""

    def __init__(
        self,
        on_failure: Callable[[Seam, Exception], None],
        names: Container[str] | None = None,
        table: Sequence[Seam] | None = None,
        *,
        is_replay: bool = False,
    ) -> None:
        """`table` defaults to the table of seams, with those of a replay; `names` selects its rows, by default all."""
        rows = (*(_table.REPLAYED if is_replay else ()), *_table.SEAMS) if table is None else table
        self._on_failure = on_failure
        self._patches = Patches()
        self._statuses = [Status(seam) for seam in rows if names is None or seam.name in names]
        self._is_active = True

    def register(self) -> None:
        """Hook the import of every library in the table; a library that is already loaded is patched now."""
        for status in self._statuses:
            for trigger in status.seam.triggers:
                register_post_import_hook(self._hook(status), trigger)

    def _hook(self, status: Status) -> Callable[[Any], None]:
        def hook(module: Any) -> None:
            if not self._is_active:
                return
            mark, total = self._patches.mark(), self._patches.total
            try:
                import_module(status.seam.implementation).install(module, self._patches)
            except Exception as exc:  # noqa: BLE001 -- another library's shape; reported, never raised into its import
                self._patches.undo_to(mark)  # half a seam would disturb the agent
                status.state, status.reason = "failed", f"{type(exc).__name__}: {exc}"
                self._on_failure(status.seam, exc)
            else:
                if status.state != "failed":  # if one of several modules can't be patched, the failure is reported
                    status.state, status.reason = "installed", ""
                status.modules.append(module.__name__)
                status.patched += self._patches.total - total

        return hook

    def uninstall(self) -> None:
        """Restore every original by identity; libraries imported later stay unpatched."""
        self._is_active = False
        self._patches.undo()

    def let_go(self) -> None:
        """Restore the libraries at the end of the process, so that their own checks find everything as it was.

        nanobind lists on standard error every object of a library that is still referenced.
        """
        self._is_active = False
        self._patches.undo_libraries()

    def count(self) -> dict[str, int]:
        """Return the number of attributes that each installed seam has patched."""
        return {s.seam.name: s.patched for s in self._statuses if s.state == "installed"}

    def describe(self) -> list[dict[str, Any]]:
        """Return one row per seam, for `doctor`."""
        return [
            {
                "seam": s.seam.name,
                "library": s.seam.distribution,
                "version": _version(s.seam.distribution),
                "state": s.state if _version(s.seam.distribution) else "absent",
                "reason": s.reason if _version(s.seam.distribution) else "not installed",
                "records": s.seam.records,
            }
            for s in self._statuses
        ]


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    if distribution == "python":
        return platform.python_version()

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def name_library(seam: Seam) -> str:
    """Return a seam's library with its version."""
    name = "Python" if seam.distribution == "python" else seam.distribution
    return f"{name} {_version(seam.distribution)}".strip()


def log_failure(seam: Seam, exc: Exception) -> None:
    """Count the failure and report it once; used while recording."""
    why = describe_missing(exc)
    guard.report_missing(
        f"seam {seam.name}", f"{seam.name} can't be recorded: {name_library(seam)} is not as expected ({why})"
    )
