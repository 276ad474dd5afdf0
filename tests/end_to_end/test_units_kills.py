"""Workers that are killed again and again: answered requests are whole, interrupted ones say that they are."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from spanreplay.recording.catalog import RUNS_MAX, RunQuery
from spanreplay.recording.spool import SpoolCatalog
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import Server, await_true, prepare, response_of, serve

KILLS: Final = int(os.environ.get("SPANREPLAY_TEST_KILLS", "20"))
"""`make matrix` kills a thousand."""
CLIENTS, WORKERS, SAMPLE = 4, 3, 2
_KILLED: Final = "the run did not end: its process was killed or is still running"
_UNDER_WAY: Final = re.compile(r"call \d+ \(\S+\) was started and never finished")
APP: Final = """
import uuid

from flask import Flask, request
from groq import Groq

app, client = Flask(__name__), Groq()

@app.post("/chat")
def chat():
    messages = [{"role": "user", "content": request.get_json()["text"]}]
    answer = client.chat.completions.create(model="gpt-x", messages=messages)
    return {"reply": answer.choices[0].message.content, "id": str(uuid.uuid4())}
"""
COMMAND: Final = ("-m", "gunicorn", "app:app", "--preload", "--workers", str(WORKERS), "--log-level", "critical")
"""The log level is low because nobody reads the output: a thousand workers' lines would fill the pipe and block."""


def _workers(server: Server) -> set[int]:
    """The processes that the server has forked."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


class _Clients:
    """Send requests until told to stop; keep the answers by the number of the question."""

    def __init__(self, url: str) -> None:
        self.answers: dict[int, str] = {}
        self._url = url
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        while not self._is_over.is_set():
            number += CLIENTS
            try:
                answer = httpx.post(f"{self._url}/chat", json={"text": f"question-{number}."}, timeout=TIMEOUT_S)
            except httpx.TransportError:
                continue  # its worker was killed
            assert answer.status_code == 200
            self.answers[number] = answer.text

    def stop(self) -> None:
        """Stop, and wait for the outstanding answers."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def _kill_one(server: Server, clients: _Clients, draw: random.Random) -> None:
    """Kill a worker after the next answer, and wait for its replacement."""
    answered = len(clients.answers)
    await_true(lambda: len(clients.answers) > answered)
    killed = draw.choice(sorted(_workers(server)))
    os.kill(killed, signal.SIGKILL)
    await_true(lambda: len(_workers(server) - {killed}) == WORKERS)


@pytest.mark.slow
def test_p5_no_kill_of_a_worker_costs_more_than_what_was_under_way(provider: Provider, tmp_path: Path) -> None:
    """Each answered request has one run with this answer, and no run holds another request's values.

    A run whose worker was killed in the milliseconds between its answer and its end says so.
    """
    place = prepare(tmp_path, provider, APP)
    draw = random.Random(7)
    with serve(place, command=COMMAND, at="-b 127.0.0.1:{port}") as server:
        await_true(lambda: len(_workers(server)) == WORKERS)
        clients = _Clients(server.url)
        for _ in range(KILLS):
            _kill_one(server, clients, draw)
        clients.stop()
        server.stop()
    provider.stop()
    whole, killed = _read_units(place)
    assert not whole.keys() & killed.keys(), "two runs of one request"
    found = whole | killed
    assert {number: _answer_of(found.get(number)) for number in clients.answers} == clients.answers
    assert len(killed.keys() & clients.answers.keys()) <= KILLS
    for number in draw.sample(sorted(whole.keys() & clients.answers.keys()), SAMPLE):
        replayed = place.replay(*COMMAND, source=whole[number].run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    for unit in list(killed.values())[:1]:
        assert place.replay(*COMMAND, source=unit.run_id).status == 4


def _answer_of(unit: Recording | None) -> str | None:
    return None if unit is None else str(response_of(unit)["body"]["text"])


def _iter_units(catalog: SpoolCatalog) -> Iterator[str]:
    """The run ids of all units; a search returns only the newest thousand."""
    seen: set[str] = set()
    query = RunQuery(limit=RUNS_MAX)
    while found := [each for each in catalog.search(query) if each.root.run_id not in seen]:
        seen |= {each.root.run_id for each in found}
        yield from (each.root.run_id for each in found if "unit" in each.root.env)
        query = replace(query, until_ns=found[-1].root.start_ns)


def _read_units(place: Workplace) -> tuple[dict[int, Recording], dict[int, Recording]]:
    """The units by the number of their question: the whole ones, and those that did not end."""
    whole: dict[int, Recording] = {}
    killed: dict[int, Recording] = {}
    catalog = SpoolCatalog(place.path / ".spanreplay")
    try:
        for run_id in _iter_units(catalog):
            unit = catalog.load(run_id)
            texts = [text or "" for call in unit.calls for text in (call.request, call.response)]
            numbers = {int(each) for text in texts for each in re.findall(r"question-(\d+)\.", text)}
            assert len(numbers) <= 1, numbers
            reasons = unit.completeness().reasons
            assert not reasons or (reasons[0] == _KILLED and all(map(_UNDER_WAY.fullmatch, reasons[1:]))), reasons
            for number in numbers:  # none if its worker was killed before reading the request
                kind = killed if reasons else whole
                assert number not in kind, "two runs of one request"
                kind[number] = unit
    finally:
        catalog.close()
    return whole, killed
