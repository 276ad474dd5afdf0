"""A server outside of the recorded program; it answers every connection with one text."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support.certificates import Certificates


@contextmanager
def answering(text: bytes, *, reads: bool) -> Iterator[tuple[int, list[bytes]]]:
    """Serve; yield the port and the input of each connection, which is empty unless the server `reads`."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    asking, _ = server.accept()
                except OSError:
                    return
                with asking:
                    asked.append(asking.recv(100) if reads else b"")
                    asking.sendall(text)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def keeping(certificates: Certificates | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """Answer each line of a connection with its number, encrypted if there are certificates; yield port and lines."""
    lines: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                lines.append(line)
                self.wfile.write(b"%d\n" % len(lines))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates.server_cert, certificates.server_key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1], lines
        server.shutdown()
        thread.join()
