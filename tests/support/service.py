"""A replay service in a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from spanreplay_service.replay import VerdictSink
from spanreplay_service.runs import Freshen, RunStore
from spanreplay_service.server import ReplayServer, ServerSettings

T = TypeVar("T")
WAIT_S = 180.0


class LoopThread:
    """An event loop in a thread; `run` waits for a coroutine on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


@contextmanager
def serve(
    store: RunStore,
    settings: ServerSettings | None = None,
    sink: VerdictSink | None = None,
    freshen: Freshen | None = None,
) -> Iterator[ReplayServer]:
    """Run a service on a free loopback port."""
    loop = LoopThread()
    try:
        server = ReplayServer(store, settings or ServerSettings(port=0), sink=sink, freshen=freshen)
        loop.run(server.start())
        try:
            yield server
        finally:
            loop.run(server.stop(grace_s=1.0))
    finally:
        loop.close()
