"""The agent's databases replay without a server or a file: PostgreSQL through psycopg 2 and 3, aiosqlite."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import postgres
from support.replaying import Workplace, assert_same


class Server:
    """A running PostgreSQL that can be stopped."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.dsn = self._stack.enter_context(postgres.serve())

    def stop(self) -> None:
        """Stop it and remove its files."""
        self._stack.close()

    def count(self) -> int:
        """The number of rows in the table `orders`."""
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("SELECT count(*) FROM orders").fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def server() -> Iterator[Server]:
    """A PostgreSQL server with a table of three orders."""
    import psycopg

    made = Server()
    try:
        with psycopg.connect(made.dsn) as connection:
            connection.execute(
                "CREATE TABLE orders (id serial PRIMARY KEY, owner text, amount numeric, at timestamptz)"
            )
            connection.execute(
                "INSERT INTO orders (owner, amount, at) "
                "SELECT 'owner ' || n, n * 1.5, now() FROM generate_series(1, 3) n"
            )
        yield made
    finally:
        made.stop()


VERSION_3 = """
import os, sys, uuid
import psycopg
from psycopg import sql
from psycopg.rows import class_row, dict_row, namedtuple_row

dsn = os.environ["DSN"]
with psycopg.connect(dsn) as connection:
    print(connection.execute("SELECT count(*) FROM orders").fetchone())
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SELECT id, owner, amount, at FROM orders WHERE id < %s ORDER BY id", (3,))
        print([c.name for c in cursor.description], cursor.rowcount, cursor.statusmessage)
        for row in cursor:
            print(row)
    cursor = connection.cursor()
    print(cursor.execute("DELETE FROM orders WHERE id = 2").rowcount, cursor.statusmessage)
    cursor.executemany("INSERT INTO orders (owner, amount) VALUES (%s, %s)", [("x", 1), ("y", 2)])
    print(cursor.rowcount)
    composed = sql.SQL("SELECT {} FROM {}").format(sql.Identifier("owner"), sql.Identifier("orders"))
    print(cursor.execute(composed).fetchmany(2))
    print(cursor.fetchone(), len(cursor.fetchall()), cursor.fetchone())
    print(cursor.execute("SELECT now(), random(), gen_random_uuid(), ARRAY[1,2], '{\\"a\\": 1}'::jsonb").fetchone())
    try:
        with connection.transaction():
            connection.execute("INSERT INTO orders (id) VALUES (1)")
    except psycopg.errors.UniqueViolation as error:
        print(type(error).__name__, error.sqlstate, str(error).splitlines()[0])
    nt = connection.cursor(row_factory=namedtuple_row).execute("SELECT id, owner FROM orders ORDER BY id").fetchone()
    print(nt.owner, isinstance(connection, psycopg.Connection), isinstance(cursor, psycopg.Cursor))
print(connection.closed)
"""
ASYNC_3 = """
import asyncio, os
import psycopg

async def one(n):
    async with await psycopg.AsyncConnection.connect(os.environ["DSN"], autocommit=True) as connection:
        async with connection.cursor() as cursor:
            await cursor.execute("SELECT %s, pg_backend_pid(), random()", (n,))
            print(n, await cursor.fetchone())
            await cursor.execute("DELETE FROM orders WHERE id = %s", (n,))
            async for row in await connection.execute("SELECT id FROM orders ORDER BY id"):
                pass
            return cursor.rowcount

async def main():
    print(await asyncio.gather(*map(one, range(1, 4))))

asyncio.run(main())
"""
VERSION_2 = """
import os
import psycopg2
import psycopg2.extras
from psycopg2 import sql

connection = psycopg2.connect(os.environ["DSN"])
with connection, connection.cursor() as cursor:
    cursor.execute("SELECT id, owner, amount, at FROM orders WHERE id < %s ORDER BY id", (3,))
    print([c.name for c in cursor.description], cursor.rowcount)
    print(cursor.fetchone(), cursor.fetchall(), cursor.fetchone())
    cursor.execute("DELETE FROM orders WHERE id = 2")
    print(cursor.rowcount, cursor.statusmessage)
    psycopg2.extras.execute_values(cursor, "INSERT INTO orders (owner, amount) VALUES %s", [("x", 1), ("y", 2)])
    print(cursor.rowcount)
    for factory in (psycopg2.extras.DictCursor, psycopg2.extras.RealDictCursor, psycopg2.extras.NamedTupleCursor):
        with connection.cursor(cursor_factory=factory) as other:
            other.execute(sql.SQL("SELECT {}, now(), random() FROM orders ORDER BY id").format(sql.Identifier("owner")))
            print(type(other).__name__, other.fetchone(), len(list(other)))
try:
    with connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (id) VALUES (1)")
except psycopg2.errors.UniqueViolation as error:
    print(type(error).__name__, error.pgcode, str(error).splitlines()[0])
connection.close()
print(connection.closed, isinstance(connection, psycopg2.extensions.connection))
"""
ORM = """
import os
import sqlalchemy
dsn = dict(part.split("=") for part in os.environ["DSN"].split())
url = f"postgresql+{os.environ['DRIVER']}://agent@/postgres?host={dsn['host']}"
engine = sqlalchemy.create_engine(url)
with engine.begin() as connection:
    connection.execute(sqlalchemy.text("DELETE FROM orders WHERE id = 1"))
    query = sqlalchemy.text("SELECT id, owner, random() AS r FROM orders ORDER BY id")
    print(connection.execute(query).mappings().all())
"""


@pytest.mark.parametrize("source", [VERSION_3, ASYNC_3, VERSION_2], ids=["psycopg", "psycopg-async", "psycopg2"])
def test_s50_postgresql_replays_without_its_server(source: str, workplace: Workplace, server: Server) -> None:
    """Rows, counts, errors and row factories come back; a replay changes no row, and needs no server at all."""
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, DSN=server.dsn)
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    deletes = [c for c in recording.calls if "DELETE" in c.request]
    assert deletes
    assert {(c.kind, c.effect) for c in deletes} == {("tool", "irreversible")}
    before = server.count()
    assert_same(workplace.replay(agent, DSN=server.dsn), recorded.stdout)
    assert server.count() == before
    server.stop()
    assert_same(workplace.replay(agent, DSN=server.dsn), recorded.stdout)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_s50_sqlalchemy_on_postgresql_replays_without_its_server(
    driver: str, workplace: Workplace, server: Server
) -> None:
    """The queries that an engine itself sends to the server are recorded with the agent's."""
    agent = workplace.write("agent.py", ORM)
    recorded = workplace.record(agent, DSN=server.dsn, DRIVER=driver)
    assert workplace.recording().completeness().is_complete, workplace.recording().completeness().reasons
    server.stop()
    assert_same(workplace.replay(agent, DSN=server.dsn, DRIVER=driver), recorded.stdout)


PIPELINE = """
import os
import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Json, Jsonb
from psycopg.types.range import Range

with psycopg.connect(os.environ["DSN"], autocommit=True) as connection:
    connection.execute("DROP TABLE IF EXISTS states")
    connection.execute("CREATE TABLE states (id int PRIMARY KEY, state jsonb, at int4range)")
    with connection.pipeline() as pipe, connection.cursor(binary=True, row_factory=dict_row) as cursor:
        states = [(n, Jsonb({"n": n, "words": [os.environ["WORD"]]}), Range(1, n)) for n in (2, 3)]
        cursor.executemany("INSERT INTO states VALUES (%s, %s, %s)", states)
        given = Json({"n": None}, dumps=lambda value: '{"n": 4}')
        cursor.execute("INSERT INTO states VALUES (%(id)s, %(state)s)", {"id": 4, "state": given})
        first = connection.execute("SELECT state, random()::numeric(20, 18) FROM states WHERE id = %s", (2,))
        second = connection.execute("DELETE FROM states WHERE id = 3")
        pipe.sync()
        print(cursor.rowcount, second.rowcount, second.statusmessage)
        print(first.fetchall(), [column.name for column in first.description])
        for row in connection.execute("SELECT id, random()::numeric(20, 18) FROM states ORDER BY id"):
            print(row)
        last = connection.execute("SELECT count(*) FROM states")
    print(last.rowcount, last.fetchone(), last.fetchone())
    try:
        with connection.pipeline():
            connection.execute("INSERT INTO states (id) VALUES (2)")
    except psycopg.errors.UniqueViolation as error:
        print(type(error).__name__, error.sqlstate)
    with connection.pipeline():
        pass
    print(connection.execute("SELECT count(*) FROM states").fetchone())
"""
PIPELINE_ASYNC = """
import asyncio, os
import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

async def main(connection):
    await connection.execute("DROP TABLE IF EXISTS states")
    await connection.execute("CREATE TABLE states (id int PRIMARY KEY, state jsonb)")
    async with connection.pipeline() as pipe, connection.cursor(binary=True, row_factory=dict_row) as cursor:
        states = [(n, Jsonb({"n": n, "words": [os.environ["WORD"]]})) for n in (2, 3)]
        await cursor.executemany("INSERT INTO states VALUES (%s, %s)", states)
        first = await connection.execute("SELECT state, random()::numeric(20, 18) FROM states WHERE id = %s", (2,))
        second = await connection.execute("DELETE FROM states WHERE id = 3")
        await pipe.sync()
        print(cursor.rowcount, second.rowcount, second.statusmessage)
        print(await first.fetchall(), [column.name for column in first.description])
        async for row in await connection.execute("SELECT id, random()::numeric(20, 18) FROM states ORDER BY id"):
            print(row)
        last = await connection.execute("SELECT count(*) FROM states")
    print(last.rowcount, await last.fetchmany(2))
    try:
        async with connection.pipeline():
            await connection.execute("INSERT INTO states (id) VALUES (2)")
    except psycopg.errors.UniqueViolation as error:
        print(type(error).__name__, error.sqlstate)

async def connect():
    async with await psycopg.AsyncConnection.connect(os.environ["DSN"], autocommit=True) as connection:
        await main(connection)

asyncio.run(connect())
"""


@pytest.mark.parametrize("source", [PIPELINE, PIPELINE_ASYNC], ids=["sync", "async"])
def test_s50_statements_in_a_pipeline_replay_without_their_server(
    source: str, workplace: Workplace, server: Server
) -> None:
    """Results that arrive later and errors of a pipeline's end come back; JSON that is sent is compared."""
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, DSN=server.dsn, WORD="apple")
    plain = workplace.run_plain(agent, DSN=server.dsn, WORD="apple")
    assert re.sub(r"0\.\d+", "", recorded.stdout) == re.sub(r"0\.\d+", "", plain)
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    server.stop()
    assert_same(workplace.replay(agent, DSN=server.dsn, WORD="apple"), recorded.stdout)
    verdict = workplace.replay(agent, DSN=server.dsn, WORD="pear").verdict
    assert verdict["verdict"] == "diverged"
    assert verdict["divergences"][0]["diff"][0]["path"] == "arguments.parameters[0].items[1].obj.words[0]"


AIOSQLITE = """
import asyncio, sys
import aiosqlite
import spanreplay

@spanreplay.boundary("tool", name="purge", effect="irreversible")
async def purge(n):
    await opened[0].execute("DELETE FROM ledger WHERE id = ?", (n,))
    return n

opened = []

async def main():
    async with aiosqlite.connect("ledger.db") as db:
        opened.append(db)
        async with db.execute("SELECT id, random() FROM ledger ORDER BY id") as cursor:
            print(await cursor.fetchone(), len(await cursor.fetchall()))
        print(await purge(1))
        changed = await db.execute("DELETE FROM ledger WHERE id = 2")
        print(changed.rowcount)
        await db.commit()

asyncio.run(main())
"""


def test_s50_aiosqlite_replays_and_leaves_the_database_unchanged(workplace: Workplace) -> None:
    """Statements in aiosqlite's thread are calls of the task; statements inside a tool belong to the tool."""
    path = workplace.path / "ledger.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE ledger (id INTEGER PRIMARY KEY)")
        db.executemany("INSERT INTO ledger VALUES (?)", [(n,) for n in range(10)])
    db.close()
    agent = workplace.write("agent.py", AIOSQLITE)
    recorded = workplace.record(agent)
    calls = [(c.name, c.effect) for c in workplace.recording().calls if "DELETE" in c.request or c.name == "purge"]
    assert calls == [("purge", "irreversible"), ("sqlite3.execute", "irreversible")]
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    assert_same(workplace.replay(agent), recorded.stdout)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


MANY = "SELECT * FROM generate_series(1, 10001)"
MANY_ROWS = {
    "sqlite": """
import sqlite3
rows = sqlite3.connect("many.db").execute(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001) SELECT i FROM n").fetchall()
print(len(rows))
""",
    "psycopg": f"""
import os, psycopg
print(len(psycopg.connect(os.environ["DSN"]).execute("{MANY}").fetchall()))
""",
    "psycopg2": f"""
import os, psycopg2
cursor = psycopg2.connect(os.environ["DSN"]).cursor()
cursor.execute("{MANY}")
print(len(cursor.fetchall()))
""",
    "asyncpg": f"""
import asyncio, os, asyncpg

async def main():
    given = dict(part.split("=") for part in os.environ["DSN"].split())
    connection = await asyncpg.connect(host=given["host"], user=given["user"], database=given["dbname"])
    print(len(await connection.fetch("{MANY}")))
    await connection.close()

asyncio.run(main())
""",
}


@pytest.mark.parametrize("driver", MANY_ROWS)
def test_s50_more_rows_than_are_recorded_make_a_run_incomplete(
    driver: str, workplace: Workplace, server: Server
) -> None:
    """The program gets all rows, and the run says that it lacks some."""
    agent = workplace.write("agent.py", MANY_ROWS[driver])
    assert workplace.record(agent, DSN=server.dsn).stdout == "10001\n"
    assert "rows" in " ".join(workplace.recording().completeness().reasons)


STUBBED = """
import sqlite3, spanreplay

@spanreplay.boundary("tool", name="delete_account", effect="irreversible")
def delete_account(n):
    with sqlite3.connect("ledger.db") as db:
        return db.execute("DELETE FROM ledger WHERE id = ?", (n,)).rowcount

print(delete_account(3))
"""


CALLED_BY_SQLITE = """
import sqlite3, time

asked = []
database = sqlite3.connect("orders.db")
database.set_trace_callback(lambda statement: print("ran", statement, time.time() > 0))
database.execute("CREATE TABLE orders (id, owner)")
database.executemany("INSERT INTO orders VALUES (?, ?)", [(1, "ann"), (2, "bob")])
database.commit()
end = time.perf_counter() + 3600
database.set_progress_handler(lambda: int(time.perf_counter() > end), 1)
database.set_authorizer(lambda action, *given: asked.append(given[0]) or sqlite3.SQLITE_OK)
for row in database.execute("SELECT owner FROM orders WHERE id = ?", (2,)):
    print(row, "of the agent's statement, or of none:", len(asked) != 1)
database.set_trace_callback(None)
database.set_progress_handler(None, 1)
print(time.perf_counter() < end, database.execute("SELECT count(*) FROM orders").fetchone())
"""


def test_s50_n1_functions_that_sqlite_calls_are_asked_about_the_agents_statements_alone(workplace: Workplace) -> None:
    """A trace callback sees the recorded statements; a progress handler's clock reads aren't recorded as the run's."""
    agent = workplace.write("agent.py", CALLED_BY_SQLITE)
    recorded = workplace.record(agent)
    (workplace.path / "orders.db").unlink()
    assert recorded.stdout.count("ran ") == 6, recorded.stdout
    assert "ran SELECT owner FROM orders WHERE id = 2" in recorded.stdout
    assert_same(workplace.replay(agent), recorded.stdout)


def test_s50_a_stubbed_tool_leaves_its_database_byte_for_byte(workplace: Workplace, tmp_path: Path) -> None:
    """The tool that deletes is stubbed; the database file keeps its hash, and no journal appears beside it."""
    path = workplace.path / "ledger.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE ledger (id INTEGER PRIMARY KEY)")
        db.executemany("INSERT INTO ledger VALUES (?)", [(n,) for n in range(10)])
    db.close()
    agent = workplace.write("agent.py", STUBBED)
    recorded = workplace.record(agent)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    names = sorted(p.name for p in workplace.path.iterdir())
    assert_same(workplace.replay(agent), recorded.stdout)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert sorted(p.name for p in workplace.path.iterdir()) in (names, sorted([*names, "verdict.json"]))


# ── Databases of libraries ──────────────────────────────────────────────────────────────────────────
LIBRARY = """
import sqlite3


class Store:
    def __init__(self, path, uri=False):
        self._connection = sqlite3.connect(path, uri=uri)
        self._connection.execute("CREATE TABLE IF NOT EXISTS facts (text)")

    def add(self, text):
        with self._connection:
            self._connection.execute("INSERT INTO facts VALUES (?)", (text,))

    def count(self):
        return self._connection.execute("SELECT count(*) FROM facts").fetchone()[0]
"""
WITH_LIBRARY = """
import os, sys
import spanreplay
from factstore import Store

@spanreplay.boundary("tool", name="ask")
def ask(question):
    return question.upper()

path = os.environ["STORE"]
store = Store(path, uri=path.startswith("file:"))
store.add(ask("who"))
store.add(ask("what"))
print("done")
"""
WITH_CACHE = """
import os
import diskcache
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(question):
    return question.upper()

cache = diskcache.Cache(os.environ["STORE"])
answer = cache.memoize()(lambda question: ask(question))
print(answer("who"), answer("who"), len(cache))
cache["bytes"] = bytes(70_000)
print(len(cache["bytes"]), cache.get("nothing"))
"""


def _count(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        return int(connection.execute("SELECT count(*) FROM facts").fetchone()[0])


@pytest.mark.parametrize("form", ["{}", "file:{}?mode=rwc"], ids=["path", "uri"])
def test_n14_database_of_a_library_stays_as_it_is(form: str, tmp_path: Path) -> None:
    """A library with its own database works on a copy in a replay: the real one is not changed."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "factstore.py").write_text(LIBRARY, encoding="utf-8")
    database = tmp_path / "facts.db"
    workplace = Workplace(tmp_path, {"PYTHONPATH": str(library), "STORE": form.format(database)})
    agent = workplace.write("agent.py", WITH_LIBRARY)
    workplace.record(agent)
    assert _count(database) == 2
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert _count(database) == 2
    database.unlink()
    assert workplace.replay(agent).verdict["verdict"] == "identical"
    assert not database.exists()


def test_s50_cache_on_disk_replays_on_another_machine(tmp_path: Path) -> None:
    """Values that diskcache keeps in SQLite and files are served, with its clock: the folder need not exist."""
    folder = tmp_path / "cache"
    code = tmp_path / "code"
    code.mkdir()
    workplace = Workplace(tmp_path, {"STORE": str(folder)})
    agent = workplace.write("code/agent.py", WITH_CACHE)
    first = workplace.record(agent)
    assert first.stdout.splitlines()[0] == "WHO WHO 1"
    second = workplace.record(agent)
    runs = [recording.run_id for recording in workplace.recordings()]
    folder.rename(tmp_path / "gone")
    for run, recorded in zip(runs, (first, second), strict=True):
        replayed = workplace.replay(agent, source=run)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.stdout == recorded.stdout
    assert not folder.exists()
