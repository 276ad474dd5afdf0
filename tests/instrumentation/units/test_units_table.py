"""What every row of the table of units promises."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from spanreplay.runtime.patches import Patches
from spanreplay.seams.row import Seam
from spanreplay.units._table import UNITS, starts_server


@pytest.mark.parametrize("row", UNITS, ids=lambda row: row.name)
def test_p2_a_row_fits_its_library_and_gives_it_back(row: Seam) -> None:
    """Every trigger is a module of the library; each target is changed, and afterwards what it was."""
    patches = Patches()
    for trigger in row.triggers:
        assert trigger.partition(".")[0] == (row.name if row.distribution == "python" else row.distribution)
        mark = patches.mark()
        import_module(row.implementation).install(import_module(trigger), patches)
        assert patches.mark() > mark, f"{trigger} has nothing to patch"
    before: list[tuple[Any, str, Any]] = list(patches._undo)
    assert all(vars(owner)[name] is not original for owner, name, original in before)
    patches.undo()
    assert all(vars(owner).get(name, original) is original for owner, name, original in before)


def test_p2_rows_have_names_of_their_own() -> None:
    """A name stands for one server or worker."""
    names = [row.name for row in UNITS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("command", "is_server"),
    [
        ("python -m uvicorn app:app", True),
        ("python -X dev /opt/venv/bin/uvicorn app:app", True),
        ("python /opt/venv/bin/fastapi run", True),
        ("python agent.py uvicorn", False),
        ("python -m agent", False),
        ("python -c pass", False),
    ],
)
def test_p7_a_server_is_known_by_its_command(command: str, is_server: bool) -> None:
    """What else a command names does not count."""
    assert starts_server(command.split()) is is_server
