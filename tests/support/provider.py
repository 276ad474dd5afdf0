"""A local model provider for tests: real HTTP, every answer unique. Its further protocols are in wire_routes.

In a test: `provider = Provider().start()`, then `provider.environ()` for the agent's process.
By hand: `PYTHONPATH=tests python -m support.provider --port-file F`.

The prompt decides what happens:
  "use tool NAME with {…}"            a call of that tool, if it was offered (see wire_text.read_turn)
  "answer outside the schema"         prose although a JSON schema was asked for
  "fail 429 twice", "fail 500 always" that HTTP status (once, twice, N times, always), then success
  "drop connection mid-stream"        the connection ends in the middle of the answer
  "slow"                              a pause before the answer and between its chunks
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeVar

from support.wire_anthropic import answer_messages, count_message_tokens, stream_messages
from support.wire_google import PATH as GOOGLE_PATH
from support.wire_google import answer_generate, count_contents, error_body, stream_generate
from support.wire_openai import (
    answer_chat,
    answer_embeddings,
    answer_responses,
    stream_chat,
    stream_responses,
)
from support.wire_routes import SSE, find_route
from support.wire_text import Json, make_id

T = TypeVar("T", Json, list[bytes])

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
REQUESTS_MAX: Final = 100_000
CHUNK_GAP_S: Final = 0.001
SLOW_S: Final = 0.25
SLOW_CHUNK_GAP_S: Final = 0.02
RETRY_AFTER_MS: Final = 20
_FAILURE: Final = re.compile(r"fail (\d{3}) (once|twice|always|(\d+) times)")
_ERROR_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


@dataclass
class Provider:
    """One provider on a port of 127.0.0.1; `requests` are the requests it got, in order of arrival.

    With `is_repeatable` the same request always gets the same answer, so that two runs can be compared.
    """

    port: int = 0
    is_repeatable: bool = False
    fingerprint: str = field(default_factory=lambda: make_id("fp_", 10))
    determinism: str = ""
    """The determinism header of an inference engine, sent with each answer."""
    script: deque[str] = field(default_factory=deque)
    """Orders added to the requests to a model, one each, in order: for agents whose prompts can't be chosen."""
    requests: list[tuple[str, Any]] = field(default_factory=list)
    _failures: Counter[str] = field(default_factory=Counter)
    _answers: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: _Server | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The root URL, without a trailing slash: the value of ANTHROPIC_BASE_URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """The value of OPENAI_BASE_URL."""
        return self.url + "/v1"

    def environ(self) -> dict[str, str]:
        """Return variables that make an unmodified agent use this provider."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": "sk-test-local-provider",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "sk-ant-test-local-provider",
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GEMINI_API_KEY": "AIza-test-local-provider",
            "AZURE_OPENAI_ENDPOINT": self.url,
            "AZURE_OPENAI_API_KEY": "azure-test-local-provider",
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": self.url,
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "AWS_DEFAULT_REGION": "us-east-1",
            "CO_API_URL": self.url,
            "CO_API_KEY": "cohere-test-local-provider",
            "MISTRAL_SERVER_URL": self.url,
            "MISTRAL_API_KEY": "mistral-test-local-provider",
            "GROQ_BASE_URL": self.url,
            "GROQ_API_KEY": "gsk-test-local-provider",
            "OLLAMA_HOST": self.url,
            "VERTEX_BASE_URL": self.url,
        }

    def start(self) -> Provider:
        """Listen and serve in a background thread; returns self."""
        self._server = _Server(self.port, self)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="provider", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the port and every open connection; further calls are refused."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()
        self._thread.join(timeout=5)
        self._server = None

    def __enter__(self) -> Provider:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def note_request(self, path: str, body: Any) -> None:
        """Remember one request."""
        with self._lock:
            if len(self.requests) < REQUESTS_MAX:
                self.requests.append((path, body))

    def direct(self, path: str, body: Json) -> Json:
        """Return the body with the next line of the script as its last message."""
        name = {"/v1/chat/completions": "messages", "/v1/responses": "input"}.get(path)
        with self._lock:
            if name is None or not self.script:
                return body
            order = {"role": "user", "content": self.script.popleft()}
        before = body.get(name) or []
        return {**body, name: [*([{"role": "user", "content": before}] if isinstance(before, str) else before), order]}

    def answer(self, path: str, body: Json, make: Callable[..., T], *args: Any) -> T:
        """Return the result of `make` or, if repeatable, its earlier result for the same request."""
        if not self.is_repeatable:
            return make(*args)
        key = path + json.dumps(body, sort_keys=True)
        with self._lock:
            if key not in self._answers and len(self._answers) < REQUESTS_MAX:
                self._answers[key] = make(*args)
            found: T = self._answers[key]
            return found

    def next_failure(self, path: str, body: Json) -> int:
        """Return the HTTP status with which this request must fail, or 0; counts per identical request."""
        wanted = _FAILURE.search(_asked(body))
        if wanted is None:
            return 0
        times = {"once": 1, "twice": 2, "always": sys.maxsize}.get(wanted[2]) or int(wanted[3])
        key = path + json.dumps(body, sort_keys=True)
        with self._lock:
            if self._failures[key] >= times:
                del self._failures[key]  # so that the next run of the same agent fails the same way
                return 0
            self._failures[key] += 1
        return int(wanted[1])


def _asked(body: Json) -> str:
    """Return the conversation of a request, in any protocol, as text."""
    fields = ("messages", "input", "contents", "message", "prompt", "inputText", "text", "query")
    return json.dumps(next((body[name] for name in fields if name in body), ""))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, port: int, provider: Provider) -> None:
        self.provider = provider
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connections_lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        with self._connections_lock:
            connections = list(self._connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # already closed

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one segment for the head; the body is flushed chunk by chunk
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        return

    def do_GET(self) -> None:
        self.server.provider.note_request(self.path, None)
        if self.path == "/v1/models":
            model = {"id": "gpt-x", "object": "model", "created": 1790000000, "owned_by": "local"}
            self._send_json(200, {"object": "list", "data": [model]})
        elif self.path == "/health":
            self._send_json(200, {"status": "ok"})
        else:
            self._send_error(404, "no such path")

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        if size > BODY_BYTES_MAX:
            self.close_connection = True
            self._send_error(413, "body too large")
            return
        try:
            body = json.loads(self.rfile.read(size))
        except ValueError:
            self._send_error(400, "the body is not JSON")
            return
        path = self.path.partition("?")[0]
        if path.startswith("/openai/v1/"):  # Groq's root, and Azure's without deployments
            path = path.removeprefix("/openai")
        provider = self.server.provider
        provider.note_request(path, body)
        status = provider.next_failure(path, body)
        if status:
            self._send_error(status, f"asked to fail with {status}")
            return
        self._answer(path, body)

    def _answer(self, path: str, body: Json) -> None:
        body = self.server.provider.direct(path, body)
        is_stream = bool(body.get("stream"))
        fingerprint = self.server.provider.fingerprint
        asked = _asked(body)
        is_slow = "slow" in asked
        is_dropped = "drop connection" in asked
        if is_slow:
            time.sleep(SLOW_S)
        answer = partial(self.server.provider.answer, path, body)
        if path == "/v1/chat/completions" and is_stream:
            self._send_events(answer(stream_chat, body, fingerprint), is_slow, is_dropped)
        elif path == "/v1/chat/completions":
            self._send_json(200, answer(answer_chat, body, fingerprint), is_dropped)
        elif path == "/v1/responses" and is_stream:
            self._send_events(answer(stream_responses, body), is_slow, is_dropped)
        elif path == "/v1/responses":
            self._send_json(200, answer(answer_responses, body), is_dropped)
        elif path == "/v1/embeddings":
            self._send_json(200, answer(answer_embeddings, body), is_dropped)
        elif path == "/v1/messages" and is_stream:
            self._send_events(answer(stream_messages, body), is_slow, is_dropped)
        elif path == "/v1/messages":
            self._send_json(200, answer(answer_messages, body), is_dropped)
        elif path == "/v1/messages/count_tokens":
            self._send_json(200, count_message_tokens(body))
        elif google := GOOGLE_PATH.fullmatch(path):
            model, method = google.groups()
            if method == "countTokens":
                self._send_json(200, {"totalTokens": count_contents(body)})
            elif method == "streamGenerateContent":
                self._send_events(answer(stream_generate, model, body), is_slow, is_dropped)
            else:
                self._send_json(200, answer(answer_generate, model, body), is_dropped)
        elif route := find_route(path, body, fingerprint):
            if route.content_type:
                self._send_events(answer(route.make), is_slow, is_dropped, route.content_type)
            else:
                self._send_json(200, answer(route.make), is_dropped)
        else:
            self._send_error(404, f"no such path: {path}")

    def _start(self, status: int, content_type: str) -> None:
        request_id = make_id("req_", 32)
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("x-request-id", request_id)
        self.send_header("request-id", request_id)
        if self.server.provider.determinism:
            self.send_header("x-spanreplay-determinism", self.server.provider.determinism)
        if self.path.endswith("/invoke"):
            self.send_header("x-amzn-bedrock-input-token-count", "11")
            self.send_header("x-amzn-bedrock-output-token-count", "3")
        self.send_header("openai-processing-ms", "7")
        self.send_header("openai-version", "2020-10-01")
        self.send_header("x-ratelimit-remaining-requests", "9999")

    def _send_error(self, status: int, message: str) -> None:
        kind = _ERROR_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        error = {"type": kind, "message": message, "param": None, "code": kind}
        is_google = GOOGLE_PATH.fullmatch(self.path.partition("?")[0]) is not None
        payload = error_body(status, message) if is_google else {"type": "error", "error": error}
        body = json.dumps(payload).encode()
        self._start(status, "application/json")
        if status == 429 or status >= 500:
            self.send_header("retry-after", "1")
            self.send_header("retry-after-ms", str(RETRY_AFTER_MS))
        self._send_body(body)

    def _send_json(self, status: int, payload: Json, is_dropped: bool = False) -> None:
        body = json.dumps(payload, ensure_ascii=False).encode()
        self._start(status, "application/json")
        self._send_body(body, sent=len(body) // 2 if is_dropped else len(body))
        self.close_connection = self.close_connection or is_dropped

    def _send_body(self, body: bytes, sent: int | None = None) -> None:
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:sent])
        self.wfile.flush()

    def _send_events(
        self,
        events: list[bytes],
        is_slow: bool,
        is_dropped: bool,
        content_type: str = SSE,
    ) -> None:
        self._start(200, content_type)
        self.send_header("cache-control", "no-cache")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for event in events[: len(events) // 2] if is_dropped else events:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()
            time.sleep(SLOW_CHUNK_GAP_S if is_slow else CHUNK_GAP_S)
        if is_dropped:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def main() -> None:
    """Serve until standard input ends or the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--port-file", type=Path, help="the port is written here once it listens")
    args = parser.parse_args()
    provider = Provider(port=args.port).start()
    if args.port_file is not None:
        scratch = args.port_file.with_suffix(".tmp")
        scratch.write_text(str(provider.port))
        scratch.rename(args.port_file)
    print(provider.url, flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        provider.stop()


if __name__ == "__main__":
    main()
