"""Agents that talk with a program, or look for a free port for it, replay without it, one answer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

ECHO: Final = "import sys\\nfor line in sys.stdin: print('got', line.strip(), flush=True)\\nprint('bye')"
BEGIN: Final = f"""
import os, select, selectors, subprocess, sys
code = "{ECHO}"
program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def say(text):
    program.stdin.write(text.encode() + b"\\n")
    program.stdin.flush()
"""
END: Final = """
say("one")
print(hear())
say("two")
print(hear())
program.stdin.close()
print(hear(), hear(), program.wait())
"""
NON_BLOCKING: Final = """
os.set_blocking(program.stdout.fileno(), False)

def hear():
    assert select.select([program.stdout], [], [], 60)[0]
    return program.stdout.read()
"""
SELECTOR: Final = """
found = selectors.DefaultSelector()
found.register(program.stdout, selectors.EVENT_READ)

def hear():
    return [os.read(key.fd, 100) for key, _ in found.select(60)]
"""


def insist_on_identical(workplace: Workplace, agent: Path) -> None:
    """Record an agent; its replay must be identical and print the same."""
    recorded = workplace.record(agent)
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout


@pytest.mark.parametrize("way", [NON_BLOCKING, SELECTOR], ids=["non-blocking", "selector"])
def test_s50_an_agent_that_looks_for_answers_hears_one_at_a_time(way: str, workplace: Workplace) -> None:
    """Output follows the input that it answers; a changed input diverges as such."""
    source = BEGIN + way + END
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent)
    run_id = next(each.run_id for each in workplace.recordings() if each.calls[0].kind == "tool")
    replayed = workplace.replay(agent, source=run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    workplace.write("agent.py", source.replace('"two"', '"other"'))
    changed = workplace.replay(agent, source=run_id)
    assert changed.causes()[0][0] == "changed_call"
    assert "one\\nother" in changed.stderr


def test_s50_much_output_and_input_pass_through_the_pipes_of_a_replay(workplace: Workplace) -> None:
    """More than a pipe holds goes both ways, with nobody left waiting."""
    agent = workplace.write("agent.py", (
        "import hashlib, os, subprocess\n"
        "content = os.urandom(1 << 20)\n"
        "done = subprocess.run(['cat'], input=content, capture_output=True)\n"
        "print(done.stdout == content, hashlib.sha256(done.stdout).hexdigest())\n"
        "many = subprocess.Popen(['sh', '-c', 'yes | head -c 300000; yes >&2 | head'], stdout=-1, stderr=-1)\n"
        "many.stderr.close()\n"
        "print(len(many.stdout.read()), many.wait())\n"
    ))  # fmt: skip
    insist_on_identical(workplace, agent)


PORTS: Final = """
import http.server, socket, subprocess, threading, urllib.request

def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen(1)
        return found.getsockname()[1]

print(subprocess.run(["echo", f"--port={free_port()}"], capture_output=True).stdout)

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"own")

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read())
server.shutdown()
"""


def test_s50_a_port_that_the_system_chose_is_the_recorded_one(workplace: Workplace) -> None:
    """It is part of a program's command, and a server of the agent's own is still reached at it."""
    agent = workplace.write("agent.py", PORTS)
    insist_on_identical(workplace, agent)


def test_s50_the_empty_path_names_nothing_to_change(workplace: Workplace) -> None:
    """A change of '' fails in a replay as it did, and is not denied (`os.makedirs(os.path.dirname("a.png"))`)."""
    agent = workplace.write("agent.py", (
        "import os\n"
        "for change in (os.makedirs, os.rmdir, os.remove):\n"
        "    try:\n"
        "        change('')\n"
        "    except FileNotFoundError as error:\n"
        "        print(error)\n"
    ))  # fmt: skip
    insist_on_identical(workplace, agent)


IN_TERMINAL: Final = """
import os, pty, subprocess
subprocess.run(["true"])
child, terminal = pty.fork()
if child == 0:
    os.execvp("sh", ["sh", "-c", "date +%N"])
print(os.read(terminal, 100))
os.waitpid(child, 0)
"""
FORKED: Final = """
import os, subprocess
source, target = os.pipe()
if os.fork() == 0:
    os.dup2(target, 1)
    os.execvp("date", ["date", "+%N"])
os.close(target)
text = os.read(source, 100).decode()
print(subprocess.run(["echo", text], capture_output=True).stdout)
os.wait()
"""


@pytest.mark.parametrize("source", [IN_TERMINAL, FORKED], ids=["forkpty", "fork"])
def test_p12_a_program_behind_a_fork_is_a_hole_and_no_divergence(source: str, workplace: Workplace) -> None:
    """Unchanged code whose programs no boundary covers (pexpect, sh) is incomplete, and the reason is the fork."""
    agent = workplace.write("agent.py", source)
    workplace.record(agent)
    replayed = workplace.replay(agent, source=workplace.recordings()[0].run_id)
    assert replayed.verdict["verdict"] == "incomplete", replayed.stderr
    assert "fork" in replayed.stderr


CAUGHT: Final = """
import os, pty, subprocess
import spanreplay

@spanreplay.boundary("tool", name="tell", effect="read")
def tell(text):
    return "told"

def run():
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("sh", ["sh", "-c", "date +%N"])
    said = os.read(terminal, 100).decode()
    os.waitpid(child, 0)
    return said

print(tell("first"))
try:
    text = run()
except BaseException as error:
    text = f"failed: {error!r}"
print(tell(text))
"""


def test_p12_what_follows_from_a_denied_program_is_no_divergence(workplace: Workplace) -> None:
    """An agent that catches the denial of a program and goes on with its error is incomplete at the fork."""
    agent = workplace.write("agent.py", CAUGHT)
    workplace.record(agent)
    run_id = workplace.recordings()[0].run_id
    replayed = workplace.replay(agent, source=run_id)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert "fork" in replayed.stderr
    workplace.write("agent.py", CAUGHT.replace('tell("first")', 'tell("second")'))
    assert workplace.replay(agent, source=run_id).causes() == [("changed_call", "tool:tell")]
