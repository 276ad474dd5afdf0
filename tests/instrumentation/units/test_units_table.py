"""Promises of every row of the units table."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from spanreplay.seams.row import Seam
from spanreplay.units._table import UNITS, starts_server
from support.agents import CURRENT, ENVIRONMENTS, ROOT, has_distribution
from support.unit_rows import check

SERVER_IN_MEMORY: Final = {
    "DATABASE_URI": ":memory:",
    "REDIS_URI": "fake",
    "MIGRATIONS_PATH": "__inmem",
    "LANGGRAPH_RUNTIME_EDITION": "inmem",
    "LANGSMITH_LANGGRAPH_API_VARIANT": "local_dev",
}
"""Variables that `langgraph dev` sets before it loads its server."""


@pytest.mark.parametrize("row", UNITS, ids=lambda row: row.name)
def test_p2_a_row_fits_its_library_and_gives_it_back(row: Seam, tmp_path: Path) -> None:
    """Every trigger is a module of the library; each target is changed, and restored afterwards."""
    if row.distribution == "python" or has_distribution(CURRENT, row.distribution):
        check(row)
        return
    places = [python for python in ENVIRONMENTS.values() if has_distribution(python, row.distribution)]
    if not places:
        pytest.skip(f"no environment has {row.distribution}: tools/agents.sh builds it")
    environ = {**os.environ, **SERVER_IN_MEMORY, "PYTHONPATH": str(ROOT / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(places[0]), "-m", "support.unit_rows", row.name]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


def test_p2_rows_have_names_of_their_own() -> None:
    """Each name stands for one server or worker."""
    names = [row.name for row in UNITS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("command", "is_server"),
    [
        ("python -m uvicorn app:app", True),
        ("python -X dev /opt/venv/bin/uvicorn app:app", True),
        ("python /opt/venv/bin/fastapi run", True),
        ("python /opt/venv/bin/langgraph dev", True),
        ("python -m langgraph_cli dev", True),
        ("python /opt/venv/bin/chainlit run app.py", True),
        ("python -m streamlit run app.py", True),
        ("python /opt/venv/bin/gradio app.py", True),
        ("python agent.py uvicorn", False),
        ("python -m agent", False),
        ("python -c pass", False),
    ],
)
def test_p7_a_server_is_known_by_its_command(command: str, is_server: bool) -> None:
    """Other words of a command don't count."""
    assert starts_server(command.split()) is is_server
