"""The ports under connections on which nothing happens, and what /readyz reports."""

from __future__ import annotations

import contextlib
import itertools
import socket
from pathlib import Path

import grpc
import httpx
import pytest

from spanreplay_collector import limits
from spanreplay_collector.receive.connections import IdleWatch, count_connections_max, raise_file_limit
from support.collector import SwitchStore, make_payload, run_collector
from support.half_open import BEGINNINGS, count_possible, open_connections

COUNT = 2_000
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
HEADERS = {"content-type": "application/x-protobuf"}
IMPATIENT_S = 30.0
"""A hang is a failure; `python -m bench half_open` measures the speed."""


def _post(url: str) -> int:
    with httpx.Client(trust_env=False, timeout=IMPATIENT_S) as client:
        return client.post(f"{url}/v1/traces", content=make_payload(1), headers=HEADERS).status_code


def _export(address: str) -> None:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        channel.unary_unary(EXPORT)(make_payload(1), timeout=IMPATIENT_S)


def test_l28_half_open_connections_keep_nobody_out(tmp_path: Path) -> None:
    """Two thousand silent and half-begun connections at each port don't keep the next client from being answered."""
    store = SwitchStore()
    with run_collector(tmp_path, store) as running:
        host, _, grpc_port = running.grpc.rpartition(":")
        http_port = int(running.http.rpartition(":")[2])
        count = count_possible(COUNT, per_connection=4)
        kinds = [BEGINNINGS["silent"], *(b for name, b in BEGINNINGS.items() if name != "no_body")]
        http_kinds = list(itertools.islice(itertools.cycle(kinds), count))
        grpc_kinds = list(itertools.islice(itertools.cycle([b"", BEGINNINGS["no_settings"]]), count))
        with open_connections(host, http_port, http_kinds), open_connections(host, int(grpc_port), grpc_kinds):
            assert [_post(running.http) for _ in range(3)] == [200, 200, 200]
            _export(running.grpc)
        running.flush()
    assert len(store.payloads()) == 4


def test_l28_a_stated_length_holds_nobody_up(tmp_path: Path) -> None:
    """Clients that announce large bodies and send none take no share of the bytes in flight."""
    with run_collector(tmp_path, SwitchStore()) as running:
        port = int(running.http.rpartition(":")[2])
        with open_connections("127.0.0.1", port, [BEGINNINGS["no_body"]] * 20):
            assert _post(running.http) == 200


def _pair(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(listener.getsockname(), timeout=IMPATIENT_S)
    return client, listener.accept()[0]


def test_l28_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection to our port is closed after a timeout, shorter if there are many; others are untouched."""
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as foreign:
        idle, idle_end = _pair(ours)
        other, other_end = _pair(foreign)
        with idle, idle_end, other, other_end:
            watch = IdleWatch(ours.getsockname()[1], connections_max=100)
            assert watch.close_idle() == 0
            monkeypatch.setattr(limits, "IDLE_CROWDED_S", 0)
            assert watch.close_idle() == 0
            monkeypatch.setattr(limits, "IDLE_CROWD_SHARE", 0)
            assert watch.close_idle() == 1
            assert idle_end.recv(1) == b""
            other_end.sendall(b"x")
            assert other.recv(1) == b"x"
            late, late_end = _pair(ours)
            with late, late_end:
                late.sendall(b"x")
                assert late_end.recv(1) == b"x"
            monkeypatch.setattr(limits, "IDLE_S", 0)
            monkeypatch.setattr(limits, "IDLE_CROWD_SHARE", 1)
            late, late_end = _pair(ours)
            with late, late_end:
                assert watch.close_idle() >= 1
                assert late_end.recv(1) == b""


def test_l28_a_server_ends_silent_connections_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was sent before the silence, the server closes the connection and goes on serving others."""
    monkeypatch.setattr(limits, "IDLE_SCAN_S", 0.05)
    with run_collector(tmp_path, SwitchStore()) as running:
        port = int(running.http.rpartition(":")[2])
        beginnings = [BEGINNINGS[name] for name in ("silent", "half_a_preface", "half_a_header", "half_a_body")]
        with open_connections("127.0.0.1", port, beginnings) as connections:
            with monkeypatch.context() as impatient:
                impatient.setattr(limits, "IDLE_S", 0.2)
                for connection in connections:
                    with contextlib.suppress(ConnectionResetError):  # some of the sent bytes had not been read
                        while connection.recv(4096):
                            pass
            assert _post(running.http) == 200


def test_l28_open_files_are_shared_out() -> None:
    """The process raises its limit of open files as far as it may, and reserves some of them for log and store."""
    files = raise_file_limit()
    assert 0 < files <= limits.FILES_MAX
    assert raise_file_limit() == files
    assert count_connections_max(20_000) == 20_000 - limits.FILES_RESERVED
    assert count_connections_max(1_024) == 512


def test_l28_ready_means_that_log_and_store_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/readyz needs neither token nor Phoenix; it answers 503, with the reason, while log or store is unavailable."""
    monkeypatch.setattr(limits, "READY_FRESH_S", 0)
    store = SwitchStore()

    def ask() -> tuple[int, str]:
        with httpx.Client(trust_env=False, timeout=IMPATIENT_S) as client:
            response = client.get(f"{running.http}/readyz")
            return response.status_code, response.text

    with run_collector(tmp_path, store, phoenix_url="http://127.0.0.1:9") as running:
        assert ask() == (200, "ready\n")
        store.is_down = True
        assert ask() == (503, "the store does not answer (StoreError)\n")
        store.is_down = False
        in_the_way = tmp_path / "log" / ".ready"
        in_the_way.mkdir()
        assert ask() == (503, "the log cannot be written: Is a directory\n")
        in_the_way.rmdir()
        with monkeypatch.context() as full:
            full.setattr(limits, "DISK_FREE_BYTES_MIN", 1 << 62)
            status, said = ask()
            assert (status, "the log is full" in said) == (503, True)
        assert ask() == (200, "ready\n")
        assert not in_the_way.exists()


def test_l28_readiness_is_asked_once_for_many(tmp_path: Path) -> None:
    """A flood of /readyz requests reaches the store only once in a while."""
    asked = itertools.count()

    class CountingStore(SwitchStore):
        def ping(self) -> None:
            next(asked)

    with (
        run_collector(tmp_path, CountingStore()) as running,
        httpx.Client(trust_env=False, timeout=IMPATIENT_S) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(limits, "READY_FRESH_S", 3600)
        assert {client.get(f"{running.http}/readyz").status_code for _ in range(20)} == {200}
    assert next(asked) == 1
