"""Keeps the last measured figures in `bench/measured.json`, each with its hardware, versions, command and commit.

docs/STATUS.md takes the figures of requirements from there.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure

FILE: Final = Path(__file__).resolve().parent / "measured.json"


class UncommittedChangesError(Exception):
    """The code that was measured is not that of any commit."""


def insist_on_commit() -> None:
    """Raises: UncommittedChangesError: if files differ from the last commit, except the kept figures."""
    root = FILE.parent.parent
    status = ["git", "status", "--porcelain", "--", ".", f":!{FILE.relative_to(root)}"]
    changed = subprocess.run(status, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    if changed:
        raise UncommittedChangesError(
            f"figures are kept of committed code only, and {len(changed)} files differ, such as {changed[0][3:]};"
            " commit them first"
        )


def keep(figures: Sequence[Figure], machine: Mapping[str, Any], command: str, began: datetime) -> None:
    """Put these figures in the place of earlier ones of the same name."""
    where = {
        "command": command,
        "commit": str(machine["commit"]).removesuffix("-dirty"),
        "date": began.date().isoformat(),
        **{name: machine[name] for name in ("cpu", "cores", "system", "python", "packages")},
        "load": machine["load"][0],
    }
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    stored.update({figure.name: {**figure.as_json(), **where} for figure in figures})
    FILE.write_text(json.dumps(stored, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
