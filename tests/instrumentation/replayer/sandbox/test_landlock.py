"""The kernel denies changes to files, and nothing else; tested in child processes, because it can't be lifted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spanreplay.replayer.resolve.continuation import Resume
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.sandbox import kernel_guard
from support.native import needs_landlock, needs_offline

CHANGES = {
    "create": "open(there / 'new', 'w')",
    "overwrite": "open(there / 'kept', 'r+').write('changed')",
    "append": "open(there / 'kept', 'a').write('more')",
    "empty": "open(there / 'kept', 'w')",
    "truncate": "os.truncate(there / 'kept', 1)",
    "remove": "os.remove(there / 'kept')",
    "rename": "os.rename(there / 'kept', there / 'moved')",
    "replace": "os.replace(there / 'kept', there / 'other')",
    "carry_away": "os.rename(there / 'kept', free / 'moved')",
    "bring": "os.rename(free / 'kept', there / 'moved')",
    "link": "os.link(there / 'kept', free / 'way in')",
    "symlink": "os.symlink('kept', there / 'link')",
    "mkdir": "os.mkdir(there / 'folder')",
    "rmdir": "os.rmdir(there / 'empty')",
    "fifo": "os.mkfifo(there / 'fifo')",
    "socket": "import socket; socket.socket(socket.AF_UNIX).bind(str(there / 'socket'))",
    "through_a_link": "open(free / 'out', 'w')",
    "in_a_thread": (
        "import concurrent.futures as c; c.ThreadPoolExecutor().submit(os.remove, there / 'kept').result()"
    ),
    "in_a_program": "import subprocess; subprocess.run(['rm', str(there / 'kept')], check=True)",
}
ALLOWED = {
    "read": "assert (there / 'kept').read_text() == 'kept' and 'kept' in os.listdir(there)",
    "execute": "import subprocess; subprocess.run(['true'], check=True)",
    "create": "(free / 'new').write_text('x'); (free / 'new').unlink()",
    "move": "os.mkdir(free / 'a'); os.rename(free / 'kept', free / 'a' / 'moved'); os.rename(free / 'a', free / 'b')",
    "file": "(there / 'report').write_text('x'); os.truncate(there / 'report', 0)",
    "device": "open('/dev/null', 'w').write('x')",
    "open_before": "held.write('x'); held.flush()",
    "pipe": "a, b = os.pipe(); os.write(b, b'x'); os.write(os.open(f'/proc/self/fd/{b}', os.O_WRONLY), b'x')",
}
PROGRAM = """
import os, pathlib, sys
from spanreplay.replayer.sandbox import landlock

there, free = pathlib.Path("there").absolute(), pathlib.Path("free").absolute()
held = open(there / "held", "w")
why = landlock.restrict([str(free), "/dev", "/not/there"], [str(there / "report")]).why
assert not why, why
"""


def run(path: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder with some files."""
    there, free = path / "there", path / "free"
    for folder in (there, free, there / "empty"):
        folder.mkdir()
    for file in (there / "kept", there / "other", there / "report", free / "kept"):
        file.write_text("kept", encoding="utf-8")
    (free / "out").symlink_to(there / "kept")
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", source], cwd=path, env=environ, capture_output=True, text=True, timeout=600, check=False
    )


def state(path: Path) -> dict[str, str]:
    """The current files and their content."""
    return {p.name: p.read_text(encoding="utf-8") if p.is_file() else "" for p in sorted((path / "there").iterdir())}


@needs_landlock
@pytest.mark.parametrize("way", CHANGES)
def test_n14_the_kernel_denies_every_way_to_change_a_file(way: str, tmp_path: Path) -> None:
    """Every change outside the free folders fails, in later threads and programs too."""
    done = run(tmp_path, PROGRAM + CHANGES[way])
    assert done.returncode == 1
    assert "Permission denied" in done.stderr or "cross-device" in done.stderr or "CalledProcessError" in done.stderr
    assert state(tmp_path) == {"empty": "", "held": "", "kept": "kept", "other": "kept", "report": "kept"}


@needs_landlock
@pytest.mark.parametrize("way", ALLOWED)
def test_n14_the_kernel_leaves_everything_else_as_it_is(way: str, tmp_path: Path) -> None:
    """Reading, programs, devices, free folders and files, and files that were open before still work."""
    done = run(tmp_path, PROGRAM + ALLOWED[way])
    assert done.returncode == 0, done.stderr


def test_without_landlock_nothing_is_denied_and_it_is_said(tmp_path: Path) -> None:
    """A kernel without the system call is not an error: the caller is told, and may write."""
    unknown = "from spanreplay.replayer.sandbox import landlock; landlock._CREATE_RULESET = 4444\n"
    source = PROGRAM.replace("assert not why, why", "print(why); (there / 'kept').write_text('x')")
    done = run(tmp_path, unknown + source)
    assert done.stdout == "this kernel, or the process's parent, does not allow Landlock: Function not implemented\n"
    assert state(tmp_path)["kept"] == "x"


@needs_landlock
def test_without_rights_left_nothing_is_half_denied(tmp_path: Path) -> None:
    """If the kernel refuses midway (a seventeenth time, its limit), the earlier restrictions stay as they were."""
    again = "whys = [landlock.restrict([str(free)]).why for _ in range(20)]\nprint(whys[0], '|', whys[-1])\n"
    done = run(tmp_path, PROGRAM + again + ALLOWED["create"])
    assert done.stdout.startswith(" | this kernel")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        pytest.param(Plan(live=("tool:pay",)), "the plan lets calls go live", id="live"),
        pytest.param(Plan().live("llm[3..]"), "the plan lets calls go live", id="live_from_a_call_on"),
        pytest.param(Plan(on_change="live"), "the plan lets calls go live", id="on_change"),
        pytest.param(Plan().changed("live", "llm"), "the plan lets calls go live", id="on_change_of_some"),
        pytest.param(Plan().go_on(Resume("yes", True, False)), "the run continues live", id="resume"),
        pytest.param(Plan().to(3, is_break=True), "a debugger may write", id="break"),
    ],
)
def test_n14_a_replay_that_may_write_for_real_is_not_guarded(plan: Plan, why: str, tmp_path: Path) -> None:
    """If the plan lets anything happen for real, the kernel guard stays off, because it can't be lifted later."""
    guard = kernel_guard.enter(plan)
    assert guard.describe() == {"files": "python", "network": "python", "why": why}
    (tmp_path / "written").write_text("x", encoding="utf-8")


def test_n14_the_guard_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SPANREPLAY_SANDBOX=python leaves native code unrestricted, and the verdict says so."""
    monkeypatch.setenv("SPANREPLAY_SANDBOX", "python")
    wanted = {"files": "python", "network": "python", "why": "SPANREPLAY_SANDBOX=python"}
    assert kernel_guard.enter(Plan()).describe() == wanted
    (tmp_path / "written").write_text("x", encoding="utf-8")


NETWORK = """
import os, socket, subprocess, sys
from spanreplay.replayer.sandbox import landlock

servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
allowed, denied = (server.getsockname()[1] for server in servers)
restricted = landlock.restrict(["/dev"], ports=[allowed])
assert restricted == landlock.Restricted(is_offline=True), restricted
socket.create_connection(("127.0.0.1", allowed)).close()
for way in (
    lambda: socket.create_connection(("127.0.0.1", denied)),
    lambda: subprocess.run(
        [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {denied}))"],
        check=True, stderr=subprocess.DEVNULL,
    ),
):
    try:
        way()
    except (PermissionError, subprocess.CalledProcessError):
        continue
    raise AssertionError("it has connected")
socket.create_server(("127.0.0.1", 0)).close()
a, b = socket.socketpair()
a.send(b"x")
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagram.sendto(b"x", ("127.0.0.1", denied))
"""


@needs_offline
def test_n14_the_kernel_denies_connections_to_all_ports_but_some(tmp_path: Path) -> None:
    """Started programs are covered too; servers, socket pairs and datagrams still work."""
    done = run(tmp_path, NETWORK)
    assert done.returncode == 0, done.stderr


@needs_landlock
def test_n14_without_ports_the_network_stays_as_it_is(tmp_path: Path) -> None:
    """Connections stay allowed for a program with its own server, and on a kernel that can't restrict them."""
    connects = "restricted = landlock.restrict(['/dev'])\nsocket.create_connection(('127.0.0.1', denied)).close()\n"
    old = "landlock.NETWORK_ABI = 1000\n" + connects.replace("['/dev']", "['/dev'], ports=[]")
    for source in (connects, old):
        folder = tmp_path / str(len(source))
        folder.mkdir()
        done = run(folder, NETWORK.partition("restricted =")[0] + source + "assert not restricted.is_offline")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://collector:4318/v1/traces", 4318),
        ("https://collector", 443),
        ("http://collector", 80),
        ("replay:50051", 50051),
        ("replay", 0),
        ("", 0),
        ("http://collector:70000", 0),
    ],
)
def test_n14_the_port_of_ours_is_the_addresss(url: str, port: int) -> None:
    """A URL without a usable port gives 0."""
    assert kernel_guard.port_of(url) == port
