"""Checks the contract of a row of the units table in its own process: `python -m support.unit_rows ROW`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from spanreplay.model.distributions import normalise
from spanreplay.runtime.patches import Patches
from spanreplay.seams.row import Seam
from spanreplay.units._table import UNITS


def check(row: Seam) -> None:
    """Check that every trigger is a module of the library, and each target is patched and afterwards restored."""
    patches = Patches()
    for trigger in row.triggers:
        module = trigger.partition(".")[0]
        assert row.name == module if row.distribution == "python" else normalise(module) == normalise(row.distribution)
        mark = patches.mark()
        import_module(row.implementation).install(import_module(trigger), patches)
        assert patches.mark() > mark, f"{trigger} has nothing to patch"
    before: list[tuple[Any, str, Any]] = list(patches._undo)
    assert all(vars(owner)[name] is not original for owner, name, original in before)
    patches.undo()
    assert all(vars(owner).get(name, original) is original for owner, name, original in before)


if __name__ == "__main__":
    check(next(row for row in UNITS if row.name == sys.argv[1]))
