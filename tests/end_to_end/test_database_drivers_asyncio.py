"""Drivers for asyncio that have the shape of the Database API replay without a server: those of MySQL and MariaDB."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from support import mariadb
from support.mariadb import MariaDB
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace, assert_same
from support.units import ASKING, COMMAND, path_of, prepare, serve

PLAIN: Final = """
import asyncio, os
import DRIVER
from DRIVER.cursors import Cursor, DictCursor, SSCursor

OPTIONS = dict(host="127.0.0.1", port=int(os.environ["PORT"]), user="agent", password=os.environ["PASS"], db="shop")


async def statements(db):
    async with db.cursor() as cursor:
        await cursor.execute("create table orders (id int auto_increment primary key, owner varchar(40), "
                             "amount decimal(10,2), at datetime(6), day date, took time, raw blob, doc json)")
        await db.begin()
        print(await cursor.execute("insert into orders (owner, amount, at, day, took, raw, doc) values "
                                   "(%s, 1.5, now(6), curdate(), '-01:02:03', x'00ff', '[1]')", ("ann",)))
        print(await cursor.executemany("insert into orders (owner) values (%s)", [("bob",), ("carl",)]))
        await cursor.execute("select * from orders where id < %s", (3,))
        print(isinstance(cursor, Cursor), [each[0] for each in cursor.description], cursor.rowcount, cursor.lastrowid)
        print(await cursor.fetchone(), await cursor.fetchmany(1), await cursor.fetchone())
    await db.commit()


async def rows(db):
    async with db.cursor(DictCursor) as cursor:
        await cursor.execute("select uuid() as u, connection_id() as c")
        print(await cursor.fetchone())
    async with db.cursor(SSCursor) as cursor:
        await cursor.execute("select seq from seq_1_to_700")
        print([row async for row in cursor][-1])
    async with db.cursor() as cursor, db.cursor() as other:
        await cursor.execute("select seq, rand() from seq_1_to_30")
        await other.execute("select seq, rand() from seq_1_to_3")
        async for row in cursor:
            if row[0] == 6:
                break
        print(await cursor.fetchmany(2), await cursor.fetchmany(3), await cursor.fetchone())
        one, two = await cursor.fetchall(), await other.fetchall()
        print(one, two)


async def failures(db):
    async with db.cursor() as cursor:
        for statement in ("select * from nothing", "insert into orders (id) values (1)"):
            try:
                await cursor.execute(statement)
            except DRIVER.Error as error:
                print(type(error), error.args)
        await db.rollback()
        await db.autocommit(True)
        killed = await DRIVER.connect(**OPTIONS)
        await db.kill(killed.thread_id())
        try:
            async with killed.cursor() as lost:
                await lost.execute("select 1")
        except DRIVER.OperationalError as error:
            print(error)
        try:
            await asyncio.wait_for(cursor.execute("select sleep(60)"), 0.05)
        except asyncio.TimeoutError as error:
            print(repr(error))
    try:
        await DRIVER.connect(**{**OPTIONS, "password": "wrong"})
    except DRIVER.OperationalError as error:
        print(error)


async def task(pool, n):
    async with pool.acquire() as db, db.cursor(DictCursor) as cursor:
        await cursor.execute("insert into orders (owner) values (%s)", (f"task {n}",))
        await cursor.execute("select connection_id() as c, rand() as r")
        print(n, await cursor.fetchone())
        await (db.commit() if n % 2 else db.rollback())


async def main():
    db = await DRIVER.connect(**OPTIONS)
    print(isinstance(db, DRIVER.Connection), type(db).__name__, await db.ping(), db.escape("a'b"))
    for part in statements, rows, failures:
        await part(db)
    db.close()
    async with DRIVER.create_pool(minsize=1, maxsize=3, **OPTIONS) as pool:
        await asyncio.gather(*(task(pool, n) for n in range(6)))
        db = await pool.acquire()
        async with db.cursor() as cursor:
            await cursor.execute("select owner from orders order by id")
            print(await cursor.fetchall(), pool.size, cursor.connection is db)
        await pool.release(db)


asyncio.run(main())
"""
CONNECTOR: Final = """
import asyncio, os
import mysql.connector
from mysql.connector import aio

OPTIONS = dict(host="127.0.0.1", port=int(os.environ["PORT"]), user="agent", password=os.environ["PASS"],
               database="shop", ssl_disabled=True)


async def task(n):
    async with await aio.connect(pool_name="shop", pool_size=3, **OPTIONS) as db:
        async with await db.cursor(dictionary=True) as cursor:
            await cursor.execute("insert into orders (owner) values (%s)", (f"task {n}",))
            await cursor.execute("select connection_id() as c, rand() as r")
            print(n, await cursor.fetchone())
            await (db.commit() if n % 2 else db.rollback())


async def main():
    db = await aio.connect(**OPTIONS)
    print(isinstance(db, aio.MySQLConnection), await db.is_connected(), db.charset, await db.get_autocommit())
    async with await db.cursor(buffered=True) as cursor:
        await cursor.execute("create table orders (id int auto_increment primary key, owner varchar(40))")
        await db.start_transaction(isolation_level="READ COMMITTED")
        await cursor.executemany("insert into orders (owner) values (%s)", [("bob",), ("carl",)])
        await cursor.execute("select id, owner, now(6) from orders where id < %s", (3,))
        print(cursor.column_names, cursor.rowcount, await cursor.fetchone(), await cursor.fetchall())
        await db.commit()
        for statement in ("select * from nothing", "insert into orders (id) values (1)"):
            try:
                await cursor.execute(statement)
            except mysql.connector.Error as error:
                print(type(error), error.errno, error.sqlstate, error)
    killed = await aio.connect(**OPTIONS)
    async with await db.cursor() as cursor, await killed.cursor() as lost:
        await cursor.execute(f"kill {killed.connection_id}")
        try:
            await lost.execute("select 1")
        except mysql.connector.Error as error:
            print(error)
        await cursor.execute("select seq from seq_1_to_300")
        total = 0
        while row := await cursor.fetchone():
            total += row[0]
        print(total)
    await db.close()
    await task(9)  # makes the pool
    await asyncio.gather(*(task(n) for n in range(3)))


asyncio.run(main())
"""
ALCHEMY: Final = """
import asyncio, os
from sqlalchemy import Numeric, String, exc, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(String(40))
    amount: Mapped[float] = mapped_column(Numeric(10, 2))


async def count(engine, n):
    async with engine.connect() as connection:
        print((await connection.execute(text("select count(*), rand(), :n from orders"), {"n": n})).one())


async def main():
    engine = create_async_engine(os.environ["URL"].replace("mysql", "mysql+DRIVER", 1), pool_pre_ping=True)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session:
        session.add_all([Order(owner="ann", amount=1), Order(owner="bob", amount=2)])
        await session.commit()
        print([(o.id, o.owner, o.amount) for o in await session.scalars(select(Order).order_by(Order.id))])
    async with engine.connect() as connection:
        result = await connection.stream(text("select seq, rand() from seq_1_to_300"))
        print([tuple(row) async for row in result][-1], await connection.get_isolation_level())
        for statement in ("select * from nothing", "insert into orders values (1, 'x', 1)"):
            try:
                await connection.execute(text(statement))
            except exc.DBAPIError as error:
                print(type(error), type(error.orig), error.orig.args)
            await connection.rollback()
    async with engine.execution_options(isolation_level="SERIALIZABLE").begin() as connection:
        print((await connection.execute(text("update orders set amount = 3"))).rowcount)
        async with connection.begin_nested() as nested:
            await connection.execute(text("delete from orders"))
            await nested.rollback()
    await asyncio.gather(*(count(engine, n) for n in range(4)))
    await engine.dispose()


asyncio.run(main())
"""


@pytest.fixture
def server() -> Iterator[MariaDB]:
    """A MariaDB server."""
    with mariadb.serve() as made:
        yield made


def _environ(server: MariaDB) -> dict[str, str]:
    url = f"mysql://agent:{mariadb.PASSWORD}@127.0.0.1:{server.port}/shop"
    return {"PORT": str(server.port), "PASS": mariadb.PASSWORD, "URL": url}


def _record(path: Path, server: MariaDB, program: str) -> tuple[Workplace, str]:
    place = Workplace(path, _environ(server))
    place.write("agent.py", program)
    recorded = place.record("agent.py")
    server.stop()
    recording = place.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    for file in (path / ".spanreplay").rglob("*"):
        assert not file.is_file() or mariadb.PASSWORD.encode() not in file.read_bytes(), file
    return place, recorded.stdout


@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy"])
def test_dbapi_a_driver_for_asyncio_replays_without_its_server(driver: str, tmp_path: Path, server: MariaDB) -> None:
    """Rows, errors, streams, transactions and tasks with a pool come back; each statement and its end is compared."""
    program = PLAIN.replace("DRIVER", driver)
    place, said = _record(tmp_path, server, program)
    assert_same(place.replay("agent.py"), said)
    for then, now, cause in (
        ('("carl",)', '("cora",)', ("changed_call", f"tool:{driver}.executemany")),
        ("    await db.commit()\n", "", ("missing_call", f"tool:{driver}.commit")),
        ("if n % 2 else", "if n % 3 else", ("moved", f"tool:{driver}.commit")),
        ("one, two = await cursor.fetchall(), await other", "two, one = await other.fetchall(), await cursor",
         ("moved", f"tool:{driver}.fetchall")),
    ):  # fmt: skip
        place.write("agent.py", program.replace(then, now))
        assert cause in place.replay("agent.py").causes(), now


def test_dbapi_mysql_connector_on_asyncio_replays_without_its_server(tmp_path: Path, server: MariaDB) -> None:
    """The same with MySQL's own driver, whose connections are made and kept by one function."""
    place, said = _record(tmp_path, server, CONNECTOR)
    assert_same(place.replay("agent.py"), said)
    for then, now, cause in (
        ("READ COMMITTED", "SERIALIZABLE", ("changed_call", "tool:mysql.connector.aio.start_transaction")),
        ("        await db.commit()\n", "", ("missing_call", "tool:mysql.connector.aio.commit")),
    ):
        place.write("agent.py", CONNECTOR.replace(then, now))
        assert cause in place.replay("agent.py").causes(), now


@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy"])
def test_dbapi_sqlalchemy_on_a_driver_for_asyncio_replays_without_its_server(
    driver: str, tmp_path: Path, server: MariaDB
) -> None:
    """An engine's sessions, streams, isolation levels and savepoints come back."""
    program = ALCHEMY.replace("DRIVER", driver)
    place, said = _record(tmp_path, server, program)
    assert_same(place.replay("agent.py"), said)
    place.write("agent.py", program.replace("amount = 3", "amount = 4"))
    assert place.replay("agent.py").causes()[0] == ("changed_call", f"tool:{driver}.execute")


POOL: Final = f"""{ASKING}
import os
from contextlib import asynccontextmanager

import DRIVER
from fastapi import FastAPI

OPTIONS = dict(host="127.0.0.1", port=int(os.environ["PORT"]), user="agent", password=os.environ["PASS"], db="shop")

@asynccontextmanager
async def lifespan(app):
    async with DRIVER.create_pool(minsize=0, maxsize=3, **OPTIONS) as app.state.pool:
        async with app.state.pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute("create table asked (question text)")
        yield

app = FastAPI(lifespan=lifespan)

@app.get("/ask/{{question}}")
async def answer(question: str):
    async with app.state.pool.acquire() as connection, connection.cursor() as cursor:
        await cursor.execute("insert into asked values (%s)", (question,))
        reply = await ask(question)
        await cursor.execute("select count(*), rand() from asked")
        count, drawn = await cursor.fetchone()
        await connection.commit()
    return {{"reply": reply, "count": count, "drawn": drawn, "at": time.time()}}
"""
ENGINE: Final = f"""{ASKING}
import os

from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

engine = create_async_engine(os.environ["URL"].replace("mysql", "mysql+DRIVER", 1), pool_pre_ping=True)
app = FastAPI()

@app.get("/ask/{{question}}")
async def answer(question: str):
    async with engine.connect() as connection:
        await connection.execute(text("create table if not exists asked (question text)"))
        await connection.execute(text("insert into asked values (:question)"), {{"question": question}})
        reply = await ask(question)
        count = (await connection.execute(text("select count(*) + rand() from asked"))).scalar_one()
        await connection.commit()
    return {{"reply": reply, "count": count, "at": time.time()}}
"""


APPS: Final = {"pool": POOL, "SQLAlchemy": ENGINE}
CHANGES: Final = {
    "pool": ("insert into asked values", "insert into asked(question) values"),
    "SQLAlchemy": ("        await connection.commit()\n", ""),
}


async def _ask(url: str, questions: tuple[str, ...]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        answers = await asyncio.gather(*(client.get(f"/ask/{each}") for each in questions))
    assert [each.status_code for each in answers] == [200] * len(questions)


@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy"])
@pytest.mark.parametrize("name", APPS)
@pytest.mark.sampled(2)
def test_p3_a_request_replays_alone_whichever_connection_it_got(
    name: str, driver: str, tmp_path: Path, provider: Provider, server: MariaDB
) -> None:
    """All requests are complete; one of four at once and a later one replay alone; their statements are compared."""
    app = APPS[name].replace("DRIVER", driver)
    place = prepare(tmp_path, provider, app)
    place.environ.update(_environ(server))
    with serve(place) as running:
        for questions in (("apples",), ("pears", "plums", "figs", "nuts"), ("dates",)):
            asyncio.run(_ask(running.url, questions))
        running.await_ends()
        running.stop()
    server.stop()
    units = {path_of(unit): unit for unit in running.units()}
    for unit in units.values():
        assert unit.completeness().is_complete, unit.completeness().reasons
    for path in ("/ask/plums", "/ask/dates"):
        replayed = place.replay(*COMMAND, source=units[path].run_id, options=("--warm", "0"))
        assert replayed.status == 0, (path, replayed.stderr)
    place.write("app.py", app.replace(*CHANGES[name]))
    changed = place.replay(*COMMAND, source=units["/ask/plums"].run_id, options=("--warm", "0"))
    assert changed.causes()[0] in (
        ("changed_call", f"tool:{driver}.execute"),
        ("extra_call", f"tool:{driver}.rollback"),
    )
