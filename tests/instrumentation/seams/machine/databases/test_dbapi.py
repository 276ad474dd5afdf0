"""A module with the shape of PEP 249 is a driver, whatever its name: what the agent does with its objects are calls."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine import effects
from spanreplay.seams.machine.databases import dbapi
from spanreplay.seams.machine.databases.dbapi_family import Behind
from spanreplay.seams.machine.databases.dbapi_objects import StandIn
from spanreplay.seams.machine.databases.dbapi_setup import Server, SetUp
from support.changed import load, record_agent, replay_agent

DRIVER = """
apilevel, paramstyle, threadsafety = "2.0", "qmark", 1
MADE = []
class Error(Exception): pass
class OperationalError(Error): pass
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
    def __repr__(self): return f"Point({self.x}, {self.y})"
class Lob:
    def __init__(self, text): self._text, self._closed = text, lambda: False
    def read(self): return self._text
    def close(self): pass
class Named:
    def __init__(self, cells): self._cells, self._by = cells, lambda name: ("n", "name").index(name)
    def __len__(self): return len(self._cells)
    def __getitem__(self, key): return self._cells[self._by(key) if isinstance(key, str) else key]
    def keys(self): return ["n", "name"]
TEXT = object()
class Cursor:
    arraysize, rowcount, description = 3, -1, None
    def __init__(self, connection): self.connection, self._rows = connection, []
    def execute(self, sql, parameters=()):
        MADE.append(sql)
        if sql == "fail": self.rowcount = -7; raise OperationalError("no", 17)
        self._rows = [(n, f"name {n}") for n in range(int(sql.split()[-1]))]
        self.description = [("n", int, None), ("name", TEXT, None)]
        self.rowcount = len(self._rows)
        return self
    def fetchone(self): return self._rows.pop(0) if self._rows else None
    def fetchmany(self, size=None):
        size = size or self.arraysize
        found, self._rows = self._rows[:size], self._rows[size:]
        return found
    def fetchall(self): found, self._rows = self._rows, []; return found
    def __iter__(self): return iter(self.fetchone, None)
    def close(self): pass
    def sets(self):
        for size in (1, 2): yield Cursor(self.connection).execute(f"set {size}")
    def lob(self): return [Lob("large"), Point(1, 2)]
    def named(self): return [Named(row) for row in self._rows]
    def odd(self): return sys.stdout
class Connection:
    def __init__(self): self.autocommit, self.handlers, self._open = False, {int: str, str: len}, lambda: True
    def cursor(self): return Cursor(self)
    def commit(self): MADE.append("commit")
    def change_user(self, user, password): MADE.append("change_user")
    def ping(self): return id(self) > 0
    def close(self): self.autocommit = None
    def __enter__(self): return self
    def __exit__(self, kind, value, trace): MADE.append("exit")
    def __repr__(self): return "<a connection>"
def connect(where, password=""): MADE.append("connect"); return Connection()
import sys
"""
AGENT = """
import peculiar

def agent():
    db = peculiar.connect("here", password="open-sesame-1")
    print(isinstance(db, peculiar.Connection), isinstance(db, peculiar.Cursor), db, db.ping(), db.autocommit)
    db.autocommit = True
    db.change_user("ann", "open-sesame-2")
    cursor = db.cursor()
    print(cursor.connection is db, cursor.execute("select 5") is cursor, cursor.rowcount, cursor.description[0])
    print(cursor.description[1][1] is peculiar.TEXT, cursor.fetchone(), cursor.fetchmany(), cursor.fetchall())
    cursor.execute("select 700")
    print(sum(row[0] for row in cursor), cursor.fetchone())
    cursor.execute("select 40")
    print([cursor.fetchone()[0] for _ in range(9)], len(cursor.fetchmany(5)), len(cursor.fetchall()), cursor.fetchone())
    try:
        cursor.execute("fail")
    except peculiar.Error as error:
        print(type(error), error.args, cursor.rowcount)
    print([[len(rows.fetchall()), type(rows).__name__] for rows in cursor.sets()])
    lob, point = cursor.lob()
    for row in cursor.execute("select 2").named():
        print(isinstance(row, peculiar.Named), row["name"], row[0], dict(row), len(row))
    print(lob.read(), isinstance(lob, peculiar.Lob), point)
    print(db.handlers[int]("7") == "7", len(db.handlers), db.autocommit)
    with db: cursor.execute("select 1")
    db.commit()
    cursor.close(), db.close()
    print(db.autocommit)
"""


@pytest.fixture
def peculiar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A driver of the test's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peculiar.py").write_text(DRIVER)
    patches = Patches()
    dbapi.install(importlib.machinery, patches)
    try:
        yield importlib.import_module("peculiar")
    finally:
        patches.undo()
        sys.modules.pop("peculiar", None)


def test_dbapi_objects_of_a_driver_replay(peculiar: ModuleType, tmp_path: Path, capsys: Any) -> None:
    """Rows, objects, errors and attributes come back; the driver itself is not asked; no password is recorded."""
    run_id = record_agent(load(AGENT, tmp_path))
    said, peculiar.MADE[:] = capsys.readouterr().out, []
    replayed = replay_agent(run_id, load(AGENT, tmp_path))
    assert (replayed["verdict"], replayed["raised"], peculiar.MADE) == ("identical", "", []), replayed
    assert capsys.readouterr().out == said
    assert said.splitlines()[0] == "True False <a connection> True False"
    for file in (tmp_path / ".spanreplay").rglob("*"):
        assert not file.is_file() or b"open-sesame" not in file.read_bytes()


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("select 5", "select 6"),
        ("db.autocommit = True", "db.autocommit = 1"),
        ('"ann"', '"bob"'),
        ("db.commit()", "pass"),
        ("with db:", "if db:"),
        ("fetchmany(5)", "fetchmany(6)"),
    ],
)
def test_dbapi_another_use_of_a_driver_is_another_run(
    peculiar: ModuleType, tmp_path: Path, then: str, now: str
) -> None:
    """Statements, arguments, attributes that are set, commits and blocks are compared."""
    run_id = record_agent(load(AGENT, tmp_path))
    replayed = replay_agent(run_id, load(AGENT.replace(then, now), tmp_path))
    assert replayed["verdict"] == "diverged", json.dumps(replayed)


def test_dbapi_what_is_not_recorded_makes_the_run_incomplete(peculiar: ModuleType, tmp_path: Path) -> None:
    """A value that is neither data nor the driver's is named, and the replay ends there."""
    agent = 'import peculiar\ndef agent(): print(peculiar.connect("x").cursor().odd())\n'
    replayed = replay_agent(record_agent(load(agent, tmp_path)), load(agent, tmp_path))
    assert replayed["verdict"] == "incomplete"
    assert "peculiar.odd gave a value of" in json.dumps(replayed["reasons"])


def test_dbapi_a_class_that_connects_is_patched_under_every_name(tmp_path: Path, peculiar: ModuleType) -> None:
    """Its instances are stand-ins, those of a class derived from it are not, and it works once it is unpatched."""
    patches = Patches()
    driver = ModuleType("peculiar_class")

    class Connection:
        def __init__(self, where: str) -> None:
            self.where = where

        def cursor(self) -> None:
            """Nothing."""

    vars(driver).update(apilevel="2.0", paramstyle="qmark", threadsafety=1, connect=Connection, Connection=Connection)
    for _ in range(2):
        assert dbapi.is_driver(driver)
        dbapi.patch(driver, patches)
        made = Connection("here")
        assert (isinstance(made, Connection), issubclass(type(made), StandIn), made.where) == (True, True, "here")
        assert type(type("Own", (Connection,), {})("there")).__name__ == "Own"
        patches.undo()
        assert type(Connection("here")) is Connection


def test_dbapi_a_module_is_known_by_its_shape(peculiar: ModuleType) -> None:
    """Only PEP 249's shape counts; covered libraries keep their seam; a module's specification stays ordinary."""
    import sqlite3

    assert type(peculiar.__spec__) is ModuleSpec
    assert peculiar.connect.__self__.__wrapped__.__module__ == "peculiar"
    assert not dbapi.is_driver(peculiar)  # patched already
    assert not dbapi.is_driver(sqlite3)
    assert not dbapi.is_driver(sys)
    other = ModuleType("other")
    vars(other).update(apilevel="2.0", paramstyle="qmark", threadsafety=1, connect=sqlite3.connect)
    assert not dbapi.is_driver(other)


def test_dbapi_outside_a_run_a_driver_works_as_ever(peculiar: ModuleType) -> None:
    """Without a run, the same objects answer."""
    with peculiar.connect("here") as db:
        cursor = db.cursor()
        assert [row[0] for row in cursor.execute("select 20")] == list(range(20))
        assert (repr(db), cursor.rowcount, cursor.connection is db) == ("<a connection>", 20, True)
    assert peculiar.MADE == ["connect", "select 20", "exit"]


def test_dbapi_rows_read_ahead_end_as_without_us(peculiar: ModuleType, tmp_path: Path, capsys: Any) -> None:
    """A program that has read the last row one by one gets no more rows, however it asks."""
    agent = """
import peculiar

def agent():
    for ask in "fetchall", "fetchmany", "fetchone":
        cursor = peculiar.connect("here").cursor()
        cursor.execute("select 5")
        print([cursor.fetchone()[0] for _ in range(5)], getattr(cursor, ask)(), cursor.fetchone())
"""
    run_id = record_agent(load(agent, tmp_path))
    said = capsys.readouterr().out
    assert said == "".join(f"[0, 1, 2, 3, 4] {rows} None\n" for rows in ("[]", "[]", "None"))
    assert replay_agent(run_id, load(agent, tmp_path))["verdict"] == "identical"
    assert capsys.readouterr().out == said


def test_dbapi_earlier_recordings_have_what_is_beneath(
    peculiar: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording made before drivers were calls is replayed as it was made: the driver itself is asked."""
    monkeypatch.setattr(effects, "DRIVERS", "otherwise")
    asks = "import sqlite3, peculiar\ndef agent(): print(sqlite3.connect(':memory:') is None or {})\n"
    run_id = record_agent(load(asks.format("True"), tmp_path))
    replayed = replay_agent(run_id, load(asks.format('peculiar.connect("x").ping()'), tmp_path))
    assert (replayed["verdict"], peculiar.MADE) == ("identical", ["connect"]), replayed["divergences"]


TWO: Final = """
import peculiar

def agent():
    a, b = peculiar.connect("here"), peculiar.connect("here")
    first, second = a.cursor().execute("select 2"), a.cursor().execute("select 2")
    print(first.fetchone(), second.fetchmany(1), first.fetchall(), list(second))
    a.commit()
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("first.fetchone(), second.fetchmany(1)", "second.fetchone(), first.fetchmany(1)"),
        ("first.fetchall(), list(second)", "second.fetchall(), list(first)"),
        ("    a.commit()", "    b.commit()"),
        ('second = a.cursor().execute("select 2")', 'second = b.cursor().execute("select 2")'),
    ],
    ids=["one", "all", "commit", "statement"],
)
def test_n14_which_cursor_and_connection_a_driver_is_asked_by_is_compared(
    before: str, after: str, peculiar: ModuleType, tmp_path: Path
) -> None:
    """The same requests made of another cursor or connection are other requests."""
    run_id = record_agent(load(TWO, tmp_path))
    assert replay_agent(run_id, load(TWO, tmp_path))["verdict"] == "identical"
    changed = replay_agent(run_id, load(TWO.replace(before, after), tmp_path))
    assert changed["verdict"] == "diverged"
    assert changed["divergences"][0]["boundary"].startswith("tool:peculiar."), changed["divergences"]


def test_dbapi_recordings_that_tell_no_cursors_apart_replay(
    peculiar: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording made before requests said of which cursor they were made is replayed as it was made."""
    with monkeypatch.context() as patched:
        patched.setattr(effects, "TOLD_APART", "otherwise")
        patched.setattr(Behind, "tell_apart", lambda self, label: None)
        run_id = record_agent(load(TWO, tmp_path))
    assert replay_agent(run_id, load(TWO, tmp_path))["verdict"] == "identical"


def test_p3_a_kept_connection_is_told_with_what_a_library_asked_another_one() -> None:
    """A library asks one connection to a server more than the others; again and again it asks the same."""
    known = Server()
    first, second = (SetUp("peculiar", {}, "peculiar:Connection", frozenset(), known=known) for _ in range(2))
    for setup, name in ((second, "version"), (second, "ping"), (second, "ping"), (first, "ping"), (second, "ping")):
        setup.keep(FunctionCall("tool", f"peculiar.setup.{name}", "read", {}), value=name)
    told = [[each["value"] for each in setup.describe()["setup"]] for setup in (first, second)]
    assert told == [["ping", "version", "ping"], ["version", "ping"]]
