"""A Slack on loopback: its Web API over HTTP, and a websocket on which it sends events to an app in socket mode."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

_AUTH: Final = {
    "user_id": "UBOT",
    "bot_id": "BBOT",
    "team_id": "T1",
    "team": "shop",
    "user": "bot",
    "url": "https://x/",
}


class Slack:
    """The state of the fake Slack: everything that the app has sent."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self.events = events
        self.acknowledged: list[str] = []
        self.posted: list[str] = []
        self.url = self.socket_url = ""
        self._lock = threading.Lock()

    def serve_events(self, connection: ServerConnection) -> None:
        """Greet an app, send it all events at once, and collect its acknowledgements."""
        connection.send(json.dumps({"type": "hello", "num_connections": 1}))
        with self._lock:
            events, self.events = self.events, ()
        for event in events:
            connection.send(json.dumps(event))
        with contextlib.suppress(ConnectionClosed):  # a killed app closes it like this
            for message in connection:
                told = json.loads(message)
                with self._lock:
                    self.acknowledged.append(told["envelope_id"])

    def answer(self, method: str, body: str) -> dict[str, Any]:
        """Answer a call of the Web API."""
        if method == "apps.connections.open":
            return {"ok": True, "url": self.socket_url}
        if method == "chat.postMessage":
            with self._lock:
                self.posted.append(body)
            return {"ok": True, "ts": "2.2", "channel": "C1"}
        return {"ok": True, **_AUTH}


def make_mention(number: int, text: str) -> dict[str, Any]:
    """Return an envelope in which a user mentions the app."""
    event = {"type": "app_mention", "user": f"U{number}", "text": text, "ts": f"{number}.1", "channel": f"C{number}"}
    payload = {"type": "event_callback", "team_id": "T1", "api_app_id": "A1", "event_id": f"Ev{number}", "event": event}
    return {"type": "events_api", "envelope_id": f"e{number}", "payload": payload, "accepts_response_payload": False}


@contextmanager
def a_slack(events: Sequence[dict[str, Any]]) -> Iterator[Slack]:
    """Run a Slack that sends these events to the first app that connects."""
    slack = Slack(events)

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            answered = json.dumps(slack.answer(self.path.rpartition("/")[2], body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answered)))
            self.end_headers()
            self.wfile.write(answered)

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as api, serve(slack.serve_events, "127.0.0.1", 0) as socket:
        slack.url = f"http://127.0.0.1:{api.server_port}/api/"
        slack.socket_url = f"ws://127.0.0.1:{socket.socket.getsockname()[1]}/"
        threads = [threading.Thread(target=each.serve_forever) for each in (api, socket)]
        for thread in threads:
            thread.start()
        try:
            yield slack
        finally:
            api.shutdown()
            socket.shutdown()
            for thread in threads:
                thread.join()
