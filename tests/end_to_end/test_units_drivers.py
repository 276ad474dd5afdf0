"""Requests that share a pool of a database driver's connections replay alone, whichever of them connected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import httpx
import pytest

from support import mariadb
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import ASKING, COMMAND, FLASK, path_of, prepare, serve

ALCHEMY: Final = f"""{ASKING}
import os
from fastapi import FastAPI
from sqlalchemy import create_engine, text

engine = create_engine(os.environ["URL"], pool_pre_ping=True)
app = FastAPI()

@app.get("/ask/{{question}}")
async def answer(question: str):
    with engine.begin() as connection:
        connection.execute(text("create table if not exists asked (question text)"))
        connection.execute(text("insert into asked values (:question)"), {{"question": question}})
        reply = await ask(question)
        count = connection.execute(text("select count(*) from asked")).scalar_one()
    return {{"reply": reply, "count": count}}
"""
OWN: Final = f"""{ASKING}
import os, pymysql
from fastapi import FastAPI

app, kept = FastAPI(), []

@app.get("/ask/{{question}}")
async def answer(question: str):
    if not kept:
        kept.append(pymysql.connect(host="127.0.0.1", port=int(os.environ["PORT"]), user="agent",
                                    password=os.environ["PASS"], database="shop", autocommit=True))
    kept[0].ping()
    with kept[0].cursor() as cursor:
        cursor.execute("create table if not exists asked (question text)")
        cursor.execute("insert into asked values (%s)", (question,))
        reply = await ask(question)
        cursor.execute("select count(*) from asked")
        return {{"reply": reply, "count": cursor.fetchone()[0]}}
"""
IN_THREADS: Final = f"""{FLASK}
import os
from sqlalchemy import create_engine, text

engine = create_engine(os.environ["URL"])

@app.get("/ask/<question>")
def answer(question):
    with engine.begin() as connection:
        connection.execute(text("create table if not exists asked (question text)"))
        connection.execute(text("insert into asked values (:question)"), {{"question": question}})
        reply = ask(question)
        count = connection.execute(text("select count(*) from asked")).scalar_one()
    return {{"reply": reply, "count": count}}
"""
WAITRESS: Final = ("-m", "waitress")
APPS: Final = {
    "SQLAlchemy": (ALCHEMY, COMMAND, "--port {port}"),
    "kept by hand": (OWN, COMMAND, "--port {port}"),
    "threads": (IN_THREADS, WAITRESS, "--listen 127.0.0.1:{port} app:app"),
}


async def _ask(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        for questions in (("apples",), ("pears",), ("plums", "figs", "nuts")):
            answers = await asyncio.gather(*(client.get(f"/ask/{each}") for each in questions))
            assert [each.status_code for each in answers] == [200] * len(questions)


@pytest.mark.parametrize("name", APPS)
def test_dbapi_a_request_replays_whether_or_not_it_connected(name: str, tmp_path: Path, provider: Provider) -> None:
    """The first connects, the second uses its connection, of the others some do; each replays alone, without server."""
    app, command, at = APPS[name]
    place = prepare(tmp_path, provider, app)
    with mariadb.serve() as database:
        url = f"mysql+pymysql://agent:{mariadb.PASSWORD}@127.0.0.1:{database.port}/shop"
        place.environ.update(URL=url, PORT=str(database.port), PASS=mariadb.PASSWORD)
        with serve(place, command=command, at=at) as server:
            for question in ("apples", "pears"):
                assert httpx.get(f"{server.url}/ask/{question}", timeout=TIMEOUT_S).status_code == 200
            server.await_ends()
            server.stop()
        words = (*command, *at.format(port=server.port).split())
        units = {path_of(unit): unit for unit in server.units()}
    for path, unit in units.items():
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*words, source=unit.run_id)
        assert replayed.status == 0, (path, replayed.stderr)
    place.write("app.py", app.replace("insert into asked values", "insert into asked(question) values"))
    changed = place.replay(*words, source=units["/ask/pears"].run_id)
    assert changed.causes()[0] == ("changed_call", "tool:pymysql.execute")
