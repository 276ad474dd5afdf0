"""A local HTTP server whose answers are written by the test: path → a function of the handler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BODY_BYTES_MAX = 4_000_000
Route = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One request; routes answer it with `send` or `send_chunks`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    body: bytes

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class names it so
        return

    def do_GET(self) -> None:
        self.body = self._read_body()
        server: Any = self.server
        owner: RouteServer = server.owner
        owner.requests.append(f"{self.command} {self.path}")
        owner.routes[self.path.partition("?")[0]](self)

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

    def send(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer with a whole body."""
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)
        self.wfile.flush()

    def send_chunks(
        self, pieces: Iterable[bytes], headers: Mapping[str, str] | None = None, *, is_whole: bool = True
    ) -> None:
        """Answer chunk by chunk as pieces arrive; hang up after the last one unless it `is_whole`."""
        self.send_response(200)
        for name, value in {"transfer-encoding": "chunked", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        if is_whole:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True
        self.wfile.flush()

    def send_until_closed(self, pieces: Iterable[bytes], headers: Mapping[str, str] | None = None) -> None:
        """Answer piece by piece without stating the body's length, and close the connection at its end."""
        self.close_connection = True
        self.send_response(200)
        for name, value in {"connection": "close", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: RouteServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # clients of these tests hang up on purpose


class RouteServer:
    """Serves on a port of 127.0.0.1 while entered; `requests` are the requests it got."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.routes = dict(routes)
        self.requests: list[str] = []
        self.stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The root URL, no trailing slash."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RouteServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and end the thread; harmless when done already."""
        if not self.stopping.is_set():
            self.stopping.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
