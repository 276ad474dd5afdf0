"""The other ends of the pipes of a program that a replay does not start."""

from __future__ import annotations

import os
from typing import Any

import pytest

from spanreplay.seams.machine.processes.replayed import _Talk


class _Given:
    """Keeps a program's input."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Keep a piece."""
        self.pieces.append(piece)

    def is_as_recorded(self) -> bool:
        """Yes."""
        return True


def test_n2_only_the_thread_that_polls_an_input_closes_it() -> None:
    """The thread would poll whatever gets the number next, and keep it open: the agent waited for its end forever."""
    source, agents = os.pipe()
    given: Any = _Given()
    talk = _Talk(source, {}, given)
    os.write(agents, b"the input")
    os.close(agents)
    talk._take()  # the agent's thread, which compares the input
    talk._take()
    os.fstat(source)
    talk._go_on()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(source)
    assert given.pieces == [b"the input"]
