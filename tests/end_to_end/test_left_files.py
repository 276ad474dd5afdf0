"""A replay leaves none of the files that its agent wrote, however its process ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.replaying import Workplace

AGENT = """
import os, signal, subprocess, sys, time
from pathlib import Path

subprocess.run(["true"], check=True)
Path("answer.txt").write_text(f"for one user at {time.time()}", encoding="utf-8")
print("done", flush=True)
exec(sys.argv[1])
"""
ENDS = {
    "return": "",
    "os_exit": "os._exit(3)",
    "posix_exit": "import posix; posix._exit(0)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "os.abort()",
    "forked": "os.waitpid(os.fork() or os._exit(0), 0)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.sampled(3)
def test_s62_a_replay_leaves_no_file_behind(tmp_path: Path, end: str) -> None:
    """The temporary folder is as empty after a replay as before."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, "")
    before = (workplace.path / "answer.txt").read_bytes()
    replayed = workplace.replay(agent, ENDS[end], TMPDIR=str(temporary))
    assert "done" in replayed.stdout
    assert (workplace.path / "answer.txt").read_bytes() == before
    assert [each.name for each in temporary.iterdir()] == []
