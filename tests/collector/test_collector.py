"""The collector as a whole: ports, start and stop, and kill -9."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from spanreplay.model.errors import ConfigError, PortTaken
from spanreplay_collector.collector import Collector, CollectorSettings
from spanreplay_collector.log.segment_log import Position, SegmentLog
from support.collector import WAIT_S, SwitchStore, make_payload, run_collector
from support.collector_process import read_file_store
from support.ports import free_port

PROTOBUF = {"content-type": "application/x-protobuf"}
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
TESTS = Path(__file__).resolve().parents[1]
KILLS = int(os.environ.get("SPANREPLAY_TEST_KILLS", "4"))
"""Number of kill -9 tests: each is a seed, so a defect keeps its seed; a soak test takes hundreds."""


def start_and_stop(settings: CollectorSettings) -> None:
    async def run() -> None:
        collector = Collector(settings, SwitchStore())
        await collector.start()
        await collector.stop()

    asyncio.run(run())


@pytest.mark.parametrize("taken", ["http_port", "grpc_port"])
def test_collector_says_which_port_is_taken(tmp_path: Path, taken: str) -> None:
    """One line names the port and its use, the hint says what to do, and nothing stays open."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ports = {"http_port": 0, "grpc_port": 0, taken: port}
        with pytest.raises(PortTaken, match=rf"port {port} on 127\.0\.0\.1 is in use, OTLP/") as caught:
            start_and_stop(CollectorSettings(tmp_path, **ports))
        assert "choose another" in caught.value.hint
    start_and_stop(CollectorSettings(tmp_path, **ports))


def test_collector_notices_a_server_that_shares_ports(tmp_path: Path) -> None:
    """A server on all addresses with SO_REUSEPORT would take some of our requests, so its port counts as taken."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            start_and_stop(CollectorSettings(tmp_path, http_port=0, grpc_port=port))


def test_collector_restarts_on_the_same_ports(tmp_path: Path) -> None:
    """A stopped collector frees its ports at once, even with connections in TIME_WAIT."""
    store = SwitchStore()
    ports = {"http_port": free_port(), "grpc_port": free_port()}
    for number in (1, 2, 3):
        with run_collector(tmp_path, store, **ports) as running, httpx.Client(trust_env=False) as client:
            client.post(running.http + "/v1/traces", content=make_payload(number), headers=PROTOBUF)
    assert store.payloads() == [make_payload(1), make_payload(2), make_payload(3)]


def test_r6_collector_refuses_to_listen_openly(tmp_path: Path) -> None:
    """Listening on all addresses without tokens is refused before anything is opened."""
    with pytest.raises(ConfigError, match="anybody on the network"):
        start_and_stop(CollectorSettings(tmp_path / "data", host="0.0.0.0", http_port=0, grpc_port=0))
    assert not (tmp_path / "data").exists()


def test_collector_refuses_an_address_that_is_not_its_own(tmp_path: Path) -> None:
    """An invalid address gives a ConfigError instead of a traceback from the event loop."""
    settings = CollectorSettings(tmp_path, host="127.0.0.1.7.7", http_port=0, grpc_port=0)
    with pytest.raises(ConfigError):
        start_and_stop(settings)


def test_collector_flush_reports_a_store_that_is_away(tmp_path: Path) -> None:
    """flush raises TimeoutError instead of claiming success."""
    store = SwitchStore()
    store.is_down = True

    async def run() -> None:
        collector = Collector(CollectorSettings(tmp_path, http_port=0, grpc_port=0), store)
        await collector.start()
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{collector.http_port}/v1/traces"
            await client.post(url, content=make_payload(1), headers=PROTOBUF)
        with pytest.raises(TimeoutError, match="has not taken everything"):
            await collector.flush(0.05)
        await collector.stop()

    asyncio.run(run())
    with run_collector(tmp_path, later := SwitchStore()) as running:
        running.flush()
    assert later.payloads() == [make_payload(1)]


# ── kill -9 ─────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def spawn(python: str, data_dir: Path, store: str) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    process = subprocess.Popen(
        [python, "-m", "support.collector_process", str(data_dir), store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ports = json.loads(process.stdout.readline())
        yield process, ports["http"], ports["grpc"]
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


class Senders:
    """Threads that send numbered payloads, half over HTTP, half over gRPC, until the collector is gone."""

    def __init__(self, http_port: int, grpc_port: int, dice: random.Random, first: int) -> None:
        self.acknowledged: list[bytes] = []
        self.enough = threading.Event()
        self._goal = dice.randrange(1, 120)
        self._sizes = [dice.choice([10, 300, 5_000, 60_000]) for _ in range(8)]
        self._ports = (http_port, grpc_port)
        self._lock = threading.Lock()
        self._first = first
        self._threads = [threading.Thread(target=self._send, args=(place,)) for place in range(4)]
        for thread in self._threads:
            thread.start()

    def _send(self, place: int) -> None:
        for number in range(self._first + place, self._first + 4000, 4):
            body = make_payload(number, text="x" * self._sizes[number % 8])
            try:
                if place % 2:
                    self._export_grpc(body)
                else:
                    url = f"http://127.0.0.1:{self._ports[0]}/v1/traces"
                    httpx.post(url, content=body, headers=PROTOBUF, trust_env=False, timeout=WAIT_S).raise_for_status()
            except (httpx.HTTPError, grpc.RpcError):
                return
            with self._lock:
                self.acknowledged.append(body)
                if len(self.acknowledged) >= self._goal:
                    self.enough.set()

    def _export_grpc(self, body: bytes) -> None:
        target = f"127.0.0.1:{self._ports[1]}"
        with grpc.insecure_channel(target, [("grpc.enable_http_proxy", 0)]) as channel:
            channel.unary_unary(EXPORT)(body, timeout=WAIT_S)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)


def read_log(data_dir: Path) -> list[bytes]:
    log = SegmentLog(data_dir / "log", cursors={"loader": None})
    try:
        payloads: list[bytes] = []
        position = Position(0, 0)
        while True:
            batch = log.read(position, bytes_max=1 << 30, records_max=1 << 30)
            if not batch.records and batch.next == position:
                return payloads
            payloads += [record.payload for record in batch.records]
            position = batch.next
    finally:
        log.close()


@pytest.mark.parametrize("seed", range(KILLS))
def test_c1_kill_while_acknowledging(tmp_path: Path, python: str, seed: int) -> None:
    """After kill -9 at a random acknowledgement, with the store unavailable, every acknowledged request is logged."""
    dice = random.Random(seed)
    with spawn(python, tmp_path, "down") as (process, http_port, grpc_port):
        senders = Senders(http_port, grpc_port, dice, first=1)
        assert senders.enough.wait(WAIT_S)
        process.send_signal(signal.SIGKILL)
        process.wait()
        senders.join()
    assert len(senders.acknowledged) > 0
    assert set(senders.acknowledged) <= set(read_log(tmp_path))


@pytest.mark.parametrize("seed", range(max(1, KILLS // 2)))
def test_c1_kill_while_loading(tmp_path: Path, python: str, seed: int) -> None:
    """After three kills while receiving and loading, every acknowledged request is stored, none twice."""
    dice = random.Random(seed)
    store = tmp_path / "store"
    acknowledged: list[bytes] = []
    for life in range(3):
        with spawn(python, tmp_path / "data", str(store)) as (process, http_port, grpc_port):
            senders = Senders(http_port, grpc_port, dice, first=1 + 10_000 * life)
            assert senders.enough.wait(WAIT_S)
            process.send_signal(signal.SIGKILL)
            process.wait()
            senders.join()
        acknowledged += senders.acknowledged
    with spawn(python, tmp_path / "data", str(store)) as (process, _, _):
        assert process.stdin is not None
        process.stdin.close()  # a clean stop loads what is left
        assert process.wait(WAIT_S) == 0
    loads = read_file_store(store)
    assert len({token for token, _ in loads}) == len(loads)
    stored = [payload for _, payloads in loads for payload in payloads]
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))


def read_peak_mib(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_r6_bombs_do_not_fill_the_memory(tmp_path: Path, python: str) -> None:
    """Twenty gzip bombs of 300 MiB at once are answered 413, and take a fraction of the memory of one of them."""
    bomb = gzip.compress(bytes(300 << 20), 1)
    headers = {**PROTOBUF, "content-encoding": "gzip"}
    with spawn(python, tmp_path, "down") as (process, http_port, _), ThreadPoolExecutor(20) as pool:
        before = read_peak_mib(process)
        url = f"http://127.0.0.1:{http_port}/v1/traces"

        def post(_: int) -> int:
            return httpx.post(url, content=bomb, headers=headers, trust_env=False, timeout=60).status_code

        assert set(pool.map(post, range(20))) == {413}
        assert read_peak_mib(process) - before < 250
