"""Files to which several requests write at the same time: each replays alone, and its own lines are compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx

from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import COMMAND, await_true, prepare, serve

APP = """
import json

from fastapi import FastAPI, Request

app = FastAPI()

def note(what, name):
    with open("audit.jsonl", "a") as audit:
        audit.write(json.dumps({"what": what, "name": name}) + "\\n")

@app.post("/ask/{name}")
async def ask(name: str, request: Request):
    parts = request.stream()
    note("begins", name)
    with open(f"{name}.txt", "w") as own:
        own.write("mine")
    with open("last.txt", "w") as last:
        last.write(name)
    size = sum([len(each) async for each in parts])
    note("ends", name)
    return {"name": name, "size": size}
"""


def test_requests_that_write_to_one_file_replay_alone(tmp_path: Path, provider: Provider) -> None:
    """Lines of others are no divergence; a line that a request writes otherwise is one, and so is a file of its own."""
    workplace = prepare(tmp_path, provider, APP)
    audit = workplace.path / "audit.jsonl"
    with serve(workplace) as server, httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client:

        def body() -> Iterator[bytes]:
            yield b"one"
            await_true(lambda: audit.exists() and "first" in audit.read_text())
            httpx.post(f"{server.url}/ask/second", content=b"one", timeout=TIMEOUT_S).raise_for_status()
            yield b"two"

        client.post("/ask/first", content=body()).raise_for_status()
        server.stop()
    assert [line.split('"')[3:8:4] for line in audit.read_text().splitlines()] == [
        ["begins", "first"],
        ["begins", "second"],
        ["ends", "second"],
        ["ends", "first"],
    ]
    first, second = server.units()
    for unit in (first, second):
        replayed = workplace.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        shared = ["audit.jsonl", "last.txt"] if unit is first else []
        listed = [each for each in replayed.verdict["not_compared"] if "lines" in each["why"]]
        assert [name for each in listed for name in each["names"]] == shared

    workplace.write("app.py", APP.replace('note("ends"', 'note("stops"'))
    assert workplace.replay(*COMMAND, source=first.run_id).causes() == [("file_changed", "file:audit.jsonl")]
    workplace.write("app.py", APP.replace('own.write("mine")', 'own.write("yours")'))
    assert workplace.replay(*COMMAND, source=first.run_id).causes() == [("file_changed", "file:first.txt")]


COUNTING = """
import os

from fastapi import FastAPI

app = FastAPI()
made = []

@app.post("/note/{name}")
async def note(name: str):
    made.append(name)
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{len(made)} {name}\\n")
    return {"count": len(made)}
"""


def test_p4_earlier_requests_that_wrote_the_same_file_are_replayed_in_full(tmp_path: Path, provider: Provider) -> None:
    """Each request looks at what is there before it writes, also where several are replayed in one process."""
    (tmp_path / "app").mkdir()
    workplace = prepare(tmp_path / "app", provider, COUNTING)
    workplace.environ["NOTES"] = str(tmp_path / "notes.txt")
    with serve(workplace) as server:
        for name in ("first", "second", "third"):
            httpx.post(f"{server.url}/note/{name}", timeout=TIMEOUT_S).raise_for_status()
        server.stop()
    replayed = workplace.replay(*COMMAND, source=server.units()[-1].run_id, options=["--warm", "all"])
    assert replayed.status == 0, replayed.stderr
    assert [each["why"] for each in replayed.verdict["warm_up"]["units"]] == ["", ""]
