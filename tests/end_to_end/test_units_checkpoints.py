"""Graphs of LangGraph that keep their state in PostgreSQL, as services do: each request replays alone.

The saver's tasks share a lock and a pool of connections. Which of them comes first is no part of a recording at level
`calls`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from support import postgres
from support.graphs import BUILDER, IMPORTS
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.suites import insist_identical
from support.units import COMMAND, Server, path_of, prepare, serve

APP: Final = f'''
import os
from contextlib import asynccontextmanager

from fastapi import FastAPI
{IMPORTS}
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool


@tool
def price(name: str) -> str:
    """The price of a thing."""
    return f"{{name}} costs 7"


TOOLS = [price]
model = ChatOpenAI(model="gpt-x").bind_tools(TOOLS)


async def ask(state: MessagesState):
    return {{"messages": [await model.ainvoke(state["messages"])]}}

{BUILDER}

@asynccontextmanager
async def lifespan(app):
    kwargs = {{"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}}
    async with AsyncConnectionPool(os.environ["CONNECTION"], max_size=4, kwargs=kwargs, open=False) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        app.state.graph = builder.compile(checkpointer=saver)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/chat/{{thread}}/{{question}}")
async def chat(thread: str, question: str):
    text = 'use tool price with {{"name": "apple"}}' if question == "price" else question
    config = {{"configurable": {{"thread_id": thread}}}}
    found = await app.state.graph.ainvoke({{"messages": [("user", text)]}}, config)
    return [len(found["messages"]), found["messages"][-1].content]
'''
USERS: Final = ("ann", "ben", "cleo")


def talk(server: Server, user: str) -> None:
    """Ask twice; the second answer is about the whole conversation."""
    for question in ("price", "why"):
        httpx.get(f"{server.url}/chat/{user}/{question}", timeout=TIMEOUT_S).raise_for_status()


@pytest.mark.parametrize("level", ["calls", "full"])
def test_p2_u1_graphs_that_keep_their_state_in_postgres_replay_alone(
    tmp_path: Path, provider: Provider, level: str
) -> None:
    """Three users at once; then without a database and a provider, in a suite, and one request in its own process."""
    workplace = prepare(tmp_path, provider, APP)
    with postgres.serve() as connection:
        workplace.environ |= {"CONNECTION": connection, "SPANREPLAY_LEVEL": level}
        with serve(workplace) as server, ThreadPoolExecutor(len(USERS)) as pool:
            for done in [pool.submit(talk, server, user) for user in USERS]:
                done.result()
            server.await_ends()
            server.stop()
    provider.stop()
    units = server.units()
    assert [unit.completeness().reasons for unit in units] == [()] * 2 * len(USERS)
    insist_identical(workplace, *COMMAND, units=units, options=("--warm", "0"))
    last = next(unit for unit in units if path_of(unit) == "/chat/ben/why")
    alone = workplace.replay(*COMMAND, source=last.run_id)
    assert alone.verdict["verdict"] == "identical", alone.stderr
