"""A server whose listening socket comes from a process manager (systemd, circus): its requests replay without one."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from spanreplay.runtime.process import inherited_sockets
from support.agents import instrument
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import CHAT, COMMAND, Server, prepare


def test_p2_request_to_an_inherited_socket_replays_without_it(provider: Provider, tmp_path: Path) -> None:
    """`uvicorn --fd 7`: in the replay nobody gives that descriptor, and the request is identical."""
    workplace = prepare(tmp_path, provider, CHAT)
    with socket.create_server(("127.0.0.1", 0)) as opened, _at_a_high_number(opened) as listening:
        number = listening.fileno()
        command = [str(workplace.python), *COMMAND, "--fd", str(number)]
        words, environ = instrument(command, workplace.environ, workplace.path, workplace.python)
        process = subprocess.Popen(
            words, cwd=workplace.path, env=environ, pass_fds=[number], text=True, stdout=-1, stderr=-1
        )
        server = Server(workplace, listening.getsockname()[1], process)
    try:
        request = urllib.request.Request(
            f"{server.url}/chat", json.dumps({"text": "one"}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            assert response.status == 200
        server.await_ends()
    finally:
        server.stop()
    (unit,) = server.units()
    assert unit.root.env[inherited_sockets.MEMBER] == [[number, int(socket.AF_INET), int(socket.SOCK_STREAM)]]
    done = workplace.run("replay", unit.run_id, "--", *command)
    assert done.returncode == 0, done.stderr


def _at_a_high_number(opened: socket.socket) -> socket.socket:
    """Return the socket under a number that only a manager with hundreds of open files gives."""
    return socket.socket(fileno=fcntl.fcntl(opened.fileno(), fcntl.F_DUPFD_CLOEXEC, 700))


def test_p2_only_free_descriptors_of_ordinary_sockets_are_given(tmp_path: Path) -> None:
    """A recording can't make a replay replace its files, or open sockets of another kind."""
    with (tmp_path / "mine").open("w") as mine:
        before = os.fstat(mine.fileno())
        free = os.dup(mine.fileno())
        os.close(free)
        stream, raw = int(socket.SOCK_STREAM), int(socket.SOCK_RAW)
        rows = [
            *([mine.fileno(), int(socket.AF_INET), stream], [free, int(socket.AF_INET), raw], [1, 2, 1], [-1, 2, 1]),
            *([free, 17, stream], [10**9, 2, stream], ["7", 2, 1], [free], None, [free, True, 1]),
        ]
        inherited_sockets.give({inherited_sockets.MEMBER: rows})
        inherited_sockets.give({inherited_sockets.MEMBER: "7"})
        assert os.fstat(mine.fileno()) == before
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(free)
