"""Programs that do something before they start the process that serves: a reloader, or workers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.suites import insist_identical
from support.units import COMMAND, prepare, response_of, serve, serve_with

PROGRAM: Final = """
import datetime, os, sys, uuid

import openai, uvicorn
from fastapi import FastAPI

def ask(text):
    asked = [{"role": "user", "content": text}]
    with openai.OpenAI() as client:
        return client.chat.completions.create(model="gpt-x", messages=asked).choices[0].message.content

app = FastAPI()
release, motto = uuid.uuid4().hex, ask("a motto")

@app.get("/ask/{text}")
def answer(text: str):
    told = {"release": release, "motto": motto, "banner": os.environ["BANNER"]}
    return {**told, "reply": ask(text), "id": uuid.uuid4().hex}

if __name__ == "__main__":
    os.environ["BANNER"] = ask(f"a banner for {datetime.datetime.now()}") + uuid.uuid4().hex
    HOW
"""
HYPERCORN: Final = """from hypercorn import Config, run
    config = Config()
    config.application_path, config.workers, config.bind = "main:app", 2, [f"127.0.0.1:{sys.argv[1]}"]
    run.run(config)"""
HOW: Final = {
    "reloader": 'uvicorn.run("main:app", port=int(sys.argv[1]), reload=True)',
    "workers": 'uvicorn.run("main:app", port=int(sys.argv[1]), workers=2)',
    "hypercorn": HYPERCORN,  # imports the application in the main thread, not in a task
}


@pytest.mark.parametrize("how", HOW)
def test_p4_p5_what_a_program_does_before_it_starts_its_server_replays(
    how: str, provider: Provider, tmp_path: Path
) -> None:
    """Its calls and random values are in its own process; the replay, one process, gives them back in their place."""
    place = prepare(tmp_path, provider, "")
    source = PROGRAM.replace("HOW", HOW[how])
    place.write("main.py", source)
    port = free_port()
    with serve_with(place, port, "main.py", str(port)) as server:
        answer = httpx.get(f"{server.url}/ask/one", timeout=TIMEOUT_S)
        server.await_ends()
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert response_of(unit)["body"]["text"] == answer.text
    replayed = place.replay("main.py", "1", source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    place.write("main.py", source.replace("a banner for", "a slogan for"))
    changed = place.replay("main.py", "1", source=unit.run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes()[0][1] == "llm:openai.chat.completions", changed.stderr


NOTES: Final = """
import sqlite3, sys

import uvicorn
from fastapi import FastAPI

database = sqlite3.connect("notes.db", check_same_thread=False)
database.execute("CREATE TABLE IF NOT EXISTS notes (text)")
app = FastAPI()

@app.get("/add/{text}")
async def add(text: str):
    database.execute("INSERT INTO notes VALUES (?)", (text,))
    database.commit()
    return database.execute("SELECT text FROM notes").fetchall()

if __name__ == "__main__":
    HOW
"""
LAUNCHES: Final = {"a script": "uvicorn.run(app, port=int(sys.argv[1]))", "reloader": HOW["reloader"]}


@pytest.mark.parametrize("how", LAUNCHES)
def test_p4_files_that_the_start_makes_beside_the_code_are_made_again_in_a_suite(
    how: str, provider: Provider, tmp_path: Path
) -> None:
    """The start of a suite begins without them, too; they are still there from the recording."""
    place = prepare(tmp_path, provider, "")
    place.write("main.py", NOTES.replace("HOW", LAUNCHES[how]))
    port = free_port()
    with serve_with(place, port, "main.py", str(port)) as server:
        for text in ("one", "two"):
            assert httpx.get(f"{server.url}/add/{text}", timeout=TIMEOUT_S).status_code == 200
        server.await_ends()
        server.stop()
    kept = (tmp_path / "notes.db").read_bytes()
    insist_identical(place, "main.py", "1", units=server.units(), options=("--warm", "0"))
    assert (tmp_path / "notes.db").read_bytes() == kept


KEEPER: Final = """
import os

from fastapi import FastAPI

KEPT = os.environ["KEPT"]
if not os.path.isdir(KEPT):
    os.mkdir(KEPT)
app = FastAPI()

@app.get("/keep/{name}")
async def keep(name: str):
    with open(f"{KEPT}/{name}", "w") as file:
        file.write(name.upper())

@app.get("/read/{name}")
async def read(name: str):
    with open(f"{KEPT}/{name}") as file:
        return file.read()
"""


def test_p4_what_a_request_reads_in_a_folder_made_by_the_start_is_not_there_before_the_start(
    provider: Provider, tmp_path: Path
) -> None:
    """An earlier request wrote it: the start finds no folder, as when recorded, and makes it again."""
    (tmp_path / "app").mkdir()
    place = prepare(tmp_path / "app", provider, KEEPER)
    place.environ["KEPT"] = str(tmp_path / "kept")
    with serve(place) as server:
        for path in ("keep/one", "read/one"):
            assert httpx.get(f"{server.url}/{path}", timeout=TIMEOUT_S).status_code == 200
        server.await_ends()
        server.stop()
    (tmp_path / "kept" / "one").unlink()
    for unit in server.units():
        replayed = place.replay(*COMMAND, source=unit.run_id, options=("--warm", "0"))
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    insist_identical(place, *COMMAND, units=server.units(), options=("--warm", "0"))
