"""Everything that an agent sends through asyncpg is compared: statements, arguments, transactions, cursors, copies."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from support import postgres
from support.changed import load, record_agent, replay_agent

AGENT = """
import asyncio, asyncpg

async def main():
    connection = await asyncpg.connect(URL, server_settings={"application_name": "agent"})
    await connection.execute("INSERT INTO orders VALUES (1)")
    await connection.executemany("INSERT INTO orders VALUES ($1)", [(2,), (3,)])
    await connection.fetchval("SELECT 1, 2", column=1)
    async with connection.transaction():
        async with connection.transaction():
            await connection.fetchrow("SELECT $1::int", 4)
        async for row in connection.cursor("SELECT $1::int", 5):
            pass
        cursor = await connection.cursor("SELECT id FROM orders")
        await cursor.forward(1)
        await cursor.fetch(2)
    transaction = connection.transaction(isolation="read_committed")
    await transaction.start()
    await transaction.commit()
    statement = await connection.prepare("SELECT $1::int + 1")
    await statement.fetch(6)
    await statement.executemany([(7,), (8,)])
    await connection.copy_records_to_table("orders", records=[(9,)])
    await connection.set_type_codec("json", encoder=str, decoder=str, schema="pg_catalog")
    await connection.reset()
    await connection.close()

def agent():
    asyncio.run(main())
"""
CHANGES = {
    "setting": ('"agent"}', '"other"}'),
    "statement": ("VALUES (1)", "VALUES (11)"),
    "many": ("(2,), (3,)", "(2,), (4,)"),
    "column": ("column=1", "column=0"),
    "argument": ('int", 4', 'int", 44'),
    "block_dropped": (
        "        async with connection.transaction():\n            await",
        "        if True:\n            await",
    ),
    "cursor_argument": ('int", 5', 'int", 55'),
    "cursor_statement": ("SELECT id FROM orders", "SELECT id FROM  orders"),
    "forward": ("forward(1)", "forward(2)"),
    "cursor_fetch": ("cursor.fetch(2)", "cursor.fetch(3)"),
    "isolation": ('"read_committed"', '"serializable"'),
    "commit_to_rollback": ("transaction.commit()", "transaction.rollback()"),
    "prepared_statement": ("int + 1", "int + 2"),
    "prepared_argument": ("statement.fetch(6)", "statement.fetch(66)"),
    "prepared_many": ("(7,), (8,)", "(7,), (9,)"),
    "copied": ("records=[(9,)]", "records=[(99,)]"),
    "codec": ('"json", ', '"jsonb", '),
    "reset_dropped": ("    await connection.reset()\n", ""),
}


def test_n14_everything_that_asyncpg_sends_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is not running in the replays; the same agent is identical, and each change is another run."""
    import psycopg

    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        dsn = stack.enter_context(postgres.serve())
        folder = dict(part.split("=") for part in dsn.split())["host"]
        given = {"URL": f"postgresql://agent@/postgres?host={folder}"}
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE orders (id int)")
        run_id = record_agent(load(AGENT, tmp_path, **given))
    same = replay_agent(run_id, load(AGENT, tmp_path, **given))
    assert (same["verdict"], same["raised"]) == ("identical", ""), same
    for name, (old, new) in CHANGES.items():
        assert old in AGENT, name
        changed = replay_agent(run_id, load(AGENT.replace(old, new), tmp_path, **given))
        assert changed["verdict"] == "diverged", (name, changed["reasons"], changed["divergences"])
        assert changed["divergences"], name
