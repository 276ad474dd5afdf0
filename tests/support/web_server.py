"""A local HTTP server whose every answer is unique, for tests of transports."""

from __future__ import annotations

import gzip
import json
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.wire_bedrock import aws_event

BODY_BYTES_MAX = 1_000_000
PIECES = 5


class WebServer:
    """Serves on a port of 127.0.0.1 while entered; `requests` are the requests it got."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.web = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._is_stopped = False
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        """The root URL, no trailing slash."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> WebServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and end the thread; harmless when done already."""
        if not self._is_stopped:
            self._is_stopped = True
            self.stopping.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    web: WebServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # clients of these tests hang up on purpose


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names it so
        return

    def do_GET(self) -> None:
        body = self._read_body()
        self.server.web.requests.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        answer: Callable[[bytes], None] = getattr(self, "answer_" + path.split("/")[1].replace("-", "_"))
        answer(body)

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815 -- the base class names them so

    def _read_body(self) -> bytes:
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found
        return self.rfile.read(min(int(self.headers.get("content-length") or 0), BODY_BYTES_MAX))

    def _send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", headers.pop("content_type", "application/json"))
        self.send_header("x-request-id", uuid.uuid4().hex)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def answer_json(self, body: bytes) -> None:
        """Answer with the request and a unique number."""
        answer = {"id": uuid.uuid4().hex, "path": self.path, "method": self.command, "got": body.decode("latin-1")}
        self._send(json.dumps(answer).encode())

    def answer_gzip(self, body: bytes) -> None:
        """Answer like `answer_json`, compressed."""
        self._send(gzip.compress(json.dumps({"id": uuid.uuid4().hex, "x": "é" * 50}).encode()), content_encoding="gzip")

    def answer_binary(self, body: bytes) -> None:
        """Answer with bytes that aren't text."""
        self._send(bytes(range(256)) + uuid.uuid4().bytes, content_type="application/octet-stream")

    def answer_pieces(self, body: bytes) -> None:
        """Answer with a stream of lines, chunk by chunk."""
        self._pieces(PIECES, is_whole=True)

    def answer_broken(self, body: bytes) -> None:
        """Answer with a truncated stream."""
        self._pieces(2, is_whole=False)

    def answer_torn(self, body: bytes) -> None:
        """Answer with chunks whose parts and ends arrive separately."""
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in (b"a\r\nhello", b"world", b"\r\n", b"3\r\nyes\r\n0\r\n\r\n"):
            self.wfile.write(part)
            self.wfile.flush()
            time.sleep(0.05)  # a slow line

    def _pieces(self, count: int, *, is_whole: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for n in range(count):
            piece = f"data: {n} {uuid.uuid4().hex} é\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        if is_whole:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.close_connection or not is_whole
        self.wfile.flush()

    def answer_moved(self, body: bytes) -> None:
        """Redirect to /json."""
        self._send(b"moved", 302, location="/json?moved=1")

    def answer_cookie(self, body: bytes) -> None:
        """Set a cookie."""
        self._send(b"{}", set_cookie="flavour=oat; Path=/")

    def answer_cookies(self, body: bytes) -> None:
        """Answer with the received cookies and a number."""
        self._send(json.dumps({"cookies": self.headers.get("cookie", ""), "id": uuid.uuid4().hex}).encode())

    def answer_status(self, body: bytes) -> None:
        """Answer with the status in the path: /status/503."""
        self._send(json.dumps({"error": uuid.uuid4().hex}).encode(), int(self.path.split("/")[2]))

    def answer_hang_up(self, body: bytes) -> None:
        """Close the connection without an answer."""
        self.close_connection = True
        self.connection.close()

    def answer_model(self, body: bytes) -> None:
        """Answer like Bedrock's Converse: a JSON answer or an event stream."""
        if self.path.endswith("/converse-stream"):
            self._events()
            return
        text = f"hello {uuid.uuid4().hex}"
        usage = {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8}
        message = {"role": "assistant", "content": [{"text": text}]}
        answer = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 7}}
        self._send(json.dumps(answer).encode())

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/vnd.amazon.eventstream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        deltas = [{"contentBlockIndex": 0, "delta": {"text": uuid.uuid4().hex}} for _ in range(PIECES)]
        events = [
            ("messageStart", {"role": "assistant"}),
            *(("contentBlockDelta", delta) for delta in deltas),
            ("messageStop", {"stopReason": "end_turn"}),
        ]
        for name, event in events:
            piece = aws_event(name, json.dumps(event).encode())
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def answer_b(self, body: bytes) -> None:
        """Answer like an S3 bucket: it has one object and accepts any upload."""
        if self.path.partition("?")[0].endswith("/missing"):
            error = b"<Error><Code>NoSuchKey</Code><Message>it is not here</Message></Error>"
            self._send(error, 404, content_type="application/xml")
        elif self.command == "PUT":
            self._send(b"", etag='"1"')
        else:
            self._send(f"line one\nline two {uuid.uuid4().hex}\n".encode(), content_type="text/plain")

    def answer_wait(self, body: bytes) -> None:
        """Don't answer until the server is stopped or the client disconnects."""
        self.server.web.stopping.wait(30)

    def answer_v1(self, body: bytes) -> None:
        """Accept telemetry."""
        self._send(b"{}")
