"""An agent's effects outside any tool (human input, processes, databases, files) replay."""

from __future__ import annotations

import hashlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from support.installing import install
from support.replaying import Workplace, assert_same

HUMAN = """
answer = input("Sell 1,000 shares? ")
print("answer", answer)
try:
    print(input())
except EOFError:
    print("nothing more")
"""


def test_s50_a_human_answer_replays_without_the_human(workplace: Workplace) -> None:
    """Human input is recorded as a call of kind `human`; the replay asks nobody and shows the prompt."""
    agent = workplace.write("agent.py", HUMAN)
    recorded = subprocess.run(
        [str(workplace.python.parent / "opentelemetry-instrument"), sys.executable, str(agent)],
        cwd=workplace.path,
        env=workplace.environ,
        input="yes\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert recorded.stdout == "Sell 1,000 shares? answer yes\nnothing more\n"
    recording = workplace.recording()
    assert [(c.kind, c.name, c.outcome) for c in recording.calls] == [
        ("human", "input", "ok"),
        ("human", "input", "error"),
    ]
    assert_same(workplace.replay(agent), recorded.stdout)


def test_s50_a_human_answer_at_a_terminal_replays(workplace: Workplace) -> None:
    """At a terminal the prompt bypasses `sys.stdout`; the replay, in a pipe, still prints what the user saw."""
    agent = workplace.write("agent.py", "print('answer', input('Sell? '))\n")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(workplace.python.parent / "opentelemetry-instrument"), sys.executable, str(agent)],
        cwd=workplace.path,
        env={**workplace.environ, "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.write(ours, b"yes\n")
    assert process.wait(timeout=600) == 0
    os.close(ours)
    assert_same(workplace.replay(agent), "Sell? answer yes\n")


PROCESSES = """
import os, subprocess, sys
subprocess.run(["sh", "-c", "echo ran >> ran.txt"], check=True)
done = subprocess.run(["sh", "-c", "cat; echo err >&2; exit 3"], input="to stdin", capture_output=True, text=True)
print(done)
print(subprocess.check_output(["date", "+%N"]), subprocess.getoutput("date +%N"))
try:
    subprocess.run(["sh", "-c", "echo no; exit 7"], check=True, stdout=subprocess.PIPE)
except subprocess.CalledProcessError as error:
    print(error, error.output)
try:
    subprocess.run(["no-such-program"])
except FileNotFoundError as error:
    print("FileNotFoundError", error.filename)
try:
    subprocess.run(["sleep", "60"], timeout=0.2)
except subprocess.TimeoutExpired as error:
    print("TimeoutExpired", error.cmd)
counting = ["sh", "-c", "for n in 1 2 3; do echo $n $$; done"]
with subprocess.Popen(counting, stdout=subprocess.PIPE, text=True) as process:
    for line in process.stdout:
        print(line, end="")
print(process.pid, process.returncode, process.poll())
both = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
both.stdin.write(b"written")
both.stdin.close()
print(both.stdout.read(), both.wait(), isinstance(both, subprocess.Popen))
stuck = subprocess.Popen(["sleep", "60"])
print(stuck.poll(), stuck.returncode)
stuck.kill()
print(stuck.wait())
print(os.popen("date +%N").read(), os.system("echo ran >> ran.txt"))
"""


def test_s50_processes_of_the_agent_replay_without_starting(workplace: Workplace) -> None:
    """Output, exit codes, errors and timeouts of subprocesses are as recorded; the replay starts none."""
    agent = workplace.write("agent.py", PROCESSES)
    recorded = workplace.record(agent)
    assert (workplace.path / "ran.txt").read_text() == "ran\nran\n"
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert {(c.kind, c.effect) for c in recording.calls} == {("tool", "irreversible")}
    (workplace.path / "ran.txt").unlink()
    assert_same(workplace.replay(agent), recorded.stdout)
    assert not (workplace.path / "ran.txt").exists()


def test_s50_another_command_is_never_started(workplace: Workplace) -> None:
    """A command that was not recorded is a divergence, and does not run."""
    source = "import subprocess, sys\nprint(subprocess.check_output(['sh', '-c', sys.argv[1]]))\n"
    agent = workplace.write("agent.py", source)
    workplace.record(agent, "echo one")
    replayed = workplace.replay(agent, "touch gone")
    assert replayed.status == 3
    assert replayed.causes() == [("changed_call", "tool:subprocess.sh")]
    assert not (workplace.path / "gone").exists()


DATABASE = """
import sqlite3, sys
print(sqlite3.connect("ledger.db").execute("SELECT count(*) FROM ledger").fetchone())
with sqlite3.connect("ledger.db") as db:
    db.row_factory = sqlite3.Row
    for row in db.execute("SELECT id, owner AS who FROM ledger WHERE id < ? ORDER BY id", (3,)):
        print(row["id"], row["who"], row.keys())
    cursor = db.execute("DELETE FROM ledger WHERE id = 2")
    print(cursor.rowcount, db.total_changes, db.in_transaction)
    cursor = db.cursor()
    cursor.execute("INSERT INTO ledger VALUES (?, ?)", (77, b"\\x00\\xff"))
    print(cursor.lastrowid, cursor.description)
    cursor.executemany("INSERT INTO ledger VALUES (?, 'x')", ((n,) for n in (100, 101)))
    print(cursor.rowcount)
    try:
        db.execute("INSERT INTO ledger VALUES (1, 'twice')")
    except sqlite3.IntegrityError as error:
        print(type(error).__name__, error)
cursor = db.execute("SELECT * FROM ledger ORDER BY id")
print(tuple(cursor.fetchone()), [tuple(r) for r in cursor.fetchmany(2)], len(cursor.fetchall()), cursor.fetchone())
print([c[0] for c in cursor.description], isinstance(db, sqlite3.Connection), type(db).__name__)
db.executescript("CREATE TABLE notes (text); INSERT INTO notes VALUES ('hello')")
print(db.execute("SELECT text FROM notes").fetchall()[0]["text"])
db.close()
try:
    db.execute("SELECT 1")
except sqlite3.ProgrammingError as error:
    print(error)
try:
    sqlite3.connect("no/such/folder.db")
except sqlite3.OperationalError as error:
    print(error)
"""


@pytest.fixture
def ledger(workplace: Workplace) -> Path:
    """A table with ten rows."""
    import sqlite3

    path = workplace.path / "ledger.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE ledger (id INTEGER PRIMARY KEY, owner)")
    db.executemany("INSERT INTO ledger VALUES (?, ?)", [(n, f"owner {n}") for n in range(10)])
    db.commit()
    db.close()
    return path


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_s50_sqlite_outside_of_tools_replays_and_leaves_the_database_unchanged(
    workplace: Workplace, ledger: Path
) -> None:
    """Statements outside any tool are calls: a replay serves their rows, counts and errors and opens no file."""
    agent = workplace.write("agent.py", DATABASE)
    recorded = workplace.record(agent)
    assert "IntegrityError UNIQUE" in recorded.stdout
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    deletes = [c for c in recording.calls if "DELETE" in c.request]
    assert [(c.kind, c.name, c.effect) for c in deletes] == [("tool", "sqlite3.execute", "irreversible")]
    before = _hash(ledger)
    assert_same(workplace.replay(agent), recorded.stdout)
    assert _hash(ledger) == before
    ledger.unlink()
    assert_same(workplace.replay(agent), recorded.stdout)
    assert not ledger.exists()


FILES = """
import io, json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
print(open(folder / "orders.json").read(), json.load(open(folder / "orders.json", encoding="utf-8")))
print((folder / "orders.json").read_text(), (folder / "image.bin").read_bytes()[:4])
with open(str(folder / "lines.txt"), newline="") as lines:
    print(lines.name, lines.mode, lines.encoding, lines.readline(), list(lines), type(lines).__name__)
with open(folder / "image.bin", "rb") as image:
    image.seek(-2, io.SEEK_END)
    print(image.read(), image.tell(), type(image).__name__)
try:
    open(folder / "missing.txt")
except FileNotFoundError as error:
    print(error)
print(open(pathlib.Path(__file__).parent / "prompt.txt").read())
"""


def test_s50_data_files_replay_as_they_were_read(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files outside the code tree come from the recording; files beside the code are read as they are now."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "orders.json").write_text('{"id": 7, "name": "Zoë"}', encoding="utf-8")
    (folder / "lines.txt").write_bytes(b"one\r\ntwo\nthree")
    (folder / "image.bin").write_bytes(bytes(range(256)))
    workplace.write("prompt.txt", "be careful")
    agent = workplace.write("agent.py", FILES)
    recorded = workplace.record(agent, str(folder))
    recording = workplace.recording()
    assert {(c.kind, c.name, c.effect) for c in recording.calls} == {("tool", "open", "read")}
    for name in ("orders.json", "lines.txt"):
        (folder / name).write_text("changed", encoding="utf-8")
    (folder / "image.bin").unlink()
    (folder / "missing.txt").write_text("here now", encoding="utf-8")
    assert_same(workplace.replay(agent, str(folder)), recorded.stdout)
    workplace.write("prompt.txt", "be bold")
    replayed = workplace.replay(agent, str(folder))
    assert replayed.status == 3
    assert replayed.stdout.endswith("be bold\n")


ENVIRONMENT = """
import os
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(prompt):
    return "fine"

print(os.getenv("API_PASSWORD") is None, os.environ.get("NOT_THERE", "nothing"), ask(os.environ["PROMPT"]))
"""


def test_s50_another_environment_variable_is_named(workplace: Workplace) -> None:
    """A changed variable is named in the verdict; its value is stored nowhere, not even as a plain hash."""
    agent = workplace.write("agent.py", ENVIRONMENT)
    recorded = workplace.record(agent, PROMPT="hello", API_PASSWORD="tr0ub4dor-and-three")
    files = [p for p in (workplace.path / ".spanreplay").rglob("*") if p.is_file()]
    secret = b"tr0ub4dor-and-three"
    assert [p for p in files if secret in p.read_bytes()] == []
    plain = hashlib.sha256(secret).hexdigest().encode()
    assert [p for p in files if plain[:24] in p.read_bytes()] == []
    assert_same(workplace.replay(agent, PROMPT="hello", API_PASSWORD="tr0ub4dor-and-three"), recorded.stdout)
    replayed = workplace.replay(agent, PROMPT="hallo", API_PASSWORD="another")
    assert replayed.status == 3
    assert replayed.verdict["environment"] == ["API_PASSWORD", "PROMPT"]
    cause = replayed.verdict["divergences"][0]["cause"]
    assert cause == "'hallo' is in the environment variable PROMPT, which differs from the recording"


SQLALCHEMY = """
import sqlalchemy
engine = sqlalchemy.create_engine("sqlite:///orders.db")
with engine.begin() as connection:
    connection.execute(sqlalchemy.text("CREATE TABLE orders (id INTEGER)"))
    connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
    print(connection.execute(sqlalchemy.text("SELECT id, random() AS r FROM orders")).mappings().all())
"""


def test_s50_sqlalchemy_on_sqlite_replays_without_the_database(workplace: Workplace) -> None:
    """Statements that a library only executes for the agent are recorded as the agent's."""
    pytest.importorskip("sqlalchemy")
    agent = workplace.write("agent.py", SQLALCHEMY)
    recorded = workplace.record(agent)
    (workplace.path / "orders.db").unlink()
    assert_same(workplace.replay(agent), recorded.stdout)
    assert not (workplace.path / "orders.db").exists()


INSTRUMENTOR = """
import sqlite3, subprocess

def wrap(function):
    def call(*args, **kwargs):
        return function(*args, **kwargs)
    return call

def instrument():
    sqlite3.connect = sqlite3.dbapi2.connect = wrap(sqlite3.connect)
    subprocess.Popen.__init__ = wrap(subprocess.Popen.__init__)

def keep(text):
    with sqlite3.connect("reports.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS reports (text)")
        database.execute("INSERT INTO reports VALUES (?)", (text,))
"""
WRAPPED = """
import telling
telling.instrument()
import sqlite3, subprocess

with sqlite3.connect("orders.db") as database:
    database.execute("CREATE TABLE orders (id)")
    database.execute("INSERT INTO orders VALUES (7)")
    print(database.execute("SELECT id, random() FROM orders").fetchall())
print(subprocess.run(["date", "+%N"], capture_output=True, text=True).stdout)
"""


@pytest.mark.parametrize("tool", ["opentelemetry-instrumentation-sqlite3", "langfuse"])
def test_s27_databases_and_programs_replay_below_the_wrapper_of_a_reporting_tool(
    tool: str, workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """OpenTelemetry's instrumentor of sqlite3 wraps `connect`."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    install(site, tool, {"telling.py": INSTRUMENTOR})
    workplace.environ["PYTHONPATH"] = str(site)
    agent = workplace.write("agent.py", WRAPPED)
    recorded = workplace.record(agent)
    names = [call.name for call in workplace.recording().calls]
    assert names == ["sqlite3.connect", *["sqlite3.execute"] * 3, "sqlite3.commit", "subprocess.date"]
    (workplace.path / "orders.db").unlink()
    assert_same(workplace.replay(agent), recorded.stdout)
    assert not (workplace.path / "orders.db").exists()


def test_p12_what_a_reporting_tool_keeps_in_a_database_of_its_own_is_not_the_agents(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where the tool has wrapped the function that it opens the database with."""
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    install(site, "langfuse", {"telling.py": INSTRUMENTOR})
    workplace.environ["PYTHONPATH"] = str(site)
    agent = workplace.write("agent.py", 'import telling\ntelling.instrument()\ntelling.keep("done")\n')
    workplace.record(agent)
    assert not workplace.recordings()
