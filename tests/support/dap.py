"""A Debug Adapter Protocol client: as much as an editor needs to attach and inspect."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any, Final

TIMEOUT_S: Final = 600


def _connect(port: int) -> socket.socket:
    """Connect, retrying while refused; no probe connections, since a debugger counts each as its client."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"nobody listens on port {port}"
            select.select([], [], [], 0.05)


class DapClient:
    """One connection; `request` waits for its response, `wait_event` for an event; other events are kept."""

    def __init__(self, port: int) -> None:
        self._socket = _connect(port)
        self._stream = self._socket.makefile("rb")
        self._seq = 0
        self._events: list[dict[str, Any]] = []

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request and return its number."""
        self._seq += 1
        body = json.dumps({"seq": self._seq, "type": "request", "command": command, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return self._seq

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its response."""
        return self.wait_response(self.send(command, **arguments))

    def wait_response(self, number: int) -> dict[str, Any]:
        """Return the response to the request of this number."""
        while True:
            message = self._read()
            if message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                body: dict[str, Any] = message.get("body") or {}
                return body
            self._events.append(message)

    def wait_event(self, name: str) -> dict[str, Any]:
        """Return the next event of this name."""
        while True:
            for message in self._events:
                if message["type"] == "event" and message["event"] == name:
                    self._events.remove(message)
                    body: dict[str, Any] = message.get("body") or {}
                    return body
            self._events.append(self._read())

    def close(self) -> None:
        """Hang up."""
        self._stream.close()
        self._socket.close()

    def _read(self) -> dict[str, Any]:
        length = 0
        while line := self._stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the debugger has hung up"
        message: dict[str, Any] = json.loads(self._stream.read(length))
        return message
