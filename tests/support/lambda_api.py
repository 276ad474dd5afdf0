"""AWS Lambda's Runtime API on loopback: hands out invocations one after another and keeps the responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

_ROOT: Final = "/2018-06-01/runtime"
_DEADLINE_MS: Final = 4_102_444_800_000
"""The year 2100, so that no invocation times out."""
_ARN: Final = "arn:aws:lambda:eu-central-1:123456789012:function:shop"


@dataclass
class LambdaApi:
    """The state of the API: the runtime's requests and responses."""

    address: str
    events: list[bytes]
    contexts: Sequence[Mapping[str, Any]]
    answers: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Id of an invocation → `response` or `error`, and the body."""
    failures: list[Any] = field(default_factory=list)
    """Initialisation errors."""
    at_next: Callable[[int], object] = lambda answered: None
    """Called when the runtime asks for an invocation; from then on it may be frozen."""
    is_idle: threading.Event = field(default_factory=threading.Event)
    """Set when all invocations are answered and the runtime asks for another one."""
    is_over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve_invocations(events: Sequence[Any], contexts: Sequence[Mapping[str, Any]] = ()) -> Iterator[LambdaApi]:
    """Serve one invocation per event; further requests wait until the block ends."""
    api = LambdaApi("", [json.dumps(each).encode() for each in events], contexts)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            number = len(api.answers)
            api.at_next(number)
            if number == len(api.events):
                api.is_idle.set()
                api.is_over.wait()
                self.close_connection = True
                return
            context = api.contexts[number] if number < len(api.contexts) else {}
            headers = {
                "Lambda-Runtime-Aws-Request-Id": f"request-{number}",
                "Lambda-Runtime-Deadline-Ms": str(_DEADLINE_MS),
                "Lambda-Runtime-Invoked-Function-Arn": _ARN,
                "Lambda-Runtime-Trace-Id": f"Root=1-5bef4de7-{number:024d};Sampled=1",
                **({"Lambda-Runtime-Client-Context": json.dumps(context)} if context else {}),
            }
            self._answer(200, api.events[number], headers)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
            *_, invocation, verb = self.path.split("/")
            if invocation == "init":
                api.failures.append(body)
            else:
                api.answers[invocation] = (verb, body)
            self._answer(202, b"", {})

        def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            assert self.path.startswith(_ROOT)
            self.send_response(status)
            for name, value in {
                **headers,
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name of the base class
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.address = f"127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    try:
        yield api
    finally:
        api.is_over.set()
        server.shutdown()
        serving.join()
        server.server_close()
