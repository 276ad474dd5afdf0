"""The tests' own PostgreSQL server: a cluster in a temporary folder, on a unix socket, without a port."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

TIMEOUT_S: Final = 600
_DEBIAN: Final = Path("/usr/lib/postgresql")


def find_programs() -> Path | None:
    """Return the folder of `initdb`; None if no server is installed."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb")) if _DEBIAN.is_dir() else []
    return versions[-1].parent if versions else None


@contextmanager
def serve() -> Iterator[str]:
    """Yield the connection string of a new, empty server. Skips the test if none is installed, except in CI."""
    programs = find_programs()
    if programs is None:
        if os.environ.get("CI"):
            pytest.fail("there is no PostgreSQL server: tools/postgres.sh installs it")
        pytest.skip("there is no PostgreSQL server: tools/postgres.sh installs it")
    # The server refuses to run as root; Debian's package creates a user for it
    as_user: dict[str, Any] = {"user": "postgres"} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # short: a unix socket's path is limited to 107 bytes
    try:
        if as_user:
            shutil.chown(folder, "postgres")
        cluster = folder / "data"

        def run(*command: str) -> None:
            environ = {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(folder)}
            done = subprocess.run(
                command, cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, **as_user
            )
            assert done.returncode == 0, done.stderr + done.stdout

        run(str(programs / "initdb"), "-D", str(cluster), "-U", "agent", "-A", "trust", "-N", "--encoding=UTF8")
        control = str(programs / "pg_ctl")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        run(control, "-D", str(cluster), "-w", "-t", str(TIMEOUT_S), "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"host={folder} user=agent dbname=postgres"
        finally:
            run(control, "-D", str(cluster), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
