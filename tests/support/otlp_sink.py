"""A real OTLP/HTTP collector on loopback whose answers are set by the test."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """One request as it arrived; the body is unpacked."""

    path: str
    headers: dict[str, str]
    body: bytes

    def span_ids(self) -> list[int]:
        """Return the ids of the spans, as numbers, in order."""
        message = ExportTraceServiceRequest.FromString(self.body)
        return [
            int.from_bytes(span.span_id, "big")
            for resource_spans in message.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]


@dataclass(frozen=True)
class Answer:
    """The collector's answer; `hangs` never answers, `is_garbage` sends something other than HTTP."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hangs: bool = False
    is_garbage: bool = False


OK = Answer()


def reserve_port() -> socket.socket:
    """Return a bound socket that refuses connections until it listens."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


class OtlpSink(ThreadingHTTPServer):
    """Keeps every request; `answer` may be replaced at any time."""

    daemon_threads = True

    def __init__(self, reserved: socket.socket, *, keeps_alive: bool) -> None:
        super().__init__(reserved.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = reserved
        self.keeps_alive = keeps_alive
        self.answer: Callable[[Seen], Answer] = lambda seen: OK
        self.seen: list[Seen] = []
        self.accepted: list[Seen] = []
        self.asked: list[str] = []
        """Paths of the GET requests."""
        self.told = b"{}"
        """The JSON answer to GET requests."""
        self.says_who = threading.Event()
        """GET requests are answered once it is set."""
        self.says_who.set()
        self.is_over = threading.Event()
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """The base URL."""
        return endpoint_of(self.socket)

    def span_ids(self) -> list[int]:
        """Return the ids of all accepted spans, in order of arrival."""
        with self.lock:
            return [span_id for seen in self.accepted for span_id in seen.span_ids()]


class _Handler(BaseHTTPRequestHandler):
    def handle_one_request(self) -> None:
        self.protocol_version = "HTTP/1.1" if cast(OtlpSink, self.server).keeps_alive else "HTTP/1.0"
        super().handle_one_request()

    def do_POST(self) -> None:
        sink = cast(OtlpSink, self.server)
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {k.lower(): v for k, v in self.headers.items()}
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        seen = Seen(self.path, headers, body)
        answer = sink.answer(seen)
        with sink.lock:
            sink.seen.append(seen)
            if 200 <= answer.status < 300 and not answer.hangs and not answer.is_garbage:
                sink.accepted.append(seen)
        if answer.hangs:
            sink.is_over.wait()
            self.close_connection = True
            return
        if answer.is_garbage:
            self.wfile.write(b"what is this?\n")
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def do_GET(self) -> None:
        sink = cast(OtlpSink, self.server)
        sink.asked.append(self.path)
        sink.says_who.wait()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sink.told)))
        self.end_headers()
        self.wfile.write(sink.told)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server gave it
        """Keep quiet."""


def endpoint_of(reserved: socket.socket) -> str:
    """The base URL of a reserved port."""
    return f"http://127.0.0.1:{reserved.getsockname()[1]}"


@contextmanager
def serve(
    reserved: socket.socket | None = None, *, keeps_alive: bool = True, tls: ssl.SSLContext | None = None
) -> Iterator[OtlpSink]:
    """Run a collector on a free port or on a reserved one."""
    sink = OtlpSink(reserved or reserve_port(), keeps_alive=keeps_alive)
    if tls is not None:
        sink.socket = tls.wrap_socket(sink.socket, server_side=True)
    sink.server_activate()
    thread = threading.Thread(target=sink.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield sink
    finally:
        sink.is_over.set()
        sink.says_who.set()
        sink.shutdown()
        thread.join()
        sink.server_close()
