"""Files in the replay of a unit: what its process writes beside the unit is not part of the unit's results.

A program that has started a server goes on running, and so do its tasks and threads; how far they get while the unit is
replayed depends on the machine. Their writes belong to the process, in the recording and in the replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spanreplay.runtime.lanes import current_lane

if TYPE_CHECKING:
    from spanreplay.runtime.contributors import Files
    from spanreplay.runtime.run import Run


class FilesBeside:
    """The files of the caller: the unit's, or those of the code that runs beside it; both have the same members."""

    def __init__(self, run: Run, of_unit: Files, beside: Files, is_outside: Callable[[str], bool]) -> None:
        """`is_outside` says whether a lane with the given name runs beside the unit."""
        self.beside = beside
        self._run = run
        self._of_unit = of_unit
        self._is_outside = is_outside

    def __getattr__(self, name: str) -> Any:
        is_outside = self._is_outside(current_lane(self._run.root_lane).path)
        return getattr(self.beside if is_outside else self._of_unit, name)

    def list_code_read(self) -> list[str]:
        """Return the files of the code tree that the unit has read, then those that the rest of its process has."""
        return [*dict.fromkeys((*self._of_unit.list_code_read(), *self.beside.list_code_read()))]

    def describe(self) -> dict[str, Any]:
        """Describe the files that the unit has left behind, whoever calls."""
        return self._of_unit.describe()
