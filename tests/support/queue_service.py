"""A queue service on loopback that speaks the JSON protocol of Amazon SQS: send, receive, delete."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]


class _Queues:
    """The messages of each queue that nobody has taken."""

    def __init__(self) -> None:
        self._queues: defaultdict[str, deque[Message]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._count = 0

    def answer(self, operation: str, asked: Message) -> Message:
        """Carry out one request."""
        queue = self._queues[asked["QueueUrl"]]
        with self._lock:
            if operation == "SendMessage":
                self._count += 1
                body, attributes = asked["MessageBody"], asked.get("MessageAttributes", {})
                digest = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
                made = {"MessageId": f"m-{self._count}", "ReceiptHandle": f"r-{self._count}", "Body": body}
                queue.append({**made, "MD5OfBody": digest, "MessageAttributes": attributes})
                return {"MessageId": made["MessageId"], "MD5OfMessageBody": digest}
            if operation == "ReceiveMessage":
                return {"Messages": [queue.popleft()]} if queue else {}
        return {}


@contextmanager
def a_queue_service() -> Iterator[str]:
    """Run a service; yields its address."""
    queues = _Queues()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            operation = self.headers["x-amz-target"].rpartition(".")[2]
            body = json.dumps(queues.answer(operation, asked)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/x-amz-json-1.0")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
