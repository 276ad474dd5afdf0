"""Faults of the machine and the network, injected for real while an agent is recorded and its run delivered."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from spanreplay.recording.remote.client import ServiceCatalog
from support.replaying import Workplace
from support.up_server import start_up

CLOCK: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long ahead_s;
static const long steps_s[] = {-3600, 90000, -90000};
static unsigned stepped;

/* The agent says when by a call that does nothing else and that no recorder looks at. */
int sched_yield(void) {
    if (stepped < 3) ahead_s += steps_s[stepped++];
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead_s;
    return failed;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
"""
STEPPED: Final = """
import os, time
from spanreplay import boundary

@boundary("tool", effect="write")
def book(number):
    if 0 < number < 4:
        os.sched_yield()  # steps the clock
    return {"booked": number}

began = time.time()
for number in range(5):
    print(book(number), round((time.time() - began) / 3600))
"""
BOOKING: Final = """
from spanreplay import boundary

@boundary("tool", effect="write")
def book(number):
    return {"booked": number, "text": "x" * 20000}

for number in range(20):
    print(book(number)["booked"])
"""


class CuttingProxy:
    """Forwards connections to a server, and cuts the first ones: after some bytes up, or before any byte down."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._port = port
        self._cuts = cuts
        self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop accepting."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                bytes_max = self._cuts.pop(0) if self._cuts else None
                threading.Thread(target=self._pump, args=(client, server, bytes_max), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client, bytes_max), daemon=True).start()

    def _pump(self, client: socket.socket, server: socket.socket, bytes_max: int | None) -> None:
        passed = 0
        with suppress(OSError):
            while piece := client.recv(4096):
                server.sendall(piece)
                passed += len(piece)
                if bytes_max and passed >= bytes_max:
                    self._cut(client, server)
                    return
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket, bytes_max: int | None) -> None:
        with suppress(OSError):
            while piece := server.recv(4096):
                if bytes_max == 0:  # the server has it, the client is not told
                    self._cut(client, server)
                    return
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)

    def _cut(self, *ends: socket.socket) -> None:
        self.cut += 1
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def _cut_off(port: int, cuts: list[int]) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(port, cuts)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.fixture(scope="module")
def clock_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library under which a process's clock can be stepped, below Python and libc."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK, encoding="utf-8")
    made = folder / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(folder / "clock.c"), "-ldl"], check=True)
    return made


def test_r7_a_clock_that_steps_costs_no_call_and_no_order(clock_library: Path, workplace: Workplace) -> None:
    """Steps of an hour back and a day ahead inside calls: the run is whole, ordered, and replays identical."""
    agent = workplace.write("agent.py", STEPPED)
    recorded = workplace.record(agent, LD_PRELOAD=str(clock_library))
    assert [line.split()[-1] for line in recorded.stdout.splitlines()] == ["0", "-1", "24", "-1", "-1"]
    recording = workplace.recording()
    assert recording.completeness().is_complete
    assert [call.index for call in recording.calls] == [0, 1, 2, 3, 4]
    assert all(call.end_ns >= call.start_ns for call in recording.calls)
    assert recording.root.end_ns >= recording.root.start_ns
    replayed = workplace.replay(agent, LD_PRELOAD=str(clock_library))
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert replayed.verdict["verdict"] == "identical"


def test_r7_a_network_that_is_cut_loses_and_doubles_nothing(workplace: Workplace, tmp_path: Path) -> None:
    """Connections cut in the middle of a request and before the answer: the run arrives whole and once."""
    agent = workplace.write("agent.py", BOOKING)
    workplace.record(agent)
    recording = workplace.recording()
    with start_up(tmp_path) as running:
        port = urlsplit(running.otlp_endpoint).port
        assert port is not None
        with _cut_off(port, [1, 5_000, 0, 0]) as proxy:
            endpoint = f"http://127.0.0.1:{proxy.port}"
            for _ in range(10):
                shipped = workplace.run("ship", "--endpoint", endpoint)
                if shipped.returncode == 0:
                    break
            assert shipped.returncode == 0, shipped.stderr
            assert proxy.cut == 4
        with ServiceCatalog(running.endpoint) as client:
            assert client.load(recording.run_id) == recording
