"""Input that comes from the machine itself is not recorded: the run says so, and its replay blames the recording."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from support.installing import install
from support.replaying import Workplace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own files and events are Linux's")

CALL: Final = """
import os, subprocess, threading
import spanreplay

@spanreplay.boundary("tool", name="quote", effect="read")
def quote(amount):
    return f"quote for {amount}"

print(quote("first"))
"""
SECOND: Final = "\nprint(quote(seen))\n"
INPUTS: Final = {
    "random bytes": "seen = open('/dev/urandom', 'rb').read(8).hex()",
    "random bytes by descriptor": "seen = os.read(os.open('/dev/urandom', os.O_RDONLY), 8).hex()",
    "what the kernel tells": "seen = open('/proc/uptime').read()",
    "a terminal": (
        "ours, theirs = os.openpty()\n"
        "os.write(ours, subprocess.check_output(['date', '+%N']))\n"
        "os.read(theirs, 100)\n"
        "seen = open('/proc/sys/kernel/random/uuid').read()"
    ),
    "a named pipe": (
        "os.mkfifo('pipe')\n"
        "writer = subprocess.Popen(['sh', '-c', 'date +%N > pipe'])\n"
        "seen = open('pipe').read(); writer.wait()"
    ),
    "a named pipe by descriptor": (
        "os.mkfifo('pipe')\n"
        "writer = subprocess.Popen(['sh', '-c', 'date +%N > pipe'])\n"
        "seen = os.read(os.open('pipe', os.O_RDONLY), 100).decode(); writer.wait()"
    ),
    "standard input by descriptor": (
        "given, given_to = os.pipe()\n"
        "os.write(given_to, os.urandom(4).hex().encode())\n"
        "os.dup2(given, 0)\n"
        "seen = os.read(0, 100).decode()"
    ),
}
PIPE_OF_ITS_OWN: Final = """
def write():
    with open("pipe", "w") as pipe:
        pipe.write("from a thread")

os.mkfifo("pipe")
writer = threading.Thread(target=write)
writer.start()
with open("pipe") as pipe:
    seen = pipe.read()
writer.join()
"""
WATCHER: Final = """
import pathlib
from watchfiles import watch

def create():
    pathlib.Path("inbox/new.txt").write_text("new")

pathlib.Path("inbox").mkdir()
stop = threading.Event()
created = threading.Timer(0.3, create)
created.start()
for changes in watch("inbox", stop_event=stop, rust_timeout=3000, yield_on_timeout=True):
    print(quote(str(sorted(pathlib.Path(path).name for _, path in changes))))
    break
"""


@pytest.mark.parametrize("way", INPUTS)
def test_p12_unrecorded_input_is_a_hole_and_no_divergence(way: str, workplace: Workplace) -> None:
    """What a device, a pipe or the kernel gives makes a run incomplete, and its replay incomplete, never diverged."""
    agent = workplace.write("agent.py", CALL + INPUTS[way] + SECOND)
    workplace.record(agent)
    reasons = workplace.recording().completeness().reasons
    assert reasons
    assert all(reason.startswith("agent.py:") and "not recorded" in reason for reason in reasons), reasons
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert set(reasons) <= set(replayed.verdict["reasons"])


def test_p12_what_differs_before_unrecorded_input_has_diverged(workplace: Workplace) -> None:
    """A call that differs before the read can't be due to it, even if nothing is known to have changed."""
    source = CALL.replace('quote("first")', "quote(os.getppid())") + INPUTS["what the kernel tells"] + SECOND
    agent = workplace.write("agent.py", source)
    workplace.record(agent)
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.causes()) == (3, [("changed_call", "tool:quote")])


def test_p12_changed_code_is_no_fault_of_unrecorded_input(workplace: Workplace) -> None:
    """If the agent's code has changed, a difference after the read is reported as one."""
    agent = workplace.write("agent.py", CALL + INPUTS["what the kernel tells"] + SECOND)
    workplace.record(agent)
    workplace.write("agent.py", agent.read_text().replace("quote(seen)", "quote('as before')"))
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.causes()) == (3, [("changed_call", "tool:quote")])


TERMINAL: Final = """
try:
    seen = open("/dev/tty").readline()
except OSError as error:
    seen = str(error)
"""


def _has_terminal() -> bool:
    try:
        with Path("/dev/tty").open("rb"):
            return True
    except OSError:
        return False


@pytest.mark.skipif(_has_terminal(), reason="these tests have a terminal")
def test_p12_a_terminal_that_is_missing_is_no_input(workplace: Workplace) -> None:
    """A program that looks for a person's terminal where there is none has read nothing."""
    agent = workplace.write("agent.py", CALL + TERMINAL + SECOND)
    recorded = workplace.record(agent)
    assert workplace.recording().completeness().is_complete
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr


REPORTED: Final = """
try:
    print(quote(seen))
except BaseException:
    import reporter
    raise
"""


def test_p12_code_that_reports_the_end_of_a_replay_is_no_change(workplace: Workplace) -> None:
    """A module that is only imported because the replay was stopped leaves the unrecorded read as the cause."""
    workplace.write("reporter.py", "")
    agent = workplace.write("agent.py", CALL + INPUTS["what the kernel tells"] + REPORTED)
    workplace.record(agent)
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr


def test_p12_a_pipe_between_threads_is_no_input(workplace: Workplace) -> None:
    """A named pipe into which only the program itself writes leaves the run complete and its replay identical."""
    agent = workplace.write("agent.py", CALL + PIPE_OF_ITS_OWN + SECOND)
    workplace.record(agent)
    assert workplace.recording().completeness().is_complete, workplace.recording().completeness().reasons
    (workplace.path / "pipe").unlink()
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr


def test_p12_file_events_of_native_code_are_a_hole(workplace: Workplace) -> None:
    """A watcher written in Rust is seen by its open descriptor: no patch and no list names the library."""
    agent = workplace.write("agent.py", CALL + WATCHER)
    recorded = workplace.record(agent)
    assert "new.txt" in recorded.stdout
    (reason,) = workplace.recording().completeness().reasons
    assert reason == "a library's own thread watches files (inotify), and what it learns is not recorded"
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert reason in replayed.verdict["reasons"]


def test_p12_what_a_library_asks_the_kernel_is_no_hole_and_may_be_the_cause(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The run stays complete, its replay may be identical, and what depends on that answer is not called diverged."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    install(site, "machine-facts", {"machine_facts.py": "def ask():\n    return open('/proc/uptime').read()\n"})
    for name, use, expected in (("unused", "1", "identical"), ("used", "seen", "incomplete")):
        here = Workplace(Path(tmp_path_factory.mktemp(name)), {**workplace.environ, "PYTHONPATH": str(site)})
        source = f"import machine_facts\nseen = machine_facts.ask()\nprint(quote({use}))\n"
        agent = here.write("agent.py", CALL + source)
        here.record(agent)
        assert here.recording().completeness().is_complete
        replayed = here.replay(agent)
        assert replayed.verdict["verdict"] == expected, replayed.stderr
        assert all("/proc/uptime" in reason for reason in replayed.verdict["reasons"])


def test_p12_what_the_kernel_still_says_is_no_change_of_the_code(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An answer that the kernel would give again at the verdict is not called a changed file of the agent's code."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    source = "def ask():\n    return next(l for l in open('/proc/self/maps') if '[stack]' in l)\n"
    install(site, "machine-facts", {"machine_facts.py": source})
    here = Workplace(workplace.path, {**workplace.environ, "PYTHONPATH": str(site)})
    agent = here.write("agent.py", CALL + "import machine_facts\nprint(quote(machine_facts.ask()))\n")
    here.record(agent)
    replayed = here.replay(agent)
    assert replayed.verdict["verdict"] == "incomplete", replayed.stderr
    assert all("/proc/self/maps" in reason for reason in replayed.verdict["reasons"])


def test_p12_what_an_installed_program_asks_the_kernel_is_no_hole(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A published program looks at `/proc` for itself when it starts: its run is complete and replays."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    source = "import spanreplay\nopen('/proc/uptime').read()\nprint(spanreplay.boundary('tool')(len)('three'))\n"
    install(site, "asking-program", {"asking_program/__init__.py": "", "asking_program/__main__.py": source})
    here = Workplace(workplace.path, {**workplace.environ, "PYTHONPATH": str(site)})
    here.record("-m", "asking_program")
    assert here.recording().completeness().is_complete
    replayed = here.replay("-m", "asking_program")
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


TICKER: Final = """
import sqlite3, threading, time

def _tick():
    with sqlite3.connect("ticks.sqlite") as database:
        database.execute("CREATE TABLE ticks (at REAL)")
        database.execute("INSERT INTO ticks VALUES (?)", (time.time(),))

def tick():
    ticking = threading.Thread(target=_tick, name="ticker")
    ticking.start()
    ticking.join()
"""


@pytest.mark.parametrize(("also", "expected"), [("1", "incomplete"), ("os.getppid()", "diverged")])
def test_p12_the_clock_of_a_librarys_own_thread_may_be_the_cause_there_only(
    also: str, expected: str, workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A statement with a time that a library took in a thread of its own is doubtful; a difference elsewhere is not."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    install(site, "ticker", {"ticker.py": TICKER})
    workplace.environ["PYTHONPATH"] = str(site)
    agent = workplace.write("agent.py", CALL + f"import ticker\nprint(quote({also}))\nticker.tick()\n")
    workplace.record(agent)
    assert workplace.recording().completeness().is_complete
    (workplace.path / "ticks.sqlite").unlink()
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == expected, replayed.stderr
    reason = "ticker reads the clock or random values in a thread of its own, where they are not recorded"
    assert any(each.startswith(reason) for each in replayed.verdict["reasons"]) == (expected == "incomplete")


PICKER: Final = """
import os
from picker import _speedups

def pick(ask):
    return ask(f"model-{os.getppid()}")
"""


@pytest.mark.parametrize(("is_native", "expected"), [(True, "incomplete"), (False, "diverged")])
def test_p12_what_a_library_with_native_code_chose_is_doubtful(
    is_native: bool, expected: str, workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A choice that differs although nothing changed is blamed on the native code on its way, which nobody can see."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    source = PICKER if is_native else PICKER.replace("from picker import _speedups\n", "")
    install(site, "picker", {"picker/__init__.py": "", "picker/choose.py": source})
    real = importlib.util.find_spec("markupsafe._speedups")
    assert real is not None
    assert real.origin is not None
    shutil.copy(real.origin, site / "picker")
    workplace.environ["PYTHONPATH"] = str(site)
    agent = workplace.write("agent.py", CALL + "from picker.choose import pick\nprint(pick(quote))\n")
    workplace.record(agent)
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == expected, replayed.stderr
    assert any("native code of picker" in each for each in replayed.verdict["reasons"]) == is_native


SHELL: Final = """
import os, pty

def run(command):
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("sh", ["sh", "-c", command])
    said = os.read(terminal, 100)
    os.waitpid(child, 0)
    return said
"""
WRAPPER: Final = """
def wrap(function):
    def call(*args):
        return function(*args)
    return call
"""
SENDER: Final = """
import shellkit

class Sender:
    def send(self):
        return shellkit.run("echo on")
"""


@pytest.mark.parametrize("tool", ["opentelemetry-instrumentation-work", "langfuse"])
def test_p12_work_that_a_reporting_tool_wraps_is_not_its_own(
    tool: str, workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A program that a library starts outside of every boundary is a hole also below an instrumentor's wrapper."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    install(site, "shellkit", {"shellkit.py": SHELL})
    install(site, tool, {"telling.py": WRAPPER})
    workplace.environ["PYTHONPATH"] = str(site)
    agent = workplace.write(
        "agent.py", CALL + "import shellkit, telling\nprint(telling.wrap(shellkit.run)('date +%N | tee made'))\n"
    )
    workplace.record(agent)
    reasons = workplace.recordings()[0].completeness().reasons
    assert any("started a program outside of every boundary" in each for each in reasons), reasons
    (workplace.path / "made").unlink()
    replayed = workplace.replay(agent, source=workplace.recordings()[0].run_id)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
    assert not (workplace.path / "made").exists()


def test_p12_what_a_reporting_tool_does_through_a_library_is_its_own(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A tool that starts a program through a library, e.g. git, leaves the run complete."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    install(site, "shellkit", {"shellkit.py": SHELL})
    install(site, "wandb", {"telling.py": SENDER})
    workplace.environ["PYTHONPATH"] = str(site)
    agent = workplace.write("agent.py", CALL + "import telling\ntelling.Sender().send()\n")
    workplace.record(agent)
    assert workplace.recordings()[0].completeness().is_complete
