"""Files in the replay of a unit: what its process writes beside it is none of what the unit leaves behind.

A program that has started a server goes on, and so do its tasks and threads; how far they come while the unit is
replayed is a matter of the machine. In the recording what they wrote is the process's, and in the replay too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spanreplay.runtime.lanes import current_lane

if TYPE_CHECKING:
    from spanreplay.runtime.contributors import Files
    from spanreplay.runtime.run import Run


class FilesBeside:
    """The files of whoever asks: the unit's, or those of what goes on beside it; both have the same members."""

    def __init__(self, run: Run, of_unit: Files, beside: Files, is_outside: Callable[[str], bool]) -> None:
        """`is_outside` says of the name of a lane whether it is beside the unit."""
        self.beside = beside
        self._run = run
        self._of_unit = of_unit
        self._is_outside = is_outside

    def __getattr__(self, name: str) -> Any:
        is_outside = self._is_outside(current_lane(self._run.root_lane).path)
        return getattr(self.beside if is_outside else self._of_unit, name)

    def describe(self) -> dict[str, Any]:
        """What the unit has left behind, whoever asks."""
        return self._of_unit.describe()
