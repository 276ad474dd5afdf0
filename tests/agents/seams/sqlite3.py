"""A database in memory."""

import sqlite3
from contextlib import closing

CALLS = 4
FAILING_CALLS = 2


def use():
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE notes (text TEXT)")
        db.execute("INSERT INTO notes VALUES ('milk')")
        return db.execute("SELECT text, hex(randomblob(8)) FROM notes").fetchall()


def fail():
    with closing(sqlite3.connect(":memory:")) as db:
        return db.execute("SELECT text FROM nowhere")
