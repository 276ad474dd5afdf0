"""A server that breaks off; the path of a request says where: /close, /hang, /junk, /half, /cut or /stuck."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Final

_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
ANSWERS: Final = {
    "close": b"",
    "hang": b"",
    "junk": b"nonsense\r\n\r\n",
    "half": _HEAD + b"content-length: 100\r\n\r\nhello",
    "cut": _HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n9\r\nwor",
    "stuck": _HEAD + b"content-length: 100\r\n\r\nhello",
}
_WAITING: Final = ("hang", "stuck")
"""Paths after whose answer the server waits until the client hangs up."""
READ_BYTES: Final = 65_536


class FaultyServer:
    """Serves on a port of 127.0.0.1 while entered."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(client,), daemon=True).start()


def _answer(client: socket.socket) -> None:
    with client:
        asked = client.recv(READ_BYTES)
        words = asked.partition(b"\r\n")[0].split()
        name = words[1].decode("latin-1").strip("/").partition("/")[0] if len(words) > 1 else ""
        client.sendall(ANSWERS.get(name, ANSWERS["junk"]))
        try:
            while name in _WAITING and client.recv(READ_BYTES):
                pass
        except OSError:
            return
