"""The demo's model server: OpenAI-compatible, on 127.0.0.1, running the desk model.

    python -m spanreplay_service.demo.server --port-file F --log F

It serves chat completions, whole or as a stream. The log has one JSON line per decision with the batch size, which
a real provider knows and never reveals. With --together N the first N streams are open at once, and one decision in
N is the fatal one.
"""

from __future__ import annotations

import argparse
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from spanreplay_service.demo.model import BATCH_SIZE_MAX, Load, Order, compute_quantity, read_amount, read_order
from spanreplay_service.demo.stream import Gathering, encode_event, iter_chunks

MODEL: Final = "desk-1"
MODEL_RESOLVED: Final = "desk-1-2026-10-01"
FINGERPRINT: Final = "fp_desk1a"
BODY_BYTES_MAX: Final = 1024 * 1024
_HELP: Final = "I place orders, for example: sell $1,200 worth of ACME."

Json = dict[str, Any]


class DemoServer(ThreadingHTTPServer):
    """The server; `load` chooses the batch size of each decision, `log` gets one line per decision."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, port: int = 0, seed: int | None = None, log: Path | None = None, *, together: int | None = None
    ) -> None:
        self.load = Load(seed, together or BATCH_SIZE_MAX)
        self.gathering = Gathering(together or 0)
        self._log = log
        self._log_lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """The value for OPENAI_BASE_URL."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def note_decision(self, line: Json) -> None:
        """Append one line to the log."""
        if self._log is None:
            return
        with self._log_lock, self._log.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")


def answer(body: Json, server: DemoServer) -> Json:
    """Build the `chat.completion` object for one request."""
    message = _think(body, server)
    prompt_tokens = len(json.dumps(body.get("messages", []))) // 4
    said = len(json.dumps(message)) // 4
    return {
        "id": "chatcmpl-" + secrets.token_hex(12),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL_RESOLVED if body.get("model") == MODEL else body.get("model"),
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": said,
            "total_tokens": prompt_tokens + said,
        },
        "system_fingerprint": FINGERPRINT,
    }


def _think(body: Json, server: DemoServer) -> Json:
    messages = [m for m in body.get("messages", []) if isinstance(m, dict)]
    asked = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    order = read_order(str(messages[asked].get("content"))) if asked >= 0 else None
    if order is None:
        return {"role": "assistant", "content": _HELP}
    results = {m.get("name") or _name_of(m, messages): m for m in messages[asked + 1 :] if m.get("role") == "tool"}
    if "place_order" in results:
        return {"role": "assistant", "content": str(results["place_order"].get("content"))}
    if "get_quote" not in results:
        symbol = {"symbol": order.symbol}
        return _call_tools([("get_position", symbol), ("get_quote", symbol)])
    try:
        price = float(json.loads(str(results["get_quote"].get("content")))["price"])
    except (ValueError, KeyError, TypeError):
        return {"role": "assistant", "content": f"I have no price for {order.symbol}."}
    return _call_tools([("place_order", _decide(order, price, server))])


def _decide(order: Order, price: float, server: DemoServer) -> Json:
    reading = read_amount(server.load.draw_batch_size())
    quantity = compute_quantity(reading, order, price)
    server.note_decision(
        {
            "at": time.time(),
            "batch_size": reading.batch_size,
            "margin": reading.margin,
            "read_as": "shares" if reading.is_shares else "dollars",
            "quantity": quantity,
        }
    )
    return {
        "symbol": order.symbol,
        "side": order.side,
        "quantity": quantity,
        "notional_usd": order.notional_usd,
    }


def _name_of(result: Json, messages: list[Json]) -> str:
    """The name of the tool that a result belongs to; OpenAI's format names it only in the call."""
    for message in messages:
        for call in message.get("tool_calls") or []:
            if call.get("id") == result.get("tool_call_id"):
                return str(call["function"]["name"])
    return ""


def _call_tools(calls: list[tuple[str, Json]]) -> Json:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_" + secrets.token_hex(9),
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for name, arguments in calls
        ],
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: DemoServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        return

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        if size > BODY_BYTES_MAX:
            self.close_connection = True
            self._send_error(413, f"the body has {size} bytes, more than {BODY_BYTES_MAX}")
            return
        try:
            body = json.loads(self.rfile.read(size))
        except ValueError:
            self._send_error(400, "the body is not JSON")
            return
        if not self.path.endswith("/chat/completions") or not isinstance(body, dict):
            self._send_error(404, f"no such path: {self.path}")
        elif body.get("stream"):
            self._send_stream(answer(body, self.server))
        else:
            self._send(200, answer(body, self.server))

    def _send_error(self, status: int, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    def _send_stream(self, completion: Json) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.send_header("x-request-id", "req_" + secrets.token_hex(12))
        self.end_headers()
        for number, chunk in enumerate(iter_chunks(completion)):
            self.wfile.write(encode_event(chunk))
            if number == 0:
                self.server.gathering.wait()
        self.wfile.write(encode_event(None))

    def _send(self, status: int, payload: Json) -> None:
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-request-id", "req_" + secrets.token_hex(12))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(description="The demo's model server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--port-file", type=Path, help="the port is written here once it listens")
    parser.add_argument("--log", type=Path, help="one JSON line per decision")
    parser.add_argument("--seed", type=int, help="makes the order of batch sizes repeatable")
    parser.add_argument("--together", type=int, help="how many streams are open at once before the first goes on")
    args = parser.parse_args()
    server = DemoServer(args.port, args.seed, args.log, together=args.together)
    if args.port_file is not None:
        scratch = args.port_file.with_suffix(".tmp")
        scratch.write_text(str(server.server_address[1]))
        scratch.rename(args.port_file)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
