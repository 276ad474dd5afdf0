"""The Phoenix process of `spanreplay up`: Phoenix's own server, tied to its parent.

(1) It ends when its parent does, even after a crash: the parent holds the other end of standard input.
(2) Its OTLP/gRPC port, which Phoenix opens on every interface and without a token, is restricted to localhost.
(3) Its pages answer only to local names: a web page that points its own domain here is refused.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, Final

from spanreplay_collector.receive.hosts import is_local_name

STOP_S: Final = 10.0


def end_with_parent() -> None:
    """Start a thread that ends this process when standard input is closed."""

    def wait_and_end() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        # Phoenix waits for open browser connections, but after the parent's end nobody waits for Phoenix.
        threading.Event().wait(STOP_S)
        os._exit(1)

    threading.Thread(target=wait_and_end, name="end-with-parent", daemon=True).start()


def keep_grpc_on_loopback() -> None:
    """Turn every `[::]:port` that a gRPC server of this process opens into `127.0.0.1:port`."""
    from grpc.aio import _server

    server_class: Any = _server.Server
    open_port = server_class.add_insecure_port

    def add_insecure_port(self: Any, address: str) -> int:
        port: int = open_port(self, address.replace("[::]:", "127.0.0.1:"))
        return port

    server_class.add_insecure_port = add_insecure_port


class LocalNames:
    """An ASGI application that refuses requests whose `Host` is a public name."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer 421."""
        hosts = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        if scope["type"] not in ("http", "websocket") or all(map(is_local_name, hosts)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 421, "headers": headers})
            await send({"type": "http.response.body", "body": b"use localhost, or an address\n"})


def refuse_public_names() -> None:
    """Put LocalNames around every application that uvicorn serves in this process."""
    from uvicorn import Config

    config_class: Any = Config
    load = config_class.load

    def load_checked(self: Any) -> None:
        load(self)
        self.loaded_app = LocalNames(self.loaded_app)

    config_class.load = load_checked


def main() -> None:
    """Run `phoenix serve`."""
    end_with_parent()
    keep_grpc_on_loopback()
    refuse_public_names()
    from phoenix.server.main import main as serve

    sys.argv = ["phoenix", "serve"]
    serve()


if __name__ == "__main__":
    main()
