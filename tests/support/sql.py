"""Queries an embedded store with SQL as a user would: in a separate process, with the server stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

TIMEOUT_S: Final = 600
_PROGRAM: Final = """
import sys
from chdb.session import Session
session = Session(sys.argv[1])
session.query("USE spanreplay")
sys.stdout.write(str(session.query(sys.argv[2], "JSONEachRow")))
session.close()
"""


def ask(data_dir: Path, query: str) -> list[dict[str, Any]]:
    """Return the rows of a query on the store of a stopped `spanreplay up`."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(data_dir / "chdb"), query],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
