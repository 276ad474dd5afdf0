"""Watches for exceptions that show native code being denied a file by this replay, and notes them.

The kernel sends no other notice. `denied` interprets the exceptions; it isn't loaded until there is one.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.replayer.divergence import Divergence
from spanreplay.replayer.resolve.session import Session
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.last_error import find_last_error
from spanreplay.runtime.run import Run

if TYPE_CHECKING:
    from spanreplay.replayer.sandbox.denied import Denied

BOUNDARY: Final = "file:native"
HINT: Final = (
    "declare the function that writes it a boundary, or let its call go live in the plan; "
    "SPANREPLAY_SANDBOX=python lets native code write for real"
)

CONNECTS: Final = "socket:native"
HINT_OF_CONNECTIONS: Final = (
    "declare the function that asks the server a boundary, or let its call go live in the plan; "
    "SPANREPLAY_SANDBOX=python lets native code connect for real"
)


class NativeWrites:
    """Checks exceptions for files that this process was denied."""

    def __init__(self, session: Session, run: Run, free: tuple[str, ...]) -> None:
        """`free` are the folders in which nothing is denied."""
        self._session = session
        self._run = run
        self._free = free
        self._last: BaseException | None = None
        self._is_noted = False

    def install(self, patches: Patches) -> None:
        """Check where something first goes wrong: at the first divergence, and where a thread or the agent ends."""

        def end_thread(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            guard.guarded("what native code was denied", self._note, args[0].exc_value)
            return wrapped(*args, **kwargs)

        def leave(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            self._last = sys.exc_info()[1]
            return wrapped(*args, **kwargs)

        patches.wrap(threading, "excepthook", end_thread)
        patches.wrap(sys, "exit", leave)
        self._session.findings.on_first = self._look

    def _look(self) -> None:
        guard.guarded("what native code was denied", self._note, sys.exc_info()[1])

    def settle(self, status: int | None) -> None:
        """Note the exception that ended the agent, with this status, if it was denied a file."""
        recorded = self._session.recording.root.manifest.get("exit")
        is_other = not self._session.divergences and bool(status) and recorded not in (None, status)
        self._note(find_last_error() or self._last, is_nameless=is_other)

    def _note(self, exc: BaseException | None, *, is_nameless: bool = False) -> None:
        """Note a denial in an exception; `is_nameless` if it counts even without a file name."""
        if exc is None or self._is_noted:
            return
        from spanreplay.replayer.sandbox.denied import find_denied

        found = find_denied(exc, self._session, self._run, self._free, is_nameless=is_nameless)
        if found is not None:
            self._is_noted = True
            self._add(found)

    def _add(self, found: Denied) -> None:
        self._session.add_divergence(
            Divergence(
                kind="effect_blocked",
                boundary=CONNECTS if found.is_connection else BOUNDARY,
                message=found.message + (f" ({found.code})" if found.code else ""),
                lane=current_lane(self._run.root_lane).path,
                code=found.code,
                hint=HINT_OF_CONNECTIONS if found.is_connection else HINT,
            )
        )


def watch(session: Session, run: Run, patches: Patches) -> NativeWrites | None:
    """Detect what the kernel denies, if it guards the files of this replay."""
    if session.guard is None or session.guard.why:
        return None
    made = NativeWrites(session, run, session.guard.free)
    made.install(patches)
    return made
