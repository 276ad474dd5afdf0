"""Files read through descriptors, the first step of memory mapping and locking, are inputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

AGENT: Final = """
import mmap, os, sys
from spanreplay import boundary

@boundary("tool", effect="read")
def ask():
    return 1

def mapped(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as found:
            return bytes(found)
    finally:
        os.close(descriptor)

def read(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()

def attempt(path):
    try:
        return read(path)
    except OSError as exc:
        return str(exc)

ask()
print(globals()[sys.argv[1]](sys.argv[2]))
"""


@pytest.fixture
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file outside the agent's code."""
    path = tmp_path_factory.mktemp("data") / "index"
    path.write_bytes(b"as it was")
    return path


@pytest.mark.parametrize("way", ["mapped", "read"])
def test_n14_what_is_read_by_a_descriptor_is_what_it_was(workplace: Workplace, data: Path, way: str) -> None:
    """A changed or deleted file is read as recorded, and a replay leaves it as it is."""
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent, way, str(data))
    assert workplace.recording().completeness().is_complete, workplace.recording().completeness().reasons
    data.write_bytes(b"as it is now, which is longer")
    changed = workplace.replay(agent, way, str(data))
    assert (changed.verdict["verdict"], changed.stdout) == ("identical", recorded.stdout), changed.stderr
    assert data.read_bytes() == b"as it is now, which is longer"
    data.unlink()
    gone = workplace.replay(agent, way, str(data))
    assert (gone.verdict["verdict"], gone.stdout) == ("identical", recorded.stdout), gone.stderr
    assert not data.exists()


def test_n14_a_file_that_was_not_there_is_not_there(workplace: Workplace, data: Path) -> None:
    """The operating system's error is the same, even though the file has been created since."""
    agent = workplace.write("agent.py", AGENT)
    data.unlink()
    recorded = workplace.record(agent, "attempt", str(data))
    assert "No such file" in recorded.stdout
    data.write_bytes(b"made since")
    replayed = workplace.replay(agent, "attempt", str(data))
    assert (replayed.verdict["verdict"], replayed.stdout) == ("identical", recorded.stdout), replayed.stderr


def test_n14_a_pipe_is_not_read_to_be_recorded(workplace: Workplace, data: Path) -> None:
    """Opening a named pipe to read it would block until a writer comes."""
    agent = workplace.write("agent.py", AGENT.replace("os.O_RDONLY | os.O_CLOEXEC", "os.O_RDONLY | os.O_NONBLOCK"))
    data.unlink()
    os.mkfifo(data)
    assert workplace.record(agent, "read", str(data)).stdout == "b''\n"
