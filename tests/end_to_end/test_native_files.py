"""Libraries that open files in native code: the files they read are inputs, their writes go to the overlay."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import faiss
import numpy as np
import pytest

from support.replaying import Workplace

HEAD = """
import os
import numpy
import spanreplay

DATA = os.environ["DATA"]

@spanreplay.boundary("tool", name="ask")
def ask(question):
    return question.upper()
"""
DATABASE = """
import duckdb

path = os.path.join(DATA, "orders.duckdb")
with duckdb.connect(path) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (amount INTEGER)")
    connection.execute("INSERT INTO orders VALUES (?)", [len(ask("which amount"))])
    print(connection.execute("SELECT amount FROM orders").fetchall())
with duckdb.connect(path, read_only=True) as connection:
    print(ask(str(connection.execute("SELECT count(*) FROM orders").fetchone())))
"""
INDEX = """
import faiss

path = os.path.join(DATA, "facts.faiss")
index = faiss.read_index(path) if os.path.exists(path) else faiss.IndexFlatL2(4)
index.add(numpy.full((1, 4), index.ntotal, dtype="float32"))
faiss.write_index(index, path)
print(ask(str(index.search(numpy.zeros((1, 4), dtype="float32"), 2)[0].tolist())), faiss.read_index(path).ntotal)
"""
TABLE = """
import pyarrow
import pyarrow.csv
import pyarrow.parquet

path = os.path.join(DATA, "orders.parquet")
table = pyarrow.parquet.read_table(path) if os.path.exists(path) else pyarrow.table({"amount": [7]})
table = pyarrow.concat_tables([table, table])
pyarrow.parquet.write_table(table, path)
pyarrow.csv.write_csv(table, os.path.join(DATA, "orders.csv"))
print(ask(str(pyarrow.csv.read_csv(os.path.join(DATA, "orders.csv")).num_rows)))
print(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
"""


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("work", [DATABASE, INDEX, TABLE], ids=["duckdb", "faiss", "pyarrow"])
@pytest.mark.sampled(1)
def test_n14_native_files_are_inputs_and_stay_as_they_are(work: str, tmp_path: Path) -> None:
    """Each of two consecutive runs replays as recorded; the real files are neither changed nor needed."""
    data, code = tmp_path / "data", tmp_path / "code"
    data.mkdir()
    code.mkdir()
    workplace = Workplace(tmp_path, {"DATA": str(data)})
    agent = workplace.write("code/agent.py", HEAD + work)
    outputs = [workplace.record(agent).stdout, workplace.record(agent).stdout]
    assert outputs[0] != outputs[1]
    runs = [recording.run_id for recording in workplace.recordings()]
    before = _content(data)
    for run, output in zip(runs, outputs, strict=True):
        replayed = workplace.replay(agent, source=run)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.stdout == output
    assert _content(data) == before
    data.rename(tmp_path / "gone")
    for run, output in zip(runs, outputs, strict=True):
        replayed = workplace.replay(agent, source=run)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.stdout == output
    assert not data.exists()


def test_s65_another_index_is_found(tmp_path: Path) -> None:
    """If an agent writes different content to a native file, the report names the file."""
    data, code = tmp_path / "data", tmp_path / "code"
    data.mkdir()
    code.mkdir()
    workplace = Workplace(tmp_path, {"DATA": str(data)})
    agent = workplace.write("code/agent.py", HEAD + INDEX)
    workplace.record(agent)
    agent.write_text(HEAD + INDEX + "faiss.write_index(faiss.IndexFlatL2(8), path)\n", encoding="utf-8")
    replayed = workplace.replay(agent)
    assert replayed.causes() == [("file_changed", "file:data/facts.faiss")]
    assert "data/facts.faiss line 1 differs" in replayed.stderr


def test_n3_too_large_a_native_file_makes_a_run_incomplete(tmp_path: Path) -> None:
    """An index above the limit is not recorded, and the run says so before it is replayed."""
    data, code = tmp_path / "data", tmp_path / "code"
    data.mkdir()
    code.mkdir()
    workplace = Workplace(tmp_path, {"DATA": str(data)})
    agent = workplace.write("code/agent.py", HEAD + INDEX)
    index = faiss.IndexFlatL2(4)
    index.add(np.zeros((400_000, 4), dtype="float32"))
    faiss.write_index(index, str(data / "facts.faiss"))
    workplace.record(agent)
    replayed = workplace.replay(agent, options=["--strict"])
    assert replayed.status == 4
    assert "facts.faiss" in replayed.stderr


TEMPORARY: Final = """
import os, tempfile
from lxml.etree import xmlfile

descriptor, path = tempfile.mkstemp(prefix="sheet.")
os.close(descriptor)
with xmlfile(path) as sheet, sheet.element("row"):
    sheet.write("7")
with open(path) as made:
    print(made.read())
os.remove(path)
"""


def test_n14_a_temporary_file_of_lxml_leaves_nothing_behind(tmp_path: Path) -> None:
    """Excel libraries let lxml write each sheet into a temporary file: its replay is identical and makes none."""
    pytest.importorskip("lxml.etree")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    here = Workplace(tmp_path, {"TMPDIR": str(temporary)})
    agent = here.write("agent.py", TEMPORARY)
    here.record(agent)
    before = sorted(temporary.iterdir())
    replayed = here.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert sorted(temporary.iterdir()) == before
