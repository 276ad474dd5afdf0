"""The variables of a process that is recorded: all are its own, and a replay's are in its session's."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spanreplay.runtime.process.uses import Uses


class OwnEnvironment:
    """Nothing was put into it; see `RecordedEnvironment`."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def withhold(self, environ: Any) -> Any:
        """None: a program is given what there is."""
        return None

    def find_in_request(self, url: str, headers: Iterable[tuple[str, str]]) -> Uses | None:
        """None."""
        return None

    def set_aside(self) -> Any:
        """A block like any other."""
        return nullcontext()

    def read_file(self, path: str) -> None:
        """No-op: what it sets is nowhere else."""
