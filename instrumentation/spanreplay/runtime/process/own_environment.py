"""The variables of a process that is recorded: all are its own; a replay's are in its session."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spanreplay.runtime.process.uses import Uses


class OwnEnvironment:
    """An environment to which nothing was added; see `RecordedEnvironment`."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def withhold(self, environ: Any) -> Any:
        """None: a program inherits the environment unchanged."""
        return None

    def find_in_request(self, url: str, headers: Iterable[tuple[str, str]]) -> Uses | None:
        """None."""
        return None

    def set_aside(self) -> Any:
        """A block without effect."""
        return nullcontext()

    def read_file(self, path: str) -> None:
        """No-op: its variables were not provided in any other way."""
