"""Drivers of the Database API that no seam names replay without a server: pymysql with MariaDB, pg8000."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import mariadb, postgres
from support.mariadb import MariaDB
from support.replaying import Workplace

CONNECT = """
import os, pymysql
from pymysql.cursors import DictCursor, SSCursor

def connect(**options):
    return pymysql.connect(host="127.0.0.1", port=int(os.environ["PORT"]), user="agent", password=os.environ["PASS"],
                           database="shop", **options)
"""
PLAIN = f"""{CONNECT}
db = connect()
with pymysql.connections.Connection(host="127.0.0.1", port=int(os.environ["PORT"]), user="agent",
                                    password=os.environ["PASS"]) as other, other.cursor() as cursor:
    print(cursor.execute("select now(6)"), cursor.fetchone())
print(isinstance(db, pymysql.Connection), type(db).__name__, db.server_version, db.open, db.ping(), db.escape("a'b"))
with db.cursor() as cursor:
    cursor.execute("create table orders (id int auto_increment primary key, owner varchar(40), amount decimal(10,2), "
                   "at datetime(6), day date, took time, raw blob, doc json)")
    print(cursor.execute("insert into orders (owner, amount, at, day, took, raw, doc) values "
                         "(%s, 1.5, now(6), curdate(), '-01:02:03', x'00ff', '[1]')", ("ann",)), cursor.lastrowid)
    print(cursor.executemany("insert into orders (owner) values (%s)", (("x",) for _ in range(2))), cursor.rowcount)
    print(cursor.execute("select * from orders where id < %s", (3,)), [d[0] for d in cursor.description])
    print(isinstance(cursor, pymysql.cursors.Cursor), cursor.fetchone(), cursor.fetchmany(1), cursor.fetchone())
db.commit()
with db.cursor(DictCursor) as cursor:
    cursor.execute("select uuid() as u, rand() as r, connection_id() as c")
    print(cursor.fetchone())
    cursor.execute("select id, owner from orders")
    for row in cursor:
        print(row)
        break
    print(cursor.fetchall())
stream = db.cursor(SSCursor)
stream.execute("select seq from seq_1_to_700")
print(next(iter(stream)), sum(row[0] for row in stream), stream.rowcount)
cursor = db.cursor()
for statement in ("select * from nothing", "insert into orders (id) values (1)"):
    try:
        cursor.execute(statement)
    except pymysql.Error as error:
        print(type(error), error.args)
db.rollback()
db.autocommit(True)
cursor.execute("delete from orders where id = 3")
print(cursor.rowcount, db.get_autocommit(), db.insert_id(), db.character_set_name())
db.close()
print(db.open)
for again in (db.close, lambda: db.cursor().execute("select 1")):
    try:
        again()
    except pymysql.Error as error:
        print(repr(error))
try:
    connect(init_command="select nothing")
except pymysql.OperationalError as error:
    print(error)
"""
ALCHEMY = """
import os
from sqlalchemy import Numeric, String, create_engine, select, text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine(os.environ["URL"], pool_pre_ping=True)
class Base(DeclarativeBase): pass
class Order(Base):
    __tablename__ = "orders2"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(String(40))
    amount: Mapped[float] = mapped_column(Numeric(10, 2))
Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add_all([Order(owner="ann", amount=1), Order(owner="bob", amount=2)])
    session.commit()
    print([(o.id, o.owner, o.amount) for o in session.scalars(select(Order).order_by(Order.id))])
with engine.connect() as c:
    print(c.execute(text("select now(), count(*) from orders2")).fetchall(), c.get_isolation_level())
    for statement in ("select * from nothing", "insert into orders2 values (1, 'x', 1)"):
        try: c.execute(text(statement))
        except (ProgrammingError, IntegrityError) as error: print(type(error.orig), error.orig.args)
        c.rollback()
with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
    print(c.execute(text("update orders2 set amount = 3")).rowcount, engine.dialect.server_version_info)
engine.dispose()
"""
POSTGRES = """
import os, pg8000, pg8000.dbapi
for module in (pg8000.dbapi, pg8000):
    db = module.connect("agent", database="postgres", unix_sock=os.environ["SOCK"])
    cursor = db.cursor()
    cursor.execute("select now(), 1.5::numeric, '[1]'::jsonb, '\\\\x00ff'::bytea, interval '1 month', array[1,2], "
                   "gen_random_uuid(), '[1,4)'::int4range, null")
    print(isinstance(db, module.Connection), cursor.description[0][0], cursor.rowcount, cursor.fetchall())
    cursor.execute("create temporary table t (a int)")
    db.autocommit = True
    print(db.autocommit, db.notices, db.py_types[str].__name__)
    cursor.execute("select generate_series(1, 100)")
    print(sum(row[0] for row in cursor))
    db.close()
"""


@pytest.fixture
def server() -> Iterator[MariaDB]:
    """A MariaDB server."""
    with mariadb.serve() as made:
        yield made


def _place(path: Path, server: MariaDB) -> Workplace:
    url = f"mysql+pymysql://agent:{mariadb.PASSWORD}@127.0.0.1:{server.port}/shop"
    return Workplace(path, {"PORT": str(server.port), "PASS": mariadb.PASSWORD, "URL": url})


@pytest.mark.parametrize(
    ("program", "then", "now", "boundary"),
    [
        (PLAIN, "where id < %s", "where id <= %s", "tool:pymysql.execute"),
        (PLAIN, "db.autocommit(True)", "db.autocommit(False)", "tool:pymysql.autocommit"),
        (ALCHEMY, "amount = 3", "amount = 4", "tool:pymysql.execute"),
    ],
    ids=["statement", "method", "SQLAlchemy"],
)
def test_dbapi_a_driver_replays_without_its_server(
    tmp_path: Path, server: MariaDB, program: str, then: str, now: str, boundary: str
) -> None:
    """Rows, counts, errors and the connection's state come from the recording; another statement is another run."""
    place = _place(tmp_path, server)
    place.write("agent.py", program)
    recorded = place.record("agent.py")
    server.stop()
    replayed = place.replay("agent.py")
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    place.write("agent.py", program.replace(then, now))
    assert place.replay("agent.py").causes()[0] == ("changed_call", boundary)
    for file in (tmp_path / ".spanreplay").rglob("*"):
        assert not file.is_file() or mariadb.PASSWORD.encode() not in file.read_bytes(), file


def test_dbapi_values_of_a_driver_come_back_as_its_own(tmp_path: Path) -> None:
    """pg8000's ranges and intervals, its table of types and its notices replay, without the server."""
    with postgres.serve() as dsn:
        folder = dsn.split()[0].removeprefix("host=")
        place = Workplace(tmp_path, {"SOCK": f"{folder}/.s.PGSQL.5432"})
        place.write("agent.py", POSTGRES)
        recorded = place.record("agent.py")
    replayed = place.replay("agent.py")
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert "<Range [1,4)>" in recorded.stdout
