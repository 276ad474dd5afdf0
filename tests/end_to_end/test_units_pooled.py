"""Load decides which request opens a pooled connection: each replays alone, and its statements are compared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

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
