"""The call that a running task gives to a thread of its event loop library."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run


class Offloaded(Protocol):
    """A call that a thread makes."""

    run: Run
    is_placed: bool
    """Whether the call has been assigned a thread."""

    @property
    def lane(self) -> str:
        """The path of its lane."""

    def place(self) -> None:
        """In a replay, note that the call has been assigned a thread."""

    def __call__(self, *args: Any) -> Any:
        """Make the call."""


placing: Final[contextvars.ContextVar[Offloaded | None]] = contextvars.ContextVar("spanreplay_placing", default=None)
"""The call that the running task gives to a thread."""
