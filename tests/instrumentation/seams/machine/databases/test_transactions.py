"""Transactions are calls: commits and rollbacks are compared, with every driver."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import postgres
from support.changed import load, record_agent, replay_agent

SQLITE = """
import sqlite3

def agent():
    db = sqlite3.connect("x.db")
    db.execute("create table t(a)")
    with db: db.execute("insert into t values (1)")
    db.execute("insert into t values (2)"); db.rollback()
    db.execute("insert into t values (3)"); db.commit()
    try:
        with db: db.execute("insert into t values (4)"); raise KeyError
    except KeyError:
        pass
    db.execute("savepoint s"); db.execute("insert into t values (5)"); db.execute("rollback to s")
    db.commit()
    print(db.in_transaction, db.total_changes, db.execute("select * from t").fetchall())
    db.isolation_level = None
    db.close()
    other = sqlite3.connect("y.db", isolation_level="IMMEDIATE")
    other.execute("create table t(a)")
    other.backup(sqlite3.connect("z.db"))
    try:
        with other:
            other.execute("insert into none values (1)")
    except sqlite3.OperationalError as error:
        print(error)
"""
SQLITE_CHANGES = {
    "with_dropped": ('with db: db.execute("insert into t values (1)")', 'db.execute("insert into t values (1)")'),
    "rollback_to_commit": ("db.rollback()", "db.commit()"),
    "commit_dropped": ("; db.commit()", ""),
    "kept_after_error": ("; raise KeyError", ""),
    "savepoint": ("rollback to s", "release s"),
    "mode": ("isolation_level = None", 'isolation_level = "EXCLUSIVE"'),
    "isolation": ('"IMMEDIATE"', '"DEFERRED"'),
    "isolation_dropped": (', isolation_level="IMMEDIATE"', ""),
    "backup": ('other.backup(sqlite3.connect("z.db"))', 'sqlite3.connect("z.db")'),
}


AIOSQLITE = """
import asyncio, aiosqlite

async def main():
    async with aiosqlite.connect("a.db") as db:
        await db.execute("create table t(a)")
        await db.execute("insert into t values (1)")
        await db.commit()
        await db.execute("insert into t values (2)")
        await db.rollback()

def agent():
    asyncio.run(main())
"""
AIOSQLITE_CHANGES = {
    "commit_dropped": ("        await db.commit()\n", ""),
    "rollback_to_commit": ("db.rollback()", "db.commit()"),
}
PSYCOPG = """
import asyncio, os, psycopg

def agent():
    with psycopg.connect(DSN) as connection:
        connection.execute("insert into orders values (1)")
        connection.commit()
        connection.execute("insert into orders values (2)")
        connection.rollback()
        with connection.transaction(force_rollback=True):
            connection.execute("insert into orders values (3)")
        with connection.transaction():
            try:
                with connection.transaction("inner"):
                    raise KeyError
            except KeyError:
                pass
            with connection.transaction() as inner:
                raise psycopg.Rollback(inner)
        print(connection.execute("select * from orders").fetchall())
    second = psycopg.connect(DSN)
    second.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    second.execute("insert into orders values (4)")
    second.rollback()
    second.autocommit = True
    print(second.autocommit, second.isolation_level)
    second.close()
    asyncio.run(main())

async def main():
    async with await psycopg.AsyncConnection.connect(DSN, autocommit=False) as connection:
        await connection.set_read_only(False)
        async with connection.transaction():
            await connection.execute("insert into orders values (5)")
        await connection.execute("insert into orders values (6)")
        await connection.rollback()
"""
PSYCOPG_CHANGES = {
    "commit_dropped": ("connection.commit()", "pass"),
    "rollback_to_commit": ("        connection.rollback()", "        connection.commit()"),
    "not_forced": ("force_rollback=True", "force_rollback=False"),
    "savepoint": ('"inner"', '"other"'),
    "kept": ("raise KeyError", "pass"),
    "isolation": ("SERIALIZABLE", "REPEATABLE_READ"),
    "autocommit": ("second.autocommit = True", "second.autocommit = False"),
    "async_mode": ("set_read_only(False)", "set_read_only(True)"),
    "async_block_dropped": ("async with connection.transaction():", "if True:"),
    "async_rollback": ("await connection.rollback()", "await connection.commit()"),
    "async_autocommit": ("autocommit=False", "autocommit=True"),
}
PSYCOPG2 = """
import psycopg2

def agent():
    connection = psycopg2.connect(DSN)
    cursor = connection.cursor()
    cursor.execute("insert into orders values (7)")
    connection.commit()
    with connection:
        cursor.execute("insert into orders values (8)")
    try:
        with connection:
            cursor.execute("insert into orders values (9)")
            raise KeyError
    except KeyError:
        pass
    connection.set_session(readonly=False, isolation_level="SERIALIZABLE")
    connection.rollback()
    connection.autocommit = True
    print(connection.autocommit)
    connection.close()
"""
PSYCOPG2_CHANGES = {
    "commit_dropped": ("    connection.commit()\n", ""),
    "with_dropped": ("with connection:\n        cursor", "if True:\n        cursor"),
    "kept": ("raise KeyError", "pass"),
    "mode": ("readonly=False", "readonly=True"),
    "isolation": ('"SERIALIZABLE"', '"READ COMMITTED"'),
    "rollback_dropped": ("    connection.rollback()\n", ""),
    "autocommit": ("connection.autocommit = True", "connection.autocommit = False"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_changes_are_seen(
    source: str, changes: dict[str, tuple[str, str]], folder: Path, between: Callable[[], object] = dict, **given: str
) -> None:
    """Assert that the same agent is identical and each change diverges. `between` is called before the replays."""
    run_id = record_agent(load(source, folder, **given))
    between()
    same = replay_agent(run_id, load(source, folder, **given))
    assert (same["verdict"], same["raised"]) == ("identical", ""), same
    for name, (old, new) in changes.items():
        assert old in source, name
        changed = replay_agent(run_id, load(source.replace(old, new), folder, **given))
        assert changed["verdict"] == "diverged", (name, changed)
        assert changed["divergences"], name


def test_n14_transactions_of_sqlite_are_compared(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Committing, rolling back, nesting or beginning otherwise is another run, even if the output is the same."""
    assert_changes_are_seen(SQLITE, SQLITE_CHANGES, folder)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == lines[2:4] == ["False 5 [(1,), (3,)]", "no such table: none"]


def test_n14_transactions_of_aiosqlite_are_compared(folder: Path) -> None:
    """The connections of aiosqlite are those of sqlite3, in another thread."""
    assert_changes_are_seen(AIOSQLITE, AIOSQLITE_CHANGES, folder)


def test_n14_transactions_of_postgres_are_compared(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Both drivers are tested; the server is not running in the replay, and the output is the same."""
    import psycopg

    for source, changes in ((PSYCOPG, PSYCOPG_CHANGES), (PSYCOPG2, PSYCOPG2_CHANGES)):
        with ExitStack() as stack:
            dsn = stack.enter_context(postgres.serve())
            with psycopg.connect(dsn) as connection:
                connection.execute("create table orders (id int)")
            assert_changes_are_seen(source, changes, folder, between=stack.close, DSN=dsn)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == lines[2:4]
    assert lines[0] == "[(1,)]"


TWO = """
import DRIVER

def agent():
    one, two = DRIVER.connect(WHERE), DRIVER.connect(WHERE)
    cursor = one.cursor()
    cursor.execute("select 1")
    one.commit()
    two.rollback()
    for each in (one, two): each.close()
"""
TWO_CHANGES = {
    "statement": ("one.cursor()", "two.cursor()"),
    "commit": ("one.commit()", "two.commit()"),
    "rollback": ("two.rollback()", "one.rollback()"),
}


TWO_ASYNC = """
import asyncio, asyncpg
from psycopg.conninfo import conninfo_to_dict

async def main():
    where = conninfo_to_dict(WHERE)
    where["database"] = where.pop("dbname")
    one, two = await asyncpg.connect(**where), await asyncpg.connect(**where)
    await one.fetch("select 1")
    async with two.transaction():
        await two.fetch("select 2")
    for each in (one, two): await each.close()

def agent():
    asyncio.run(main())
"""
TWO_ASYNC_CHANGES = {
    "statement": ("one.fetch", "two.fetch"),
    "transaction": ("two.transaction", "one.transaction"),
}


def test_n14_of_two_connections_it_is_told_which_one_commits(folder: Path) -> None:
    """What is asked of another connection of a script is another run, with each driver."""
    with ExitStack() as stack:
        dsn = stack.enter_context(postgres.serve())
        for driver, where in (("sqlite3", "x.db"), ("psycopg", dsn), ("psycopg2", dsn)):
            assert_changes_are_seen(TWO.replace("DRIVER", driver), TWO_CHANGES, folder, WHERE=where)
        assert_changes_are_seen(TWO_ASYNC, TWO_ASYNC_CHANGES, folder, WHERE=dsn)


UNRECORDED = {
    "copy": """
import psycopg
def agent():
    with psycopg.connect(DSN) as connection:
        with connection.cursor().copy("copy orders from stdin") as copy:
            copy.write_row((7,))
""",
    "stream": """
import psycopg
def agent():
    with psycopg.connect(DSN) as connection:
        list(connection.cursor().stream("select * from orders"))
""",
    "server_cursor": """
import psycopg
def agent():
    with psycopg.connect(DSN) as connection, connection.cursor("named") as cursor:
        cursor.execute("select * from orders")
""",
    "copy_expert": """
import io, psycopg2
def agent():
    connection = psycopg2.connect(DSN)
    connection.cursor().copy_expert("copy orders from stdin", io.StringIO("7"))
    connection.close()
""",
    "named_cursor": """
import psycopg2
def agent():
    connection = psycopg2.connect(DSN)
    connection.cursor("named").execute("select * from orders")
    connection.close()
""",
}


def test_n14_what_no_call_holds_makes_a_run_incomplete(folder: Path) -> None:
    """COPY, streams and server-side cursors are named as not recorded; no replay of them is called identical."""
    import psycopg

    with postgres.serve() as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute("create table orders (id int)")
        recorded = {name: record_agent(load(source, folder, DSN=dsn)) for name, source in UNRECORDED.items()}
    for name, run_id in recorded.items():
        verdict = replay_agent(run_id, load(UNRECORDED[name], folder, DSN=dsn))
        assert verdict["verdict"] == "incomplete", (name, verdict["divergences"], verdict["raised"])
        assert any("of PostgreSQL was used" in each for each in verdict["reasons"]), (name, verdict["reasons"])
