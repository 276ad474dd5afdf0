"""`--step` and `--break` at a real terminal, while the agent keeps its own standard streams."""

from __future__ import annotations

import os
import pty
import select
import shlex
import time
from pathlib import Path

import pytest

from support.dap import DapClient
from support.ports import free_port
from support.replaying import BIN, TIMEOUT_S, Workplace

AGENT = """
# Doubles three numbers
import spanreplay

@spanreplay.boundary("tool", name="double", effect="read")
def double(n):
    return n * 2

total = 0
for line in ("1\\n", "2\\n", "3\\n"):
    total += double(int(line))
    print("total", total)
"""


class Terminal:
    """A shell command at its own terminal; `expect` reads until a text appears, `type` writes a line."""

    def __init__(self, command: str, folder: Path, environ: dict[str, str]) -> None:
        self.pid, self._ours = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve("/bin/sh", ["sh", "-c", command], environ)  # noqa: S606 -- a shell is what is tested
        self.seen = ""
        self._at = 0
        self._deadline = time.monotonic() + TIMEOUT_S

    def expect(self, text: str) -> str:
        """Everything up to and including this text, since the last expected one."""
        while text not in self.seen[self._at :]:
            assert self._read(), f"{text!r} never came; after {self.seen[self._at :]!r}"
        end = self.seen.index(text, self._at) + len(text)
        found, self._at = self.seen[self._at : end], end
        return found

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._ours, line.encode() + b"\n")

    def wait(self) -> int:
        """The exit status, after all output has been read."""
        while self._read():
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self._ours)
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0, self._deadline - time.monotonic()))
        assert ready, f"nothing came any more after {self.seen!r}"
        try:
            piece = os.read(self._ours, 65536)
        except OSError:  # the terminal is gone
            return False
        self.seen += piece.decode().replace("\r\n", "\n")
        return bool(piece)


@pytest.fixture
def recorded(workplace: Workplace) -> list[int]:
    """The numbers of the three calls of a recorded agent."""
    workplace.write("agent.py", AGENT)
    process = f"{BIN / 'opentelemetry-instrument'} {workplace.python} agent.py < /dev/null > recorded"
    assert os.waitstatus_to_exitcode(os.system(f"cd {workplace.path} && {process}")) == 0  # noqa: S605 -- fixed words
    return [c.number for c in workplace.recording().calls]


def open_terminal(workplace: Workplace, *options: str, **environ: str) -> Terminal:
    """`spanreplay replay` at a terminal, with no input for the agent; its output and the dialogue go to files."""
    command = [str(BIN / "spanreplay"), "replay", "latest", *options, "--", str(workplace.python), "agent.py"]
    line = f"{shlex.join(command)} < /dev/null > out 2> talk"
    return Terminal(line, workplace.path, {**workplace.environ, **environ})


def test_s63_stepping_shows_each_call_and_waits(workplace: Workplace, recorded: list[int]) -> None:
    """Each call is shown before it is answered; print, next and continue work; the agent keeps its own streams."""
    terminal = open_terminal(workplace, "--step")
    shown = terminal.expect("(step) ")
    assert f"→ call {recorded[0]}  tool:double  main  as recorded" in shown
    assert "agent.py:11" in shown
    assert (workplace.path / "out").read_text() == ""
    terminal.type("p")
    assert '"n": 1' in terminal.expect('"value": 2')
    terminal.type("what")
    terminal.expect("next call")
    terminal.type("n")
    terminal.expect(f"→ call {recorded[1]}")
    terminal.type(f"c {recorded[2]}")
    terminal.expect(f"→ call {recorded[2]}")
    terminal.type("c")
    assert terminal.wait() == 0, (workplace.path / "talk").read_text()
    assert (workplace.path / "out").read_bytes() == (workplace.path / "recorded").read_bytes()
    assert "✔ identical: 3 calls" in (workplace.path / "talk").read_text()


def test_s63_quitting_reports_up_to_there(workplace: Workplace, recorded: list[int]) -> None:
    """`q` ends the replay with a report, exit 4."""
    terminal = open_terminal(workplace, "--step")
    terminal.expect("(step) ")
    terminal.type("")
    terminal.expect("(step) ")
    terminal.type("q")
    assert terminal.wait() == 4
    assert (
        f"! stopped before call {recorded[1]} (tool:double), at the terminal" in (workplace.path / "talk").read_text()
    )
    assert (workplace.path / "out").read_text() == "total 2\n"


def test_s63_break_opens_pdb_in_the_agents_code(workplace: Workplace, recorded: list[int]) -> None:
    """`--to N --break` stops at the agent's line before call N is answered; `continue` runs to the end."""
    terminal = open_terminal(workplace, "--to", str(recorded[1]), "--break")
    assert "agent.py" in terminal.expect("-> total += double(int(line))")
    terminal.expect("(Pdb) ")
    terminal.type("p 'total', total, line")
    terminal.expect("('total', 2, '2\\n')")
    terminal.expect("(Pdb) ")
    terminal.type("c")
    assert terminal.wait() == 0, (workplace.path / "talk").read_text()
    assert (workplace.path / "out").read_bytes() == (workplace.path / "recorded").read_bytes()


def test_s63_break_goes_through_the_breakpoint_hook(workplace: Workplace, recorded: list[int]) -> None:
    """PYTHONBREAKPOINT selects the debugger, which is called once, with the agent's code on the stack."""
    workplace.write(
        "mydebugger.py",
        "import sys\n"
        "def stop():\n"
        "    frame = sys._getframe()\n"
        "    while not frame.f_code.co_filename.endswith('agent.py'): frame = frame.f_back\n"
        "    print('STOPPED', frame.f_locals['line'].strip(), file=sys.stderr)\n",
    )
    replayed = workplace.replay("agent.py", options=["--break"])
    assert (replayed.status, replayed.stdout) == (1, "")
    assert "--break needs --to N" in replayed.stderr
    terminal = open_terminal(
        workplace, "--to", str(recorded[2]), "--break", PYTHONBREAKPOINT="mydebugger.stop"
    )  # fmt: skip
    assert terminal.wait() == 0, (workplace.path / "talk").read_text()
    assert (workplace.path / "talk").read_text().count("STOPPED") == 1
    assert "STOPPED 3" in (workplace.path / "talk").read_text()


def test_s63_editor_stops_at_the_call(workplace: Workplace, recorded: list[int]) -> None:
    """An editor attached by DAP stops before call N, sees the agent's line and variables, and continues."""
    port = free_port()
    options = ["--to", str(recorded[1]), "--dap", f"127.0.0.1:{port}"]
    terminal = open_terminal(workplace, *options, PYDEVD_DISABLE_FILE_VALIDATION="1")
    editor = DapClient(port)
    editor.request("initialize", adapterID="spanreplay", linesStartAt1=True, pathFormat="path")
    attached = editor.send("attach", justMyCode=False)
    editor.wait_event("initialized")
    editor.request("configurationDone")
    editor.wait_response(attached)
    thread = editor.wait_event("stopped")["threadId"]
    frames = editor.request("stackTrace", threadId=thread)["stackFrames"]
    agent = next(f for f in frames if f["source"]["path"].endswith("agent.py"))
    assert (agent["name"], agent["line"]) == ("<module>", 11)
    shown = editor.request("evaluate", expression="(total, line)", frameId=agent["id"], context="repl")
    assert shown["result"] == "(2, '2\\n')"
    editor.send("continue", threadId=thread)
    assert terminal.wait() == 0, (workplace.path / "talk").read_text()
    editor.close()
    assert (workplace.path / "out").read_bytes() == (workplace.path / "recorded").read_bytes()


def test_s63_stepping_without_a_terminal_is_refused(workplace: Workplace, recorded: list[int]) -> None:
    """Without a terminal nothing is started, and the error says what to do instead."""
    command = [str(BIN / "spanreplay"), "replay", "latest", "--step", "--", str(workplace.python), "agent.py"]
    line = f"setsid -w {shlex.join(command)} < /dev/null > out 2> talk"
    assert os.waitstatus_to_exitcode(os.system(f"cd {workplace.path} && {line}")) == 1  # noqa: S605 -- fixed words
    talk = (workplace.path / "talk").read_text()
    assert "stepping needs a terminal" in talk
    assert "`--to N`" in talk
