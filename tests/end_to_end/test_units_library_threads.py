"""Threads of libraries that clean up by the clock: in a replay they see the recorded time, like the requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import httpx

from support.installing import install
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import COMMAND, await_true, prepare, serve

LIMITER: Final = """
import threading, time

class Limiter:
    \"\"\"Keeps what was hit for a while; a thread of its own forgets the rest.\"\"\"

    def __init__(self, kept_s):
        self.kept_s, self.ends, self.looks, self.lock = kept_s, {}, 0, threading.Lock()
        threading.Thread(target=self._forget, daemon=True).start()

    def _forget(self):
        while True:
            with self.lock:
                now = time.time()
                for each in [each for each, end in self.ends.items() if end <= now]:
                    del self.ends[each]
            self.looks += 1
            time.sleep(0.01)

    def hit(self, name):
        with self.lock:
            self.ends[name] = time.time() + self.kept_s

    def count(self):
        looks = self.looks
        while self.looks < looks + 2:  # the thread has seen all of them
            time.sleep(0.01)
        return len(self.ends)
"""
APP: Final = """
from fastapi import FastAPI
from limiting import Limiter

app, limiter = FastAPI(), Limiter(WINDOW_S)

@app.get("/")
def hit():
    for name in "abc":
        limiter.hit(name)
    return {"hits": limiter.count()}
"""
WINDOW_S: Final = 5


def test_p4_a_thread_of_a_library_does_not_forget_what_is_recent_in_the_recording(
    provider: Provider, tmp_path: Path
) -> None:
    """The hits of a request that is replayed after their window are still counted."""
    place = prepare(tmp_path, provider, APP.replace("WINDOW_S", str(WINDOW_S)))
    install(tmp_path / "site-packages", "limiting", {"limiting.py": LIMITER})
    environ = {"PYTHONPATH": str(tmp_path / "site-packages")}
    with serve(place, command=COMMAND, **environ) as server:
        answer = httpx.get(server.url, timeout=TIMEOUT_S)
        ended = time.monotonic()
        server.await_ends()
        server.stop()
    assert answer.json() == {"hits": 3}
    (unit,) = server.units()
    await_true(lambda: time.monotonic() > ended + WINDOW_S)
    replayed = place.replay(*COMMAND, source=unit.run_id, **environ)
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
