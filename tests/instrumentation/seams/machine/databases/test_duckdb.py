"""The agent's statements to DuckDB are compared, although a replay runs them: the file's bytes always differ."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.changed import load, named, record_agent, replay_agent
from support.replaying import Workplace

AGENT = """
import duckdb, pathlib

def agent():
    db = duckdb.connect("x.duckdb")
    db.execute("create table t(a int)")
    db.execute("insert into t values (1)")
    db.begin()
    db.executemany("insert into t values (?)", [[2], [3]])
    db.commit()
    db.begin()
    db.sql("insert into t values (4)")
    db.rollback()
    db.execute("insert into t values (?)", [5])
    db.sql("select a + 10 as a from t where a < 3").insert_into("t")
    db.values([20]).insert_into("t") if hasattr(db, "values") else None
    with db.cursor() as other:
        other.execute("delete from t where a = 1")
    print(db.execute("select * from t order by a").fetchall())
    db.close()
    duckdb.execute("copy (select 1 as a) to 'out.csv'")
"""
CHANGES = {
    "database": ('"x.duckdb"', '"y.duckdb"', "duckdb.connect"),
    "statement": ("values (1)", "values (9)", "duckdb.execute"),
    "parameters": ("[5])", "[6])", "duckdb.execute"),
    "many": ("[[2], [3]]", "[[2], [9]]", "duckdb.executemany"),
    "sql": ("values (4)", "values (9)", "duckdb.sql"),
    "commit_to_rollback": ("db.commit()", "db.rollback()", "duckdb.rollback"),
    "rollback_to_commit": ("db.rollback()", "db.commit()", "duckdb.commit"),
    "begin_dropped": ("    db.begin()\n    db.sql", "    db.sql", "duckdb.begin"),
    "relation": ("where a < 3", "where a < 2", "duckdb.sql"),
    "cursor": ("where a = 1", "where a = 2", "duckdb.execute"),
    "module": ("select 1 as a", "select 2 as a", "duckdb.execute"),
    "target": ("out.csv", "other.csv", "duckdb.execute"),
}


def test_n14_what_duckdb_is_told_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same agent is identical, and leaves the file unchanged; each changed statement is named."""
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    run_id = record_agent(load(AGENT, tmp_path))
    database = tmp_path / "x.duckdb"
    database.unlink()
    same = replay_agent(run_id, load(AGENT, tmp_path))
    assert (same["verdict"], same["raised"]) == ("identical", ""), same["divergences"]
    assert not database.exists()
    for name, (old, new, boundary) in CHANGES.items():
        assert old in AGENT, name
        changed = replay_agent(run_id, load(AGENT.replace(old, new, 1), tmp_path))
        assert changed["verdict"] == "diverged", (name, changed["raised"])
        assert f"tool:{boundary}" in named(changed), (name, named(changed))


ASKING_WHERE = """
import duckdb, os

def agent():
    db = duckdb.connect("x.duckdb")
    db.execute("create table if not exists t(a int)")
    folder = os.path.join(os.path.dirname(db.execute("pragma database_list").fetchone()[2]), "out")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "note.txt"), "w") as note:
        note.write("kept")
    os.rename(os.path.join(folder, "note.txt"), os.path.join(folder, "last.txt"))
    print(sorted(os.listdir(folder)), os.path.exists(os.path.join(folder, "note.txt")))
    db.close()
"""


def test_n14_paths_beside_a_file_that_a_library_keeps_are_those_of_the_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library reports its file's path, which is different in a replay; the agent's work there is the same."""
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    run_id = record_agent(load(ASKING_WHERE, tmp_path))
    (tmp_path / "out" / "last.txt").write_text("kept, and mine")
    same = replay_agent(run_id, load(ASKING_WHERE, tmp_path))
    assert (same["verdict"], same["raised"]) == ("identical", ""), same["divergences"]
    assert (tmp_path / "out" / "last.txt").read_text() == "kept, and mine"
    changed = replay_agent(run_id, load(ASKING_WHERE.replace('"kept"', '"lost"'), tmp_path))
    assert changed["verdict"] == "diverged"
    assert "out/last.txt" in str(changed["divergences"])


@pytest.mark.parametrize("source", ["import duckdb", AGENT + "\nagent()"], ids=["imported", "used"])
def test_p9_a_program_that_uses_duckdb_says_no_more_than_without_us(source: str, tmp_path: Path) -> None:
    """At exit nanobind lists on standard error the objects of a library that are still referenced."""
    pytest.importorskip("duckdb")
    place = Workplace(tmp_path)
    place.write("agent.py", source)
    recorded = place.record("agent.py")
    (tmp_path / "x.duckdb").unlink(missing_ok=True)
    command = [str(place.python), "agent.py"]
    plain = subprocess.run(command, cwd=tmp_path, env=place.environ, text=True, capture_output=True, check=True)
    assert (recorded.stdout, recorded.stderr) == (plain.stdout, plain.stderr)
