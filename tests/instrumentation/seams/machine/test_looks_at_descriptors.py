"""Open descriptors are looked at so seldom, and so few of them, that a server with many connections isn't held up."""

from __future__ import annotations

import _socket
import ctypes
import os
import select
import socket
from collections.abc import Iterator

import pytest

from spanreplay.seams.machine.outside import devices, leaks, native_connections


@pytest.fixture
def watcher() -> Iterator[int]:
    """The descriptor of a watcher of files, opened by native code."""
    descriptor = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC)
    assert descriptor >= 0
    yield descriptor
    os.close(descriptor)


def test_p8_a_look_stops_after_some_descriptors(watcher: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest ones: a watcher is opened at the start, connections come later."""
    assert devices.watches_files() == "inotify"
    asked: list[int] = []

    def fstat(descriptor: int) -> os.stat_result:
        asked.append(descriptor)
        return os.fstat(descriptor)

    monkeypatch.setattr(devices, "_fstat", fstat)
    monkeypatch.setattr(devices, "DESCRIPTORS_MAX", 3)
    devices.watches_files()
    assert len(asked) <= 3
    assert asked == sorted(asked)


def test_p8_a_look_that_takes_long_counts_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks take at most half a percent of the time, for all runs of a process together."""
    now, looked = 0, 0

    def look() -> str:
        nonlocal now, looked
        now += 2_000_000
        looked += 1
        return "inotify"

    monkeypatch.setattr(leaks, "watches_files", look)
    monkeypatch.setattr("spanreplay.model.ids.monotonic_ns", lambda: now)
    monkeypatch.setattr(leaks, "_processor_ns", lambda: now)
    watch = leaks._Watch()
    while now < 10_000_000_000:
        now += 1_000_000
        assert watch.find(is_first=looked % 2 == 0)[0] == "inotify"
    assert 20 <= looked <= 10_000_000_000 // (2_000_000 * leaks.LOOK_SHARE) + 1


def test_n14_a_descriptor_that_is_closed_meanwhile_hides_no_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may close any descriptor while the open ones are looked at."""
    monkeypatch.setattr(devices, "_EVENTS", {"anon_inode:[eventpoll]": "inotify"})
    readlink = os.readlink
    gone: list[str] = []

    def read(path: str) -> str:
        if not gone:
            gone.append(path)
            raise FileNotFoundError(path)
        return readlink(path)

    monkeypatch.setattr(devices, "_readlink", read)
    with select.epoll(), select.epoll():
        assert devices.watches_files() == "inotify"
    assert gone


def test_n14_a_busy_machine_does_not_make_looks_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the processor time of a look, not how long others have kept it waiting."""
    now, found = 0, ["", "inotify"]

    def look() -> str:
        nonlocal now
        now += 1_000_000_000
        return found.pop(0)

    monkeypatch.setattr(leaks, "watches_files", look)
    monkeypatch.setattr("spanreplay.model.ids.monotonic_ns", lambda: now)
    monkeypatch.setattr(leaks, "_processor_ns", lambda: 7)
    watch = leaks._Watch()
    assert watch.find(is_first=True)[0] == ""
    assert watch.find(is_first=False)[0] == "inotify"


def test_n14_each_run_looks_for_itself_where_that_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that was opened just after another run's look is seen at the first call of the next one."""
    found = ["", "inotify"]
    monkeypatch.setattr(leaks, "watches_files", lambda: found.pop(0))
    monkeypatch.setattr("spanreplay.model.ids.monotonic_ns", lambda: 1)
    monkeypatch.setattr(leaks, "_processor_ns", lambda: 1)
    watch = leaks._Watch()
    assert watch.find(is_first=True)[0] == ""
    assert watch.find(is_first=False)[0] == ""
    assert watch.find(is_first=True)[0] == "inotify"


def test_n14_connections_of_native_code_are_told_from_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only open TCP connections that neither Python code made nor a server of this process accepted."""
    monkeypatch.setattr(native_connections, "_settled", set())
    monkeypatch.setattr(native_connections, "_is_covered", lambda: False)
    native_connections.set_baseline()
    with socket.create_server(("127.0.0.1", 0)) as outside, socket.create_server(("127.0.0.1", 0)) as own:
        port, own_port = (each.getsockname()[1] for each in (outside, own))

        def find() -> list[str]:
            """Of this test's two servers: other native code of this process may connect anew at any time."""
            return [each for each in native_connections.find_native() if each.endswith((f":{port}", f":{own_port}"))]

        for each in (outside, own):
            native_connections.note_python(each)
        descriptors = []
        for server in (outside, own):
            asking = _socket.socket()  # past the patched class, like native code
            asking.connect(server.getsockname())
            descriptors.append(asking)
        assert find() == [f"127.0.0.1:{each}" for each in (port, own_port)]
        native_connections._listening.add(own_port)
        accepted = own.accept()[0]
        assert find() == [f"127.0.0.1:{port}"]
        assert find() == [f"127.0.0.1:{port}"]
        assert descriptors[0].gettimeout() is None
        accepted.close()
        for asking in descriptors:
            asking.close()
        assert find() == []


def test_n14_a_look_leaves_descriptors_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a default timeout, Python would make another's socket non-blocking: then nobody looks."""
    monkeypatch.setattr(native_connections, "_settled", set())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as asking:
        asking.connect(server.getsockname())
        socket.setdefaulttimeout(5)
        try:
            assert native_connections.find_native() == []
        finally:
            socket.setdefaulttimeout(None)
        native_connections.find_native()
        assert os.get_blocking(asking.fileno())
        assert asking.getpeername() == server.getsockname()
