"""Requests that share a pool of psycopg's connections replay alone, whichever of them connected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import httpx
import pytest

from support import postgres
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import ASKING, COMMAND, path_of, prepare, serve

_ROUTE: Final = """
import os
from fastapi import FastAPI

app = FastAPI()
INSERT, COUNT = "insert into asked values ({0})", "select count(*) from asked"
"""
ALCHEMY: Final = f"""{ASKING}{_ROUTE}
import anyio.from_thread
from sqlalchemy import create_engine, text

engine = create_engine(os.environ["URL"], pool_pre_ping=True)

@app.get("/ask/{{question}}")
def answer(question: str):
    with engine.begin() as connection:
        connection.execute(text(INSERT.format(":question")), {{"question": question}})
        reply = anyio.from_thread.run(ask, question)
        return {{"reply": reply, "counts": connection.execute(text(COUNT)).scalar_one() > 0}}
"""
ASYNC_ALCHEMY: Final = f"""{ASKING}{_ROUTE}
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

engine = create_async_engine(os.environ["URL"])

@app.get("/ask/{{question}}")
async def answer(question: str):
    async with engine.begin() as connection:
        await connection.execute(text(INSERT.format(":question")), {{"question": question}})
        reply = await ask(question)
        return {{"reply": reply, "counts": (await connection.execute(text(COUNT))).scalar_one() > 0}}
"""
POOL: Final = f"""{ASKING}{_ROUTE}
import anyio.from_thread
from psycopg_pool import ConnectionPool

pool = ConnectionPool(os.environ["CONNECTION"], min_size=1, max_size=3, open=True)

@app.get("/ask/{{question}}")
def answer(question: str):
    with pool.connection() as connection:
        connection.execute(INSERT.format("%s"), (question,))
        reply = anyio.from_thread.run(ask, question)
        return {{"reply": reply, "counts": connection.execute(COUNT).fetchone()[0] > 0}}
"""
OWN: Final = f"""{ASKING}{_ROUTE}
import psycopg2

kept = []

@app.get("/ask/{{question}}")
async def answer(question: str):
    if not kept:
        kept.append(psycopg2.connect(os.environ["CONNECTION"]))
    with kept[0], kept[0].cursor() as cursor:
        cursor.execute(INSERT.format("%s"), (question,))
        reply = await ask(question)
        cursor.execute(COUNT)
        return {{"reply": reply, "counts": cursor.fetchone()[0] > 0}}
"""
DJANGO: Final = """
import os

from django.conf import settings

database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "agent", "CONN_MAX_AGE": 60}
settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="none", USE_TZ=True, TIME_ZONE="Europe/Paris",
    DATABASES={"default": {**database, "HOST": os.environ["HOST"]}},
)

from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import JsonResponse
from django.urls import path
from groq import Groq

client = Groq()

def answer(request, question):
    with connection.cursor() as cursor:
        cursor.execute("insert into asked values (%s)", (question,))
        asked = [{"role": "user", "content": question}]
        reply = client.chat.completions.create(model="gpt-x", messages=asked).choices[0].message.content
        cursor.execute("select count(*), now() from asked")
        return JsonResponse({"reply": reply, "now": str(cursor.fetchone()[1])})

urlpatterns = [path("ask/<str:question>", answer)]
app = get_wsgi_application()
"""
WAITRESS: Final = ("-m", "waitress")
AT: Final = "--listen 127.0.0.1:{port} app:app"
APPS: Final = {
    "Django": (DJANGO, "psycopg", "psycopg"),
    "SQLAlchemy on psycopg": (ALCHEMY, "psycopg", "psycopg"),
    "SQLAlchemy on psycopg2": (ALCHEMY, "psycopg2", "psycopg2"),
    "SQLAlchemy on psycopg for asyncio": (ASYNC_ALCHEMY, "psycopg", "psycopg"),
    "psycopg's own pool": (POOL, "psycopg", "psycopg"),
    "kept by hand": (OWN, "psycopg2", "psycopg2"),
}
PREPARE: Final = """
import os, psycopg

with psycopg.connect(os.environ["CONNECTION"]) as connection:
    connection.execute("create table asked (question text)")
"""


async def _ask(url: str) -> None:
    """The first connections are made at the same time; later requests use them."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        for questions in (("plums", "figs", "nuts"), ("apples",)):
            answers = await asyncio.gather(*(client.get(f"/ask/{each}") for each in questions))
            assert [each.status_code for each in answers] == [200] * len(questions)


@pytest.mark.parametrize("name", APPS)
@pytest.mark.sampled(2)
def test_p3_a_request_on_a_kept_connection_of_postgresql_replays_alone(
    name: str, tmp_path: Path, provider: Provider
) -> None:
    """Each replays without a server, after none of the others; a changed statement is the only difference."""
    app, dialect, driver = APPS[name]
    place = prepare(tmp_path, provider, app)
    place.write("tables.py", PREPARE)
    with postgres.serve() as connection:
        host = connection.split()[0].partition("=")[2]
        place.environ.update(
            HOST=host, URL=f"postgresql+{dialect}://agent@/postgres?host={host}", CONNECTION=connection
        )
        place.run_plain("tables.py")
        command, at = (WAITRESS, AT) if app is DJANGO else (COMMAND, "--port {port}")
        with serve(place, command=command, at=at) as server:
            if app is OWN:
                for each in ("plums", "figs", "apples"):
                    assert httpx.get(f"{server.url}/ask/{each}", timeout=TIMEOUT_S).status_code == 200
            else:
                asyncio.run(_ask(server.url))
            server.await_ends()
            server.stop()
    words = (*command, *at.format(port=server.port).split())
    units = {path_of(unit): unit for unit in server.units()}
    for path, unit in units.items():
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*words, source=unit.run_id, options=("--warm", "0"))
        assert replayed.status == 0, (path, replayed.stderr)
    place.write("app.py", app.replace("insert into asked values", "insert into asked(question) values"))
    changed = place.replay(*words, source=units["/ask/apples"].run_id)
    assert changed.causes()[0] == ("changed_call", f"tool:{driver}.execute"), changed.stderr


PAIR: Final = f"""{ASKING}{_ROUTE}
import asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

engine = create_async_engine(os.environ["URL"])

@app.get("/one/{{question}}")
async def one(question: str):
    async with engine.begin() as connection:
        await connection.execute(text(INSERT.format(":question")), {{"question": question}})
    return await ask(question)

@app.get("/pair/{{question}}")
async def pair(question: str):
    held, both = [], asyncio.Event()

    async def insert(word):
        async with engine.begin() as connection:
            held.append(word)
            if len(held) == 2:
                both.set()
            await both.wait()
            await connection.execute(text(INSERT.format(":question")), {{"question": word}})

    first = await one(question)
    await asyncio.gather(insert("left"), insert("right"))
    return first
"""


@pytest.mark.parametrize("dialect", ["asyncpg", "psycopg"])
def test_p3_a_request_that_needs_one_more_connection_replays_alone(
    dialect: str, tmp_path: Path, provider: Provider
) -> None:
    """It found one connection and made a second one in a task; alone, it makes the first one in its first statement."""
    place = prepare(tmp_path, provider, PAIR)
    place.write("tables.py", PREPARE)
    with postgres.serve() as connection:
        host = connection.split()[0].partition("=")[2]
        place.environ.update(URL=f"postgresql+{dialect}://agent@/postgres?host={host}", CONNECTION=connection)
        place.run_plain("tables.py")
        with serve(place) as server:
            for path in ("/one/plums", "/pair/apples"):
                assert httpx.get(f"{server.url}{path}", timeout=TIMEOUT_S).status_code == 200
            server.await_ends()
            server.stop()
    unit = next(unit for unit in server.units() if path_of(unit) == "/pair/apples")
    assert any(call.name.endswith(".connect") for call in unit.calls)
    replayed = place.replay(*COMMAND, source=unit.run_id, options=("--warm", "0"))
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
