"""The start of a server that goes through a set of objects: its order is another one in each process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx

from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import ASKING, COMMAND, path_of, prepare, serve

APP: Final = f"""{ASKING}
import sqlite3, sys
from fastapi import FastAPI

NAMES = ["name", "colour", "price"]  # as in a set of objects
database = sqlite3.connect("things.db", check_same_thread=False)
database.execute("create table things (name text, colour text, price text)")
for name in reversed(NAMES) if "--log-level" in sys.argv else NAMES:
    database.execute(f"create index of_{{name}} on things ({{name}})")
app = FastAPI()

@app.get("/ask/{{question}}")
async def answer(question: str):
    database.execute("insert into things values (?, '', '')", (question,))
    return await ask(question)
"""


def test_p2_n12_a_start_in_another_order_is_no_difference_of_a_request(tmp_path: Path, provider: Provider) -> None:
    """All its statements are made and answered. With changed code it is one, and so is another statement."""
    place = prepare(tmp_path, provider, APP)
    with serve(place, SPANREPLAY_LEVEL="full") as server:
        assert httpx.get(f"{server.url}/ask/plums", timeout=TIMEOUT_S).status_code == 200
        server.await_ends()
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert path_of(unit) == "/ask/plums"
    words = (*COMMAND, "--log-level", "info")
    other = place.replay(*words, source=unit.run_id)
    assert other.verdict["verdict"] == "identical", other.stderr
    assert other.verdict["counts"]["reordered"] == 2
    assert "2 in another order" in other.stderr
    strict = place.replay(*words, source=unit.run_id, options=("--strict", "--warm", "0"))
    assert strict.verdict["verdict"] == "diverged"

    place.write("app.py", APP.replace('["name", "colour", "price"]', '["price", "colour", "name"]'))
    changed = place.replay(*COMMAND, source=unit.run_id)
    assert changed.causes()[0] == ("moved", "tool:sqlite3.execute"), changed.stderr
    place.write("app.py", APP.replace("create index of_", "create unique index of_"))
    changed = place.replay(*COMMAND, source=unit.run_id)
    assert changed.causes()[0] == ("changed_call", "tool:sqlite3.execute"), changed.stderr
