"""Ids and places are unique whatever the agent seeds, and correct whatever it patches."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model import ids


def test_run_ids_are_uuids_of_version_7_and_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 hexadecimal characters with the version and variant of RFC 9562; a later one sorts later."""
    clock = iter([1_790_000_000_000_000_000, 1_790_000_000_001_000_000])
    monkeypatch.setattr(ids, "_now_ns", lambda: next(clock))
    one, two = ids.new_run_id(), ids.new_run_id()
    assert one < two
    for found in (one, two):
        assert len(found) == 32
        assert int(found[:12], 16) in (1_790_000_000_000, 1_790_000_000_001)
        assert found[12] == "7"
        assert found[16] in "89ab"


def test_ids_do_not_follow_a_seed() -> None:
    """An agent that seeds `random` still gets other ids each time, since a replay must not reuse the recording's."""
    seen = set()
    for _ in range(3):
        random.seed(1)
        seen.add((ids.new_run_id(), ids.new_span_id(), ids.new_trace_id()))
    assert len({part for each in seen for part in each}) == 9


def test_ids_leave_the_agents_random_numbers_alone() -> None:
    """Making ids takes nothing from the global generator."""
    random.seed(7)
    before = random.getstate()
    ids.new_run_id(), ids.new_span_id(), ids.new_trace_id()
    assert random.getstate() == before


FORKED = """
import os
from spanreplay.model import ids
ids.new_span_id()
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(write, repr([ids.new_span_id() for _ in range(3)]).encode())
    os._exit(0)
os.waitpid(pid, 0)
print([ids.new_span_id() for _ in range(3)])
print(os.read(read, 1000).decode())
"""


def test_forked_child_makes_other_ids() -> None:
    """Parent and child do not continue the same sequence."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=600)
    parent, child = done.stdout.splitlines()
    assert parent != child


def test_clocks_are_the_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen clock in the agent does not freeze the recording's."""
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    assert ids.now_ns() > 1_700_000_000_000_000_000
    assert ids.monotonic_ns() > 0


@pytest.mark.parametrize(
    ("filename", "is_agent"),
    [
        ("/home/me/agent.py", True),
        ("agent.py", True),
        ("<string>", True),
        (os.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        ("/x/site-packages/openai/client.py", False),
        ("/usr/lib/python3/dist-packages/six.py", False),
        (ids.__file__, False),
    ],
    ids=["path", "relative", "string", "stdlib", "frozen", "site", "dist", "ours"],
)
def test_agents_files_are_told_from_libraries(filename: str, is_agent: bool) -> None:
    """Files of the standard library, of installed packages and of spanreplay are not the agent's."""
    assert ids.is_agent_file(filename) is is_agent


def _from_a_library(filename: str) -> Any:
    scope: dict[str, Any] = {}
    source = "def call(function):\n    return function()\n"
    exec(compile(source, filename, "exec"), scope)  # noqa: S102 -- code whose file is a library's
    return scope["call"]


def test_caller_is_the_agents_nearest_line() -> None:
    """Library frames in between are skipped."""
    call = _from_a_library("/x/site-packages/library.py")
    place = call(lambda: call(lambda: ids.find_caller(1)))
    assert place.startswith("tests/instrumentation/model/test_ids.py:")
    # Python 3.10 has only a code object's name, without the enclosing scope
    known = "test_caller_is_the_agents_nearest_line" if sys.version_info >= (3, 11) else "<lambda>"
    assert known in place


def test_caller_is_nobody_where_the_agent_is_not() -> None:
    """If no agent frame is within the limit, there is no place."""
    assert ids.find_caller(1, frames_max=0) == ""


def test_places_survive_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a deleted working directory paths are absolute, and nothing fails."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    call = _from_a_library("/somewhere/agent.py")
    assert "agent.py" in call(lambda: ids.describe_function(call))


def test_function_is_described_below_its_decorators() -> None:
    """The place of a wrapped function is that of its body; an object without code has no place."""
    import functools

    def body() -> None:
        return None

    wrapped = functools.wraps(body)(lambda: None)
    assert ids.describe_function(wrapped).split(":")[1].split(" ")[0] == str(body.__code__.co_firstlineno)
    assert ids.describe_function(len) == ""
    assert ids.describe_function(None) == ""


def test_endless_wrapping_ends() -> None:
    """An object that claims to wrap itself does not cause an endless loop."""

    class Knot:
        @property
        def __wrapped__(self) -> Knot:
            return self

    assert ids.describe_function(Knot()) == ""
