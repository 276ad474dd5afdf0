"""Effects outside every boundary are listed by call site while an agent is recorded."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spanreplay.seams.machine.outside.leaks import LEAKS_MAX
from support.replaying import BIN, TIMEOUT_S, Workplace

CALL = """
import spanreplay

@spanreplay.boundary("tool", name="book", effect="read")
def book(day):
    return f"booked {day}"
"""

BEHIND_THE_BACK = (
    CALL
    + """
import io, os, sys, time

def clock():
    return time.clock_gettime(time.CLOCK_REALTIME)

def random():
    return os.getrandom(8)

def file():
    with io.FileIO(sys.argv[1]) as found:
        return found.read()

def environment():
    return os.environb[b"REGION"]

book("Tuesday")
print(clock(), random(), file(), environment())
"""
)


@pytest.fixture
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file outside the agent's code."""
    path = tmp_path_factory.mktemp("data") / "orders.csv"
    path.write_text("1,open\n", encoding="utf-8")
    return path


def leaks_of(workplace: Workplace) -> list[dict[str, Any]]:
    """The leaks named by the one recorded run."""
    found: list[dict[str, Any]] = workplace.recording().root.manifest.get("leaks", [])
    return found


def doctor(workplace: Workplace, *command: str, **environ: str) -> list[dict[str, Any]]:
    """The findings of `spanreplay doctor -- CMD`."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), "doctor", "--json", "--", *command],
        cwd=workplace.path,
        env={**workplace.environ, **environ},
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def line_of(agent: Path, text: str) -> int:
    """The line number of a text in an agent."""
    return next(n for n, line in enumerate(agent.read_text().splitlines(), 1) if text in line)


def test_s59_reads_behind_the_recorders_back_are_leaks_with_their_place(workplace: Workplace, data_file: Path) -> None:
    """Clock, random bytes, a file and a variable, read in unrecorded ways: all four are listed with file:line."""
    agent = workplace.write("agent.py", BEHIND_THE_BACK)
    workplace.record(agent, str(data_file), REGION="eu", SPANREPLAY_AUDIT="full")
    expected = [
        ("clock", f"agent.py:{line_of(agent, 'clock_gettime')} clock"),
        ("random", f"agent.py:{line_of(agent, 'getrandom')} random"),
        ("file", f"agent.py:{line_of(agent, 'FileIO')} file"),
        ("environment", f"agent.py:{line_of(agent, 'environb')} environment"),
    ]
    leaks = leaks_of(workplace)
    assert [(leak["kind"], leak["code"]) for leak in leaks] == expected
    completeness = workplace.recording().completeness()
    assert not completeness.is_complete
    assert list(completeness.reasons) == [leak["said"] for leak in leaks]
    findings = doctor(workplace, str(workplace.python), str(agent), str(data_file), REGION="eu")
    warned = [f["message"] for f in findings if f["subject"].startswith("leak ")]
    assert [m for m in warned if not any(m.startswith(code) for _, code in expected)] == []
    assert len(warned) == 4
    shown = subprocess.run(
        [str(BIN / "spanreplay"), "show", workplace.recordings()[0].run_id],
        cwd=workplace.path, env=workplace.environ, text=True, capture_output=True, check=True, timeout=TIMEOUT_S,
    ).stdout  # fmt: skip
    assert all(leak["said"] in shown for leak in leaks)


PLAIN = (
    CALL
    + """
import os, sys, time
book("Tuesday")
now = time.time()
token = os.urandom(8)
with open(sys.argv[1]) as orders:
    text = orders.read()
region = os.environ["REGION"]
"""
)


def test_s59_doctor_lists_every_read_of_the_outside(workplace: Workplace, data_file: Path) -> None:
    """Recorded reads are no leaks, and the doctor still names each with its place and treatment."""
    agent = workplace.write("agent.py", PLAIN)
    findings = doctor(workplace, str(workplace.python), str(agent), str(data_file), REGION="eu")
    reads = {f["subject"]: f["message"] for f in findings if f["subject"].startswith("read ")}
    assert reads == {
        "read clock": f"time.time at agent.py:{line_of(agent, 'time.time()')} <module>: recorded",
        "read random": f"os.urandom at agent.py:{line_of(agent, 'urandom')} <module>: recorded",
        "read file": f"{data_file} at agent.py:{line_of(agent, 'open(')} <module>: recorded",
        "read environment": f"REGION at agent.py:{line_of(agent, 'REGION')} <module>: compared",
    }
    assert [f for f in findings if f["subject"].startswith("leak ")] == []
    assert workplace.recording().completeness().is_complete


@pytest.fixture
def greeter() -> Iterator[socket.socket]:
    """A port on localhost that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


DATABASE_CLIENT = """
import os, select, socket

def query(times):
    for _ in range(times):
        with socket.socket() as connection:
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", int(os.environ["PORT"])))
            select.select([], [connection], [], 5)
            connection.sendall(b"SELECT 1")
"""


def test_s57_n4_socket_outside_of_every_boundary_is_named_once_a_place(
    workplace: Workplace, greeter: socket.socket
) -> None:
    """The run is not replayable because db.py opened a socket, and says where; three connections give one entry."""
    workplace.write("db.py", DATABASE_CLIENT)
    agent = workplace.write("agent.py", CALL + "import db\nbook(1)\ndb.query(3)\n")
    port = str(greeter.getsockname()[1])
    workplace.record(agent, PORT=port)
    (leak,) = leaks_of(workplace)
    assert (leak["kind"], leak["count"], leak["is_hole"]) == ("socket", 3, True)
    assert workplace.recording().completeness().reasons == (
        f"db.py:8 query opened a socket to 127.0.0.1:{port} outside of every boundary",
    )


def test_s57_what_a_boundary_does_is_no_leak(workplace: Workplace, greeter: socket.socket, data_file: Path) -> None:
    """Sockets, files, clocks and programs inside a declared call belong to the call: nothing is listed."""
    workplace.write("db.py", DATABASE_CLIENT)
    source = (
        "import os, sys, time, threading, asyncio, spanreplay, db\n"
        "@spanreplay.boundary('tool', name='all')\n"
        "def everything():\n"
        "    db.query(1)\n"
        "    thread = threading.Thread(target=db.query, args=(1,)); thread.start(); thread.join()\n"
        "    os.close(os.open(sys.argv[1], os.O_RDONLY)); os.getrandom(4)\n"
        "    time.clock_gettime(0); os.environb[b'PORT']\n"
        "    os.waitpid(os.posix_spawn('/bin/true', ['true'], os.environ), 0)\n"
        "@spanreplay.boundary('tool', name='asynchronous')\n"
        "async def asynchronous():\n"
        "    reader, writer = await asyncio.open_connection('127.0.0.1', int(os.environ['PORT']))\n"
        "    writer.close()\n"
        "everything()\n"
        "asyncio.run(asynchronous())\n"
    )
    agent = workplace.write("agent.py", source)
    workplace.record(agent, str(data_file), PORT=str(greeter.getsockname()[1]), SPANREPLAY_AUDIT="full")
    assert leaks_of(workplace) == []
    assert workplace.recording().completeness().is_complete


PROCESSES = {
    "posix_spawn": "os.waitpid(os.posix_spawn('/bin/true', ['true'], dict(os.environ)), 0)",
    "spawnv": "os.spawnv(os.P_WAIT, '/bin/true', ['true'])",
    "ctypes": "import ctypes; ctypes.CDLL(None).getpid()",
}


@pytest.mark.parametrize("way", PROCESSES)
def test_s57_programs_started_past_the_seams_are_named(workplace: Workplace, way: str) -> None:
    """`posix_spawn`, `spawn` and the C library bypass the recording: each is a hole with its place."""
    agent = workplace.write("agent.py", CALL + "import os\nbook(1)\n" + PROCESSES[way] + "\n")
    workplace.record(agent)
    line = line_of(agent, PROCESSES[way])
    assert any(f"agent.py:{line} <module>" in leak["code"] for leak in leaks_of(workplace))
    assert any(f"agent.py:{line}" in reason for reason in workplace.recording().completeness().reasons)


def test_s57_the_audit_hook_sees_what_no_patch_sees(workplace: Workplace, data_file: Path) -> None:
    """`io.FileIO` is a C type: only the audit hook of level `full` and of the doctor sees that it read a file."""
    agent = workplace.write("agent.py", CALL + "import io, sys\nbook(1)\nprint(io.FileIO(sys.argv[1]).read())\n")
    command = [str(workplace.python), str(agent), str(data_file)]
    leaks = [f for f in doctor(workplace, *command) if f["subject"] == "leak file"]
    assert [f"agent.py:{line_of(agent, 'FileIO')}" in f["message"] for f in leaks] == [True]


def test_leaks_are_bounded_and_carry_no_secret(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> None:
    """However many places leak, the manifest stays small; secrets in paths are redacted."""
    secret = "sk-proj-" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
    folder = tmp_path_factory.mktemp("data")
    (folder / f"{secret}.txt").write_text("x")
    lines = [f"io.FileIO({str(folder / f'{secret}.txt')!r}).close()"]
    lines += ["time.clock_gettime(0)"] * (LEAKS_MAX + 50)
    agent = workplace.write("agent.py", CALL + "import io, time\nbook(1)\n" + "\n".join(lines))
    workplace.record(agent, SPANREPLAY_AUDIT="full")
    manifest = workplace.recording().root.manifest
    assert (len(manifest["leaks"]), manifest["leaks_dropped"]) == (LEAKS_MAX, 51)
    assert secret not in json.dumps(dict(manifest))


def test_leaks_can_be_left_unnoted(workplace: Workplace) -> None:
    """With SPANREPLAY_AUDIT=off nothing is watched."""
    agent = workplace.write("agent.py", CALL + "import time\nbook(1)\ntime.clock_gettime(0)\n")
    workplace.record(agent, SPANREPLAY_AUDIT="off")
    assert "leaks" not in workplace.recording().root.manifest
