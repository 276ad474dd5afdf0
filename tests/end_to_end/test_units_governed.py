"""A recorder that exceeds a limit starts no new units: it says so, counts them, and never records half of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.spans import read_spans
from support.units import COMMAND, Server, await_true, path_of, prepare, serve

APP: Final = """
import logging, random, time

from fastapi import FastAPI
from groq import AsyncGroq
from opentelemetry import trace
import spanreplay

logging.basicConfig(filename="log.txt")
client = AsyncGroq()
app = FastAPI()

@spanreplay.boundary("tool")
def read(number):
    return [f"{number} {line}" for line in range(2000)]

@spanreplay.run(name="inner")
def inner(number):
    return len(read(number))

@app.get("/ok/{number}")
async def ok(number: int):
    with trace.get_tracer("app").start_as_current_span(f"span-{number}"):
        messages = [{"role": "user", "content": f"question-{number}"}]
        answer = await client.chat.completions.create(model="gpt-x", messages=messages)
    size = len(read(number)) + inner(number)
    return {"reply": answer.choices[0].message.content, "size": size, "at": time.time(), "is": random.random()}
"""
STOPPED, AGAIN = "new units are not recorded", "new units are recorded again"


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    return prepare(tmp_path, provider, APP)


class Load:
    """Numbered requests to a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.sent = 0

    def send(self) -> None:
        """Send one request; its answer is the same as without a recorder."""
        answer = httpx.get(f"{self._server.url}/ok/{self.sent}", timeout=TIMEOUT_S)
        assert answer.json()["reply"].endswith(f"question-{self.sent}")
        self.sent += 1

    def send_until(self, happened: Callable[[], bool]) -> None:
        """Send requests until a condition holds."""

        def ask() -> bool:
            self.send()
            return happened()

        await_true(ask)


def says(place: Workplace, line: str) -> int:
    """The number of times that the program's log contains a line."""
    log = place.path / "log.txt"
    return log.read_text(encoding="utf-8").count(line) if log.exists() else 0


@pytest.mark.parametrize(
    ("setting", "value", "limit"),
    [("SPANREPLAY_CPU_LIMIT", "0.0001", "cpu"), ("SPANREPLAY_QUEUE_LIMIT", "0.00005", "queue")],
    ids=["processor", "queue"],
)
@pytest.mark.sampled(1)
def test_n3_p8_units_beyond_a_limit_leave_nothing_and_are_counted(
    setting: str, value: str, limit: str, provider: Provider, place: Workplace
) -> None:
    """Units begun earlier are whole and replay; later ones leave no call, span or read in any run."""
    with serve(place, **{setting: value}) as server:
        load = Load(server)
        load.send_until(lambda: says(place, STOPPED) == 1)
        for _ in range(5):
            load.send()
        server.stop()
    provider.stop()
    units = server.units()
    assert 0 < len(units) <= load.sent - 5
    assert [path_of(unit) for unit in units] == [f"/ok/{number}" for number in range(len(units))]
    assert all(unit.completeness().is_complete for unit in units)
    process = server.the_process()
    assert process.completeness().is_complete, process.completeness().reasons
    assert process.calls[-1].name == "start"
    spans = read_spans(place.path / ".spanreplay", "app")
    assert sorted(run_id for run_id, found in spans.items() if found.scopes) == sorted(unit.run_id for unit in units)
    stated = process.root.manifest["units"]
    assert stated["not_recorded"] == {limit: load.sent - len(units)}
    assert stated["steps_down"] == 1
    assert setting in stated["steps"][0]
    replayed = place.replay(*COMMAND, source=units[-1].run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_n3_p8_units_are_recorded_again_when_it_is_calm(provider: Provider, place: Workplace) -> None:
    """After a pause, the next units are recorded whole; every unit is counted once."""
    with serve(place, SPANREPLAY_CPU_LIMIT="0.05") as server:
        load = Load(server)
        load.send_until(lambda: says(place, STOPPED) >= 1)
        before = len(server.units())
        await_true(lambda: says(place, AGAIN) >= 1)
        load.send_until(lambda: len(server.units()) > before)
        server.stop()
    units = server.units()
    assert all(unit.completeness().is_complete for unit in units)
    not_recorded = server.the_process().root.manifest["units"]["not_recorded"].get("cpu", 0)
    assert len(units) + not_recorded == load.sent
