"""asyncpg, its pools, and SQLAlchemy on it replay without PostgreSQL; requests on kept connections replay alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support import postgres
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace, assert_same
from support.units import ASKING, COMMAND, prepare, serve

SECRET = "hunter2-of-the-agent"
PROGRAM = f"""
import asyncio, decimal, json, os
import asyncpg


class Named(asyncpg.Record):
    def __getattr__(self, name):
        return self[name]


async def types(connection):
    print(await connection.fetchrow(
        "SELECT int4range(1, 5) a, B'1010' b, point(1, 2) c, '10.0.0.1'::inet d, interval '1 day' e, ROW(1, 'x') f, "
        "ARRAY[[1, 2], [3, 4]] g, 'NaN'::numeric h, '\\\\x00ff'::bytea i, gen_random_uuid() j, now() k, 1 a"))
    print(list(await connection.fetchval("SELECT '((0,0),(1,1))'::path")))
    await connection.execute("CREATE TYPE pair AS (x int, y text)")
    pairs = await connection.fetchval("SELECT ARRAY[ROW(1, 'x')::pair, NULL]")
    print(pairs, type(pairs[0]) is asyncpg.Record, pairs[0]["y"])
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    print(await connection.fetchval("SELECT $1::jsonb", {{"k": [1, None]}}))


async def rows(connection):
    await connection.execute("CREATE TABLE orders (id serial PRIMARY KEY, owner text, amount numeric)")
    print(await connection.executemany(
        "INSERT INTO orders (owner, amount) VALUES ($1, $2)", iter([("a", decimal.Decimal("1.5")), ("b", None)])))
    for row in await connection.fetch("SELECT * FROM orders WHERE id < $1 ORDER BY id", 5):
        print(row, type(row) is asyncpg.Record, list(row.keys()), dict(row), row["owner"], row[0], "id" in row)
    print((await connection.fetchrow("SELECT random() AS r", record_class=Named)).r)
    print(await connection.fetchrow("SELECT 1 WHERE false"), await connection.fetchval("SELECT 1, 2", column=1))
    print(await connection.copy_records_to_table("orders", records=[(9, "z")], columns=["id", "owner"]))
    statement = await connection.prepare("SELECT $1::int + id AS sum, owner FROM orders ORDER BY id")
    print(statement.get_query(), statement.get_parameters(), statement.get_attributes())
    print(await statement.fetch(3), statement.get_statusmsg(), await statement.fetchval(4), await statement.fetchrow(5))


async def failures(connection):
    try:
        await connection.execute("INSERT INTO orders (id) VALUES (1)")
    except asyncpg.UniqueViolationError as error:
        print(type(error), error.sqlstate, error.constraint_name, error.detail, error.table_name, error, vars(error))
    try:
        await connection.fetch("SELECT $1::int", "x")
    except asyncpg.DataError as error:
        print(error)
    for slow in (connection.fetchval("SELECT pg_sleep(60)", timeout=0.01),
                 asyncio.wait_for(connection.fetchval("SELECT pg_sleep(60)"), 0.01)):
        try:
            await slow
        except asyncio.TimeoutError as error:
            print(repr(error))
    try:
        await asyncpg.connect(URL, user="nobody", password="{SECRET}")
    except asyncpg.PostgresError as error:
        print(repr(error))


async def transactions(connection):
    await connection.fetchval("SELECT 1")
    async with connection.transaction(isolation="serializable"):
        print(connection.is_in_transaction())
        await connection.execute("DELETE FROM orders WHERE id = 2")
        try:
            async with connection.transaction():
                await connection.execute("DELETE FROM orders")
                raise KeyError
        except KeyError:
            print(await connection.fetchval("SELECT count(*) FROM orders"))
        async for row in connection.cursor("SELECT generate_series(1, 7) AS n", prefetch=3):
            print(row["n"], end=" ")
        cursor = await connection.cursor("SELECT generate_series(1, 7) AS n")
        print(await cursor.forward(2), await cursor.fetchrow(), await cursor.fetch(2), await cursor.fetch(9))
    try:
        async with connection.transaction():
            await connection.execute("no statement")
    except asyncpg.PostgresSyntaxError as error:
        print(error, connection.is_in_transaction())


async def main():
    connection = await asyncpg.connect(URL)
    print(isinstance(connection, asyncpg.Connection), connection.get_server_version(), connection.get_server_pid())
    print(connection.get_settings())
    logged = []
    with connection.query_logger(lambda query: logged.append((query.query, query.args, query.elapsed > 0))):
        for part in (types, rows, failures, transactions):
            await part(connection)
    await asyncio.sleep(0)
    print([each for each in logged if "__asyncpg" not in each[0]])
    await connection.close()
    print(connection.is_closed())
    try:
        await connection.fetch("SELECT 1")
    except asyncpg.InterfaceError as error:
        print(error)
    async with asyncpg.create_pool(URL, min_size=1, max_size=3) as pool:
        print(await asyncio.gather(*(pool.fetchval("SELECT $1::int * random()", n) for n in range(6))))
        async with pool.acquire() as one:
            await one.execute("SET TIME ZONE 'Europe/Rome'")
            print(await one.fetchval("SELECT now()::text"), isinstance(one, asyncpg.Connection), pool.get_size() > 0)


URL = os.environ["URL"]
asyncio.run(main())
"""
SQLALCHEMY = """
import asyncio, os
from sqlalchemy import ForeignKey, exc, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]
    note: Mapped[dict] = mapped_column(JSONB)

async def main():
    engine = create_async_engine(os.environ["URL"].replace("postgresql", "postgresql+asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session:
        session.add_all([Order(owner="ann", note={"a": [1]}), Order(owner="bob", note={})])
        await session.commit()
        for _ in range(2):  # the statement is prepared once
            print([(o.id, o.owner, o.note) for o in await session.scalars(select(Order).order_by(Order.id))])
    async with engine.connect() as connection:
        result = await connection.stream(text("SELECT generate_series(1, 5), random()"))
        print([tuple(row) async for row in result])
    try:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
    except exc.IntegrityError as error:
        print(type(error.orig), error.orig.sqlstate, error)
    async def count():
        async with engine.connect() as connection:
            return (await connection.execute(text("SELECT count(*), random() FROM orders"))).one()
    print(await asyncio.gather(*(count() for _ in range(4))))
    await engine.dispose()

asyncio.run(main())
"""
LISTENING = """
import asyncio, os
import asyncpg

async def main():
    connection = await asyncpg.connect(os.environ["URL"])
    heard = asyncio.get_running_loop().create_future()
    await connection.add_listener("orders", lambda *given: heard.set_result(given[2:]))
    await connection.execute("NOTIFY orders, 'one'")
    print(await heard)
    await connection.close()

asyncio.run(main())
"""
POOL = f"""{ASKING}
import json, os
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI

async def init(connection):
    await connection.execute("SET application_name = 'shop'")
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

@asynccontextmanager
async def lifespan(app):
    async with asyncpg.create_pool(os.environ["URL"], min_size=0, max_size=3, init=init) as app.state.pool:
        yield

app = FastAPI(lifespan=lifespan)

@app.get("/ask")
async def answer(question: str):
    async with app.state.pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO asked (question) VALUES ($1)", question)
        row = await connection.fetchrow("SELECT random() r, $1::jsonb j", {{"question": question}})
    return {{"reply": await ask(question), **row, "at": time.time()}}
"""
ENGINE = f"""{ASKING}
import os
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

engine = create_async_engine(os.environ["URL"].replace("postgresql", "postgresql+asyncpg"))

@asynccontextmanager
async def lifespan(app):
    async with engine.begin() as connection:
        await connection.execute(text("SELECT 1"))
    yield

app = FastAPI(lifespan=lifespan)

@app.get("/ask")
async def answer(question: str):
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO asked (question) VALUES (:question)"), {{"question": question}})
        count = (await connection.execute(text("SELECT count(*) + random() FROM asked"))).scalar_one()
    return {{"reply": await ask(question), "count": count, "at": time.time()}}
"""
LAZY = (
    ENGINE.replace('        await connection.execute(text("SELECT 1"))\n', "")
    .replace(
        """    async with engine.begin() as connection:
    yield""",
        "    yield",
    )
    .replace('"postgresql+asyncpg")', '"postgresql+asyncpg"), pool_pre_ping=True')
)


class Server:
    """A running PostgreSQL that can be stopped."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.dsn = self._stack.enter_context(postgres.serve())
        folder = dict(part.split("=") for part in self.dsn.split())["host"]
        self.url = f"postgresql://agent@/postgres?host={folder}"

    def stop(self) -> None:
        """Stop it and remove its files."""
        self._stack.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """An empty PostgreSQL server."""
    made = Server()
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("source", "change"),
    [
        (PROGRAM, ("DELETE FROM orders WHERE id = 2", "DELETE FROM orders WHERE id = 1")),
        (SQLALCHEMY, ('owner="bob"', 'owner="bea"')),
    ],
    ids=["asyncpg", "sqlalchemy"],
)
def test_s50_asyncpg_replays_without_its_server(
    source: str, change: tuple[str, str], workplace: Workplace, server: Server
) -> None:
    """Rows, types, statuses, errors, cursors, transactions and pools come back; another statement is another run."""
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, URL=server.url)
    server.stop()
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert {(call.kind, call.effect) for call in recording.calls if "DELETE" in call.request} <= {
        ("tool", "irreversible")
    }
    assert not [call for call in recording.calls if SECRET in call.request + call.response]
    assert_same(workplace.replay(agent, URL=server.url), recorded.stdout)
    workplace.write("agent.py", source.replace(*change))
    changed = workplace.replay(agent, URL=server.url)
    assert changed.verdict["verdict"] == "diverged"
    assert {boundary.partition(".")[0] for _, boundary in changed.causes()} == {"tool:asyncpg"}


def test_s50_notifications_of_asyncpg_make_a_run_incomplete(workplace: Workplace, server: Server) -> None:
    """The program works as without us, the run says what it lacks, and the replay ends where that begins."""
    agent = workplace.write("agent.py", LISTENING)
    recorded = workplace.record(agent, URL=server.url)
    assert recorded.stdout == "('orders', 'one')\n"
    assert "LISTEN of PostgreSQL was used" in " ".join(workplace.recording().completeness().reasons)
    replayed = workplace.replay(agent, URL=server.url)
    assert replayed.verdict["verdict"] == "incomplete", replayed.stderr


async def _ask(url: str, questions: list[str], *, at_once: bool) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        if at_once:
            await asyncio.gather(*(client.get("/ask", params={"question": each}) for each in questions))
            return
        for each in questions:
            await client.get("/ask", params={"question": each})


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("app", [POOL, ENGINE, LAZY], ids=["pool", "sqlalchemy", "sqlalchemy at the first request"])
@pytest.mark.sampled(3)
def test_p3_a_request_on_a_kept_connection_of_asyncpg_replays_alone(
    app: str, at_once: bool, tmp_path: Path, provider: Provider, server: Server
) -> None:
    """Whether a request opens a connection or finds one, it is complete, replays alone, and its statements count."""
    import psycopg

    with psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE asked (question text)")
    workplace = prepare(tmp_path, provider, app)
    workplace.environ["URL"] = server.url
    with serve(workplace) as running:
        asyncio.run(_ask(running.url, ["apples", "pears", "plums"], at_once=at_once))
        running.stop()
    server.stop()
    units = running.units()
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
    for unit in units[-2:]:
        replayed = workplace.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
    workplace.write("app.py", app.replace("INSERT INTO asked (question)", "INSERT INTO asked(question)"))
    changed = workplace.replay(*COMMAND, source=units[-1].run_id)
    assert changed.causes()[0][0] == "changed_call"
    assert changed.causes()[0][1] in ("tool:asyncpg.execute", "tool:asyncpg.prepare")
