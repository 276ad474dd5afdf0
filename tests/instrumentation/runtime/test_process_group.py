"""The process group: state that the processes of one run share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from spanreplay.runtime.processes import ProcessGroup


@pytest.fixture
def shared() -> Iterator[ProcessGroup]:
    """The process group of a run, as its first process sees it."""
    process_group = ProcessGroup.make(0)
    yield process_group
    process_group.close()


def test_n3_fork_that_has_not_joined_does_not_speak_for_its_parent(shared: ProcessGroup) -> None:
    """A new fork can reach its parent's slot but must not change it: the parent waits, and is not at work."""
    shared.state_working(0)
    child = os.fork()
    if child == 0:
        shared.state_working(1)
        os._exit(0)
    os.waitpid(child, 0)
    other = ProcessGroup(shared.folder, number=1)
    assert other.count_others_working() == 0
    other.close()
