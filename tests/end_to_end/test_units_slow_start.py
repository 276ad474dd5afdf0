"""Threads of a process's start that act after a while: in a replay whose start takes longer, before its first unit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Replayed
from support.units import COMMAND, Server, await_true, prepare, serve

STORE: Final = """
import shutil, threading

class Store:
    \"\"\"Writes what it holds into a file now and then, in a thread of its own.\"\"\"

    def __init__(self, path, every_s):
        self.path, self.every_s, self.values, self.is_written = path, every_s, [], threading.Event()
        self.thread = threading.Thread(target=self._flush, daemon=True)
        self.thread.start()

    def _flush(self):
        while not threading.Event().wait(self.every_s):
            self.write()

    def write(self):
        with open(self.path + ".new", "w") as written:
            written.write(repr(self.values))
        shutil.move(self.path + ".new", self.path)
        self.is_written.set()
"""
APP: Final = """
from fastapi import FastAPI
from storing import Store

app, store = FastAPI(), Store("held/values", 3)
WAITS = False
if WAITS:  # the import takes longer than the store waits
    while store.thread.is_alive() and not store.is_written.wait(0.01):
        pass

@app.get("/{text}")
def put(text: str):
    store.values.append(text)
    return {"held": len(store.values)}
"""


WAITS: Final = ("WAITS = False", "WAITS = True")
AT_ONCE: Final = ("WAITS = False", "import threading; threading.Thread(target=store.write).start()\nWAITS = False")


@pytest.fixture
def recorded(provider: Provider, tmp_path: Path) -> Server:
    """A server of which one request was recorded, and no write of its store."""
    held = tmp_path / "held"
    held.mkdir()
    workplace = prepare(tmp_path, provider, APP)
    workplace.write("storing.py", STORE)
    with serve(workplace) as server:
        httpx.get(f"{server.url}/one", timeout=TIMEOUT_S).raise_for_status()
        server.await_ends()
        await_true((held / "values").exists)
        server.stop()
    (held / "values").unlink()
    return server


def replay(server: Server, change: tuple[str, str]) -> Replayed:
    """Replay the only unit with the changed application."""
    (unit,) = server.units()
    workplace = server.workplace
    workplace.write("app.py", (workplace.path / "app.py").read_text().replace(*change))
    return workplace.replay(*COMMAND, source=unit.run_id)


def test_p4_what_a_thread_of_the_start_does_later_than_recorded_is_no_difference(recorded: Server) -> None:
    """The thread first acts behind the recorded start: one that takes longer has its calls before the unit."""
    replayed = replay(recorded, WAITS)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_p4_s27_what_a_thread_of_a_changed_start_does_at_once_is_a_difference(recorded: Server) -> None:
    """A call that an unchanged start would have made by then is reported."""
    replayed = replay(recorded, AT_ONCE)
    assert replayed.verdict["verdict"] == "diverged", replayed.stderr
