"""The input of a program that a replay does not start, compared with the recorded input.

It is compared when the agent learns that the program has ended, otherwise when the run ends: by then the program has
used its input.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spanreplay import codec
from spanreplay.model import config, guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.process.noted_effects import sees_effects

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing

STDIN, IS_CUT = "stdin", "stdin_is_cut"


class Given:
    """The input of one program in a replay."""

    def __init__(self, crossing: Crossing, value: Mapping[str, Any]) -> None:
        self._crossing = crossing
        self._recorded = bytes(value.get(STDIN) or b"")
        self._is_cut = bool(value.get(IS_CUT))
        self._is_known = STDIN in value
        self._pieces: list[bytes] = []
        self._size = 0
        self._take: Callable[[], None] = lambda: None
        self._is_compared = False

    def follow(self, take: Callable[[], None]) -> None:
        """Have `take` add what has come by the time it is compared."""
        self._take = take
        self.wait()

    def add(self, piece: bytes) -> None:
        """Add a piece of input."""
        self._size += len(piece)
        if self._size <= config.BODY_BYTES_MAX:
            self._pieces.append(piece)

    def is_as_recorded(self) -> bool:
        """Whether the input so far is the beginning of the recorded one."""
        return self._recorded.startswith(b"".join(self._pieces))

    def wait(self) -> None:
        """Ensure that the input is compared at the end of the run at the latest."""
        run = self._crossing.run
        if self._is_known and sees_effects(run):
            run.resolver.on_stop(self.compare_late)

    def compare_late(self) -> None:
        """Compare at the end of the run. Notes a divergence."""
        guard.guarded("comparing what a program was given", functools.partial(self.compare, is_late=True))

    def compare(self, *, is_late: bool = False) -> None:
        """Note any difference. Raises: ReplayMiss, unless the plan serves changes or this is the end of the run."""
        run = self._crossing.run
        if self._is_compared or run.resolver.keeps:
            return
        session = run.resolver.answers
        self._is_compared = True
        self._take()
        now = b"".join(self._pieces)
        if not self._is_known or not sees_effects(run):
            return
        redacted = run.redactor.value({"value": codec.encode({STDIN: now})}, {})
        clean = bytes(codec.decode(redacted["value"])[STDIN])
        if self._is_cut:
            clean = clean[: len(self._recorded)]
        then, moved = self._recorded.decode("latin-1"), clean
        if session.relocation:
            moved = session.relocation.text_towards(then, clean.decode("latin-1")).encode("latin-1")
        if self._recorded not in (clean, moved):
            with contextlib.suppress(*((ReplayMiss,) if is_late else ())):
                session.check_sent(self._crossing, STDIN, _text(self._recorded), _text(clean))


def _text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")
