"""Load decides which request opens a pooled connection: each replays alone, and its statements are compared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from support import postgres
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.units import ASKING, COMMAND, prepare, serve

APP = f"""{ASKING}
import os
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

engine = create_async_engine("sqlite+aiosqlite:///asked.db")

@asynccontextmanager
async def lifespan(app):
    async with engine.begin() as connection:
        await connection.execute(text("create table asked (question text)"))
    if "POOL_IS_EMPTY" in os.environ:
        await engine.dispose()
    yield

app = FastAPI(lifespan=lifespan)

@app.get("/ask")
async def answer(question: str):
    async with engine.begin() as connection:
        await connection.execute(text("insert into asked values (:question)"), {{"question": question}})
        reply = await ask(question)
        count = (await connection.execute(text("select count(*) from asked"))).scalar_one()
    return {{"reply": reply, "count": count, "at": time.time()}}
"""


async def _ask(url: str, questions: list[str], *, at_once: bool) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        if at_once:
            await asyncio.gather(*(client.get("/ask", params={"question": each}) for each in questions))
            return
        for each in questions:
            await client.get("/ask", params={"question": each})


@pytest.mark.parametrize("level", ["calls", "full"])
@pytest.mark.parametrize("at_once", [True, False], ids=["opened then", "opened now"])
@pytest.mark.sampled(2)
def test_a_request_replays_whether_or_not_its_pool_has_a_connection(
    tmp_path: Path, provider: Provider, level: str, at_once: bool
) -> None:
    """A request that opened a connection uses that of the start; one that used another's opens its own."""
    workplace = prepare(tmp_path, provider, APP)
    if not at_once:
        workplace.environ["POOL_IS_EMPTY"] = "1"
    with serve(workplace, SPANREPLAY_LEVEL=level) as server:
        asyncio.run(_ask(server.url, ["apples", "pears", "plums"], at_once=at_once))
        server.stop()
    units = server.units()
    opened = [any(call.name == "sqlite3.connect" for call in unit.calls) for unit in units]
    unit = units[opened.index(at_once)]
    replayed = workplace.replay(*COMMAND, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr

    workplace.write("app.py", APP.replace("insert into asked values", "insert into asked(question) values"))
    changed = workplace.replay(*COMMAND, source=unit.run_id)
    assert changed.causes()[0] == ("changed_call", "tool:sqlite3.execute")


WITH_PSYCOPG = f"""{ASKING}
import os
from contextlib import asynccontextmanager

from fastapi import FastAPI
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

check = AsyncConnectionPool.check_connection
options = {{"kwargs": {{"autocommit": True}}, "check": check, "open": False}}
pool = AsyncConnectionPool(os.environ["DSN"], min_size=1, max_size=4, **options)

@asynccontextmanager
async def lifespan(app):
    await pool.open(wait=True)
    async with pool.connection() as connection:
        await connection.execute("create table asked (question text, state jsonb)")
    yield
    await pool.close()

app = FastAPI(lifespan=lifespan)

@app.get("/ask")
async def answer(question: str):
    async with pool.connection() as connection:
        async with connection.pipeline(), connection.cursor() as cursor:
            await cursor.execute("insert into asked values (%s, %s)", (question, Jsonb({{"q": question}})))
        reply = await ask(question)
        count = await (await connection.execute("select count(*) from asked")).fetchone()
    return {{"reply": reply, "count": count[0], "at": time.time()}}
"""
WITH_PSYCOPG_THREADS = """
import os, time
from contextlib import asynccontextmanager

from fastapi import FastAPI
from groq import Groq
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

client = Groq()
pool = ConnectionPool(os.environ["DSN"], min_size=1, max_size=4, open=False)

@asynccontextmanager
async def lifespan(app):
    pool.open(wait=True)
    with pool.connection() as connection:
        connection.execute("create table asked (question text, state jsonb)")
    yield
    pool.close()

app = FastAPI(lifespan=lifespan)

@app.get("/ask")
def answer(question: str):
    with pool.connection() as connection:
        connection.execute("insert into asked values (%s, %s)", (question, Jsonb({"q": question})))
        given = [{"role": "user", "content": question}]
        reply = client.chat.completions.create(model="gpt-x", messages=given).choices[0].message.content
        count = connection.execute("select count(*) from asked").fetchone()
    return {"reply": reply, "count": count[0], "at": time.time()}
"""


@pytest.mark.parametrize("app", [WITH_PSYCOPG, WITH_PSYCOPG_THREADS], ids=["tasks", "threads"])
def test_requests_on_a_pool_of_psycopg_replay_alone(tmp_path: Path, provider: Provider, app: str) -> None:
    """Whether a request got a connection or made the pool grow, it replays without its server."""
    workplace = prepare(tmp_path, provider, app)
    with postgres.serve() as dsn, serve(workplace, DSN=dsn) as server:
        workplace.environ["DSN"] = dsn
        asyncio.run(_ask(server.url, [f"slow {n}" for n in range(4)], at_once=True))
        asyncio.run(_ask(server.url, ["after"], at_once=False))
        server.stop()
    units = server.units()
    assert [unit.completeness().reasons for unit in units] == [()] * len(units)
    for unit in units:
        replayed = workplace.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
    workplace.write("app.py", app.replace('{"q"', '{"asked"').replace('{{"q"', '{{"asked"'))
    changed = workplace.replay(*COMMAND, source=units[0].run_id)
    assert changed.causes()[0] == ("changed_call", "tool:psycopg.execute")
