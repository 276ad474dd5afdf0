"""Signals from outside (SIGTERM, Ctrl-C, SIGUSR1) come in a replay where they came when the agent was recorded."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from support.replaying import TIMEOUT_S, Workplace

HEAD: Final = """
import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import spanreplay

def told():
    with open(os.environ["TOLD"], "a") as file:
        file.write("x")

@spanreplay.boundary("tool", name="ask")
def ask(question):
    told()
    return f"{question} {time.perf_counter_ns()}"

@spanreplay.boundary("tool", name="ask_later")
async def ask_later(question):
    told()
    await asyncio.sleep(0.01)
    return f"{question} {time.perf_counter_ns()}"

@spanreplay.boundary("tool", name="ask_slowly")
def ask_slowly(question):
    told()
    time.sleep(0.6)
    return f"{question} {time.perf_counter_ns()}"
"""
FLAG: Final = """
stops = []
signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
while not stops:
    print(ask("work"))
    time.sleep(0.2)
print(stops, ask("bye"))
"""
EXIT: Final = """
def stop(number, frame):
    print("stopping")
    sys.exit(3)

signal.signal(signal.SIGTERM, stop)
try:
    while True:
        print(ask("work"))
        time.sleep(0.2)
finally:
    print(ask("bye"))
"""
INTERRUPTED: Final = """
try:
    while True:
        print(ask("work"))
        time.sleep(0.2)
except KeyboardInterrupt:
    print("interrupted", ask("bye"))
"""
IN_HANDLER: Final = """
states = []

def show(number, frame):
    states.append(ask("state"))
    print("state", states)

signal.signal(signal.SIGUSR1, show)
while not states:
    print(ask("work"))
    time.sleep(0.2)
print(ask("bye"))
"""
COMPUTING: Final = """
stops = []
signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
print(ask("one"), ask("two"), ask("three"))
while not stops:
    sum(range(1000))
print(ask("bye"))
"""
COUNTING: Final = """
stops = []
signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
print(ask("one"), ask("two"), ask("three"))
ticks = 0
while not stops:
    ticks += 1
    print("tick", ticks)
    time.sleep(0.05)
print(ticks, ask("bye"))
"""
IN_CALL: Final = """
stops = []

def stop(number, frame):
    print("stopping", ask("in the handler"))
    stops.append(number)

signal.signal(signal.SIGTERM, stop)
while not stops:
    print(ask_slowly("work"))
print(ask("bye"))
"""
CUTS_CALL: Final = """
def stop(number, frame):
    print("stopping")
    raise SystemExit(4)

signal.signal(signal.SIGTERM, stop)
try:
    while True:
        print(ask_slowly("work"))
finally:
    print(ask("bye"))
"""
ON_LOOP: Final = """
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def work():
        while True:
            print(await ask_later("work"))
            await asyncio.sleep(0.2)

    task = asyncio.create_task(work())
    await stop.wait()
    task.cancel()
    print(await ask_later("bye"))

asyncio.run(main())
"""
RUN_INTERRUPTED: Final = """
async def main():
    try:
        while True:
            print(await ask_later("work"))
            await asyncio.sleep(0.2)
    finally:
        print(await ask_later("bye"))

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", ask("end"))
"""
OUT_OF_LOOP: Final = """
class Stop(Exception):
    pass

def stop(number, frame):
    raise Stop("told to")

async def main():
    signal.signal(signal.SIGTERM, stop)
    while True:
        print(await ask_later("work"))
        await asyncio.sleep(0.2)

try:
    asyncio.run(main())
except Stop as error:
    print("stopped", error, ask("bye"))
"""
THREADS: Final = """
import queue

jobs, stop = queue.Queue(), threading.Event()

def work(number):
    while (job := jobs.get()) is not None:
        print(number, ask(job))

workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for worker in workers:
    worker.start()
signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
given = 0
while not stop.is_set():
    jobs.put(f"job {given}")
    given += 1
    time.sleep(0.02)
for worker in workers:
    jobs.put(None)
for worker in workers:
    worker.join()
print(given, ask("bye"))
"""
JOINED: Final = """
stops = []
signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))

def work():
    while not stops:
        print(ask("work"))
        time.sleep(0.05)

worker = threading.Thread(target=work)
worker.start()
worker.join()
print(ask("bye"))
"""
PAUSED: Final = """
signal.signal(signal.SIGTERM, lambda number, frame: print("told"))
print(ask("one"), ask("two"), ask("three"))
signal.pause()
print(ask("bye"))
"""
WAITED: Final = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
stop = threading.Event()

def watch():
    print("told", signal.sigwait({signal.SIGTERM}), signal.sigtimedwait([signal.SIGTERM], 0.01))
    stop.set()

threading.Thread(target=watch).start()
while not stop.is_set():
    print(ask("work"))
    stop.wait(0.05)
print(ask("bye"))
"""
OWN: Final = """
seen = []
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(ask("own")))
signal.signal(signal.SIGTERM, lambda number, frame: seen.append("told"))
while "told" not in seen:
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    print(seen)
    time.sleep(0.1)
print(ask("bye"))
"""
CASES: Final = {
    "flag": (FLAG, signal.SIGTERM),
    "exit": (EXIT, signal.SIGTERM),
    "interrupted": (INTERRUPTED, signal.SIGINT),
    "in_handler": (IN_HANDLER, signal.SIGUSR1),
    "computing": (COMPUTING, signal.SIGTERM),
    "counting": (COUNTING, signal.SIGTERM),
    "in_call": (IN_CALL, signal.SIGTERM),
    "cuts_call": (CUTS_CALL, signal.SIGTERM),
    "on_loop": (ON_LOOP, signal.SIGTERM),
    "run_interrupted": (RUN_INTERRUPTED, signal.SIGINT),
    "out_of_loop": (OUT_OF_LOOP, signal.SIGTERM),
    "threads": (THREADS, signal.SIGTERM),
    "joined": (JOINED, signal.SIGTERM),
    "paused": (PAUSED, signal.SIGTERM),
    "waited": (WAITED, signal.SIGTERM),
    "own": (OWN, signal.SIGTERM),
}
BEFORE: Final = 3
"""How many calls the agent makes before it gets the signal."""


def is_asleep(pid: int) -> bool:
    """Whether the main thread of a process waits in the kernel."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def record_signalled(workplace: Workplace, source: str, number: signal.Signals) -> tuple[str, int]:
    """Record an agent that gets a signal after some calls; return its output and exit status."""
    told = workplace.path.parent / "told"
    workplace.environ["TOLD"] = str(told)
    agent = workplace.write("agent.py", HEAD + source)
    process = workplace.spawn([str(workplace.python), str(agent)])
    deadline = time.monotonic() + TIMEOUT_S
    while not (told.exists() and len(told.read_text()) >= BEFORE) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    while source is PAUSED and not is_asleep(process.pid):  # a signal before the pause would not end it
        time.sleep(0.005)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert "Traceback" not in stderr
    return stdout, process.returncode


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(6)
def test_n2_signal_comes_where_it_came(name: str, tmp_path: Path) -> None:
    """The agent's handler runs at the same place, without a signal from outside, and the agent ends in the same way."""
    workplace = Workplace(tmp_path / "agent")
    workplace.path.mkdir()
    source, number = CASES[name]
    stdout, status = record_signalled(workplace, source, number)
    calls = (tmp_path / "told").read_text()
    replayed = workplace.replay("agent.py")
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == stdout
    assert (tmp_path / "told").read_text() == calls
    assert status in (0, 3, 4)
    assert "bye" in stdout


def test_n2_handler_that_does_less_is_a_difference(tmp_path: Path) -> None:
    """A handler that no longer stops the agent diverges: the signal still comes where it came."""
    workplace = Workplace(tmp_path / "agent")
    workplace.path.mkdir()
    record_signalled(workplace, FLAG, signal.SIGTERM)
    workplace.write("agent.py", HEAD + FLAG.replace("stops.append(number)", "print(number)"))
    shown = workplace.run("show", workplace.recording().run_id).stdout
    assert "signals: SIGTERM after call " in shown
    replayed = workplace.replay("agent.py")
    assert replayed.verdict["verdict"] == "diverged"
    assert "15" in replayed.stdout


def test_n2_place_that_is_gone_does_not_keep_a_replay_waiting(tmp_path: Path) -> None:
    """If the function that was interrupted has another name now, the signal comes later, and the agent ends."""
    workplace = Workplace(tmp_path / "agent")
    workplace.path.mkdir()
    source = "\n    ".join(["def work():", "global ticks", *COUNTING.strip().splitlines(), "", ""]) + "\nwork()\n"
    stdout, _ = record_signalled(workplace, source, signal.SIGTERM)
    assert "bye" in stdout
    workplace.write("agent.py", HEAD + source.replace("work()", "renamed()"))
    replayed = workplace.replay("agent.py")
    assert replayed.verdict["verdict"] == "diverged"
    assert "bye" in replayed.stdout


def test_n2_p12_signal_comes_behind_tools_that_run_again(tmp_path: Path) -> None:
    """It came after calls that now run their code; it never came, and the agent waited until its time was over."""
    workplace = Workplace(tmp_path / "agent")
    workplace.path.mkdir()
    stdout, _ = record_signalled(workplace, COUNTING, signal.SIGTERM)
    replayed = workplace.replay("agent.py", options=("--rerun", "tool", "--timeout", str(TIMEOUT_S)))
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.verdict["counts"]["rerun"] > BEFORE
    assert replayed.stdout == stdout


CUT: Final = """
import sys
import _thread

def redacting(frame):
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("spanreplay.redact"):
            return True
        frame = frame.f_back
    return False

main_thread = threading.main_thread().ident

def interrupt():
    while not (begun and redacting(sys._current_frames()[main_thread])):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

def stop(number, frame):
    raise SystemExit(0)

signal.signal(signal.SIGTERM, stop)
text = " ".join(f"word{n}" for n in range(200_000))
begun = []
threading.Thread(target=interrupt, daemon=True).start()
try:
    while True:
        begun.append(ask(text))
finally:
    print(ask("bye"))
"""


def test_n2_signal_does_not_cut_a_record(tmp_path: Path) -> None:
    """A signal that comes while a call is written down runs its handler a moment later: the recording stays whole."""
    workplace = Workplace(tmp_path, {"TOLD": "/dev/null"})
    agent = workplace.write("agent.py", HEAD + CUT)
    assert "bye" in workplace.record(agent).stdout
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert [call.index for call in recording.calls if call.name == "ask"] == list(range(len(recording.calls)))


SEEN: Final = """
import signal

def stop(number, frame):
    pass

print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.signal(signal.SIGTERM, stop) == signal.SIG_DFL, signal.getsignal(signal.SIGTERM) is stop)
print(signal.signal(signal.SIGTERM, signal.SIG_IGN) is stop, signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)
print(signal.signal(signalnum=signal.SIGTERM, handler=signal.SIG_DFL) == signal.SIG_IGN)
"""


def test_n4_program_sees_its_own_handlers(tmp_path: Path) -> None:
    """`signal.signal` and `signal.getsignal` return the program's own handlers."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", SEEN)
    plain = subprocess.run([sys.executable, str(agent)], capture_output=True, text=True, check=True)
    assert workplace.record(agent).stdout == plain.stdout
    assert set(plain.stdout.split()) == {"True"}


ODD: Final = """
import os
import signal
import threading

ODD = {
    "own": lambda: os.kill(os.getpid(), 0),
    "own group": lambda: os.killpg(os.getpgrp(), 0),
    "own thread": lambda: signal.pthread_kill(threading.get_ident(), 0),
    "no signal": lambda: os.kill(os.getpid(), 999),
    "no signal either": lambda: signal.raise_signal(999),
    "text": lambda: os.kill(os.getpid(), "x"),
    "no arguments": lambda: signal.signal(),
    "no handler": lambda: signal.signal(signal.SIGTERM),
    "handler of no signal": lambda: signal.signal(999, print),
}
for name, call in ODD.items():
    try:
        print(name, call())
    except Exception as error:
        print(name, type(error).__name__, error)
"""


def test_n4_odd_arguments_do_what_they_do_without_us(tmp_path: Path) -> None:
    """`os.kill(os.getpid(), 0)` asks whether a process is alive, and mistakes raise what they raise."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", ODD)
    plain = subprocess.run([sys.executable, str(agent)], capture_output=True, text=True, check=True)
    assert workplace.record(agent).stdout == plain.stdout
    assert "own None" in plain.stdout
