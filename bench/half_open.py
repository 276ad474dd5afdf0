"""Waiting time of a client at each endpoint while thousands of idle, half-open connections exist.

Run: python -m bench.half_open. It talks to loopback only; its largest figure needs 11,000 open files (`ulimit -n`).
"""

from __future__ import annotations

import http.client
import json
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any, Final

from bench.figures import Figure, main

COUNTS: Final = (2_000, 10_000)
PROBES: Final = 5
GOAL_SECONDS: Final = 1.0
FILES_KEPT: Final = 500
SETTLE_TRIES: Final = 100
SETTLED_SECONDS: Final = 0.02
TIMEOUT_S: Final = 40
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_POST: Final = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
_HTTP: Final = {"silent": b"", "half a header": _POST, "half a body": _POST + b"Content-Length: 9\r\n\r\nabc"}
_GRPC: Final = {"silent": b"", "no settings": _PREFACE + b"\0\0\0\4\0\0\0\0\0"}


@contextmanager
def _server() -> Iterator[dict[str, Any]]:
    """Start `spanreplay up` without Phoenix and yield its ports."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-c", "from spanreplay.cli import main; main()"),
            *("up", "--data-dir", folder, "--json", "--no-phoenix"),
            *("--http-port", "0", "--grpc-port", "0", "--port", "0"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                assert process.stdout is not None
                yield json.loads(process.stdout.readline())
            finally:
                process.terminate()


@contextmanager
def _half_open(port: int, count: int, beginning: bytes) -> Iterator[None]:
    with ExitStack() as opened:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
            connection.sendall(beginning)
        yield


def _post(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v1/traces", b"", {"Content-Type": "application/x-protobuf"})
        if connection.getresponse().status != 200:
            raise RuntimeError("the collector does not take an empty request")
    finally:
        connection.close()


def _call(method: str) -> Callable[[int], None]:
    import grpc

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]

    def call(port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            channel.unary_unary(method)(b"", timeout=TIMEOUT_S)

    return call


def _slowest(probe: Callable[[int], None], port: int) -> float:
    times = []
    for _ in range(PROBES):
        start = monotonic()
        probe(port)
        times.append(monotonic() - start)
    return max(times)


def _settle(probe: Callable[[int], None], port: int) -> None:
    """Wait until the server has closed the previous connections."""
    for _ in range(SETTLE_TRIES):
        start = monotonic()
        probe(port)
        if monotonic() - start < SETTLED_SECONDS:
            return


def measure() -> Sequence[Figure]:
    """Measure the slowest of five probes at each endpoint, beside each kind of half-open connections."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    export = _call("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
    figures = []
    with _server() as status:
        ways = (
            ("OTLP/HTTP", status["http_port"], _HTTP, _post),
            ("OTLP/gRPC", status["grpc_port"], _GRPC, export),
            ("the replay service", status["port"], _GRPC, _call("/grpc.health.v1.Health/Check")),
        )
        for count in (min(wanted, files - FILES_KEPT) for wanted in COUNTS):
            for name, port, beginnings, probe in ways:
                worst = {}
                for kind, beginning in beginnings.items():
                    _settle(probe, port)
                    with _half_open(port, count, beginning):
                        worst[kind] = _slowest(probe, port)
                kind = max(worst, key=lambda each: worst[each])
                detail = f"slowest of {PROBES} new connections, worst kind ({kind}); wall clock"
                label = f"{name}, {count:,} half-open connections"
                figures.append(Figure(label, worst[kind], "s", GOAL_SECONDS, detail))
    return figures


if __name__ == "__main__":
    main(measure)
