"""A `subprocess` written in Python, such as gevent's, forks and calls `exec`: the child is a program, not a run."""

from __future__ import annotations

from support.replaying import Workplace

AGENT = """
import os
from concurrent.futures import ThreadPoolExecutor
import spanreplay

here, submit = os.getpid(), ThreadPoolExecutor.submit


def watch(self, *args, **kwargs):
    if os.getpid() != here:
        os.write(2, b"work in the child\\n")
    return submit(self, *args, **kwargs)


ThreadPoolExecutor.submit = watch


class Popen:
    def __init__(self, program):
        self._execute_child(program)

    def _execute_child(self, program):
        child = os.fork()
        if child == 0:
            try:
                os.execv(program, [program])
            finally:
                os._exit(127)
        os.waitpid(child, 0)


@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return amount * 2


print(quote(1), flush=True)
Popen("/bin/true")
print(quote(2), flush=True)
"""


def test_a_fork_for_a_program_runs_nothing_in_its_child(workplace: Workplace) -> None:
    """The child starts no OpenTelemetry threads and no run; the program is a hole, where a replay ends."""
    workplace.write("agent.py", AGENT)
    recorded = workplace.record("agent.py")
    assert recorded.stdout == "2\n4\n"
    assert "work in the child" not in recorded.stderr
    (leak,) = workplace.recording().root.manifest["leaks"]
    assert leak["said"] == "agent.py:23 Popen._execute_child started a program outside of every boundary (os.fork)"

    replayed = workplace.replay("agent.py")
    assert replayed.status == 4, replayed.stderr
