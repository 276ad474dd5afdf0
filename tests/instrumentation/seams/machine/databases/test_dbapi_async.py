"""A package whose connections are awaited is a driver for asyncio, whatever its name; its objects' uses are calls."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine import effects
from spanreplay.seams.machine.databases import dbapi, dbapi_async
from support.changed import load, record_agent, replay_agent

DRIVER = """
import asyncio
from collections.abc import Coroutine
MADE = []
class Error(Exception): pass
class OperationalError(Error): pass
class Waiting(Coroutine):
    def __init__(self, coroutine): self._coroutine = coroutine
    def send(self, value): return self._coroutine.send(value)
    def throw(self, *args): return self._coroutine.throw(*args)
    def close(self): self._coroutine.close()
    def __await__(self): return self._coroutine.__await__()
    async def __aenter__(self): self._made = await self._coroutine; return self._made
    async def __aexit__(self, kind, value, trace): await self._made.close(); MADE.append("left")
class Cursor:
    arraysize, rowcount, description = 2, -1, None
    def __init__(self, connection): self.connection, self._rows = connection, []
    async def execute(self, sql, parameters=()):
        MADE.append(sql)
        await asyncio.sleep(0)
        if sql == "fail": raise OperationalError("no", 17)
        self._rows = [(n, f"name {n}") for n in range(int(sql.split()[-1]))]
        self.rowcount, self.description = len(self._rows), [("n", int, None), ("name", str, None)]
    async def fetchone(self): return self._rows.pop(0) if self._rows else None
    def fetchall(self):
        done = asyncio.get_running_loop().create_future()
        done.set_result(tuple(self._rows))
        self._rows = []
        return done
    async def fetchmany(self, size=None):
        found, self._rows = self._rows[:size or self.arraysize], self._rows[size or self.arraysize:]
        return tuple(found)
    async def sets(self):
        for size in (1, 2):
            cursor = Cursor(self.connection)
            await cursor.execute(f"set {size}")
            yield cursor
    async def close(self): MADE.append("cursor closed")
    async def __aenter__(self): return self
    async def __aexit__(self, *how): await self.close()
    def __aiter__(self): return self
    async def __anext__(self):
        if (row := await self.fetchone()) is None: raise StopAsyncIteration
        return row
class Connection:
    closed = False
    async def _cursor(self, cls): await asyncio.sleep(0); return cls(self)
    def cursor(self, cls=Cursor): return Waiting(self._cursor(cls))
    async def commit(self): MADE.append("commit")
    async def rollback(self): MADE.append("rollback")
    async def close(self): self.closed = True; MADE.append("closed")
class Pool:
    def __init__(self): self._free = []
    async def _acquire(self): return self._free.pop() if self._free else await connect("pooled")
    def acquire(self): return Waiting(self._acquire())
    async def release(self, connection): self._free.append(connection)
    async def close(self): MADE.append("pool closed")
async def _connect(): await asyncio.sleep(0); MADE.append("connect"); return Connection()
def connect(where, password=""): return Waiting(_connect())
async def _create_pool(): return Pool()
def create_pool(**options): return Waiting(_create_pool())
"""
AGENT = """
import asyncio
import awaited

class Own(awaited.Cursor):
    async def first(self): return await self.fetchone()

async def task(pool, n):
    connection = await pool.acquire()
    async with connection.cursor() as cursor:
        await cursor.execute(f"select {n}")
        print(n, [row[0] async for row in cursor])
    await pool.release(connection)

async def main():
    db = await awaited.connect("here", password="open-sesame-1")
    print(isinstance(db, awaited.Connection), db.closed)
    cursor = await db.cursor()
    await cursor.execute("select 9", (1,))
    async for row in cursor:
        if row[0] == 5: break
    print(cursor.rowcount, cursor.description[0], await cursor.fetchmany(), await cursor.fetchall())
    print(cursor.connection is db, await cursor.fetchone())
    print([[type(each).__name__, await each.fetchall()] async for each in cursor.sets()])
    async with db.cursor(Own) as own:
        await own.execute("select 2")
        print(isinstance(own, awaited.Cursor), await own.first(), await asyncio.gather(own.fetchone(), own.fetchone()))
    try:
        await cursor.execute("fail")
    except awaited.Error as error:
        print(type(error), error.args)
    await db.commit()
    await db.close()
    print(db.closed)
    async with awaited.create_pool(minsize=1) as pool:
        await asyncio.gather(*(asyncio.create_task(task(pool, n)) for n in range(3)))

def agent(): asyncio.run(main())
"""


@pytest.fixture
def awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A driver of the test's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "awaited.py").write_text(DRIVER)
    patches = Patches()
    dbapi.install(importlib.machinery, patches)
    try:
        yield importlib.import_module("awaited")
    finally:
        patches.undo()
        sys.modules.pop("awaited", None)


def test_dbapi_objects_of_a_driver_for_asyncio_replay(awaited: ModuleType, tmp_path: Path, capsys: Any) -> None:
    """Rows, objects, errors and pools come back; the driver itself is not asked; no password is recorded."""
    run_id = record_agent(load(AGENT, tmp_path))
    said, done = capsys.readouterr().out, list(awaited.MADE)
    awaited.MADE[:] = []
    replayed = replay_agent(run_id, load(AGENT, tmp_path))
    assert (replayed["verdict"], replayed["raised"], awaited.MADE) == ("identical", "", []), replayed
    assert capsys.readouterr().out == said
    assert "9 ('n', <class 'int'>, None) ((6, 'name 6'), (7, 'name 7')) ((8, 'name 8'),)" in said
    assert (done.count("closed"), done.count("pool closed"), done[-1]) == (1, 1, "left")
    for file in (tmp_path / ".spanreplay").rglob("*"):
        assert not file.is_file() or b"open-sesame" not in file.read_bytes()


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ('"select 9", (1,)', '"select 8", (1,)'),
        ('"select 9", (1,)', '"select 9", (2,)'),
        ("    await db.commit()\n", ""),
        ("db.commit()", "db.rollback()"),
        ("db.cursor(Own)", "db.cursor(awaited.Cursor)"),
        ("print(cursor.connection is db, await cursor", "print(cursor.connection is db, await (await db.cursor())"),
    ],
)
def test_dbapi_another_use_of_a_driver_for_asyncio_is_another_run(
    awaited: ModuleType, tmp_path: Path, then: str, now: str
) -> None:
    """Statements, arguments, ends of transactions and cursors are compared."""
    run_id = record_agent(load(AGENT, tmp_path))
    replayed = replay_agent(run_id, load(AGENT.replace(then, now), tmp_path))
    assert replayed["verdict"] == "diverged", json.dumps(replayed)


TWO = """
import asyncio
import awaited

async def pair(a, b):
    async with a.cursor() as one, b.cursor() as two:
        await one.execute("select 1")
        await two.execute("select 1")
    await a.commit()
    await b.rollback()

async def task(pool):
    async with pool.acquire() as a:
        b = await pool.acquire()
        await pair(a, b)
        await pool.release(b)

async def main():
    await pair(await awaited.connect("here"), await awaited.connect("here"))
    async with awaited.create_pool() as pool:
        await asyncio.gather(task(pool), task(pool))
        await task(pool)

def agent(): asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("then", "now"),
    [("    await a.commit()\n    await b.", "    await b.commit()\n    await a."), ("await two", "await one")],
    ids=["transaction", "statement"],
)
def test_dbapi_connections_for_asyncio_are_told_apart(awaited: ModuleType, tmp_path: Path, then: str, now: str) -> None:
    """The same statement, or end of a transaction, on another connection of the script or the pool is another run."""
    run_id = record_agent(load(TWO, tmp_path))
    assert replay_agent(run_id, load(TWO, tmp_path))["verdict"] == "identical"
    for program in (TWO.replace(then, now), TWO.replace("await pair(a, b)", "await pair(b, a)")):
        assert replay_agent(run_id, load(program, tmp_path))["verdict"] == "diverged"


def test_dbapi_outside_a_run_a_driver_for_asyncio_works_as_ever(
    awaited: ModuleType, tmp_path: Path, capsys: Any
) -> None:
    """Without a run, the same objects answer."""
    load(AGENT, tmp_path)()
    with_us = capsys.readouterr().out, list(awaited.MADE)
    del sys.modules["awaited"]
    plain = ModuleType("awaited")
    exec(compile(DRIVER, "awaited.py", "exec"), vars(plain))  # noqa: S102 -- the driver above, without patches
    sys.modules["awaited"] = plain
    load(AGENT, tmp_path)()
    assert (capsys.readouterr().out, vars(plain)["MADE"]) == with_us


def test_dbapi_a_driver_for_asyncio_is_known_by_its_shape(awaited: ModuleType) -> None:
    """Connections that are awaited make one; one with a seam of its own, or whose connections are not, is none."""
    import sqlite3

    import aiosqlite
    import psycopg

    assert awaited.connect.__self__.__wrapped__.__module__ == "awaited"
    assert not dbapi_async.is_driver(awaited, frozenset())  # patched already
    assert dbapi_async.is_driver(aiosqlite, frozenset())
    assert not dbapi_async.is_driver(aiosqlite, frozenset({"aiosqlite"}))
    assert not any(dbapi_async.is_driver(each, frozenset()) for each in (psycopg, sqlite3, sys))


def test_dbapi_earlier_recordings_have_what_is_beneath_a_driver_for_asyncio(
    awaited: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording made before such drivers were calls is replayed as it was made: the driver itself is asked."""
    monkeypatch.setattr(effects, "ASYNC_DRIVERS", "otherwise")
    asks = "import asyncio, sqlite3, awaited\nasync def main(): print(sqlite3.connect(':memory:') is None or {})\n"
    asks += "def agent(): asyncio.run(main())\n"
    run_id = record_agent(load(asks.format("False"), tmp_path))
    replayed = replay_agent(run_id, load(asks.format("(await awaited.connect('x')).closed"), tmp_path))
    assert (replayed["verdict"], awaited.MADE) == ("identical", ["connect"]), replayed["divergences"]
