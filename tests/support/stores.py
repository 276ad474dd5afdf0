"""Stores for tests: a fresh database in this process's one chDB directory, or on a server.

chDB allows one directory per process, so everything that opens an embedded store in a test process takes its URL
from here.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

PASSWORD: Final = "p@ss:w/rd%"
SERVER_URL_VARIABLE: Final = "SPANREPLAY_TEST_CLICKHOUSE_URL"
_numbers = itertools.count(1)
_directories: list[Path] = []


def make_directory() -> Path:
    """Return a directory that is removed when this process ends."""
    directory = Path(tempfile.mkdtemp(prefix="spanreplay-test-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def chdb_directory() -> Path:
    """Return this process's only directory for embedded stores."""
    if not _directories:
        _directories.append(make_directory())
    return _directories[0]


def fresh_database() -> str:
    """Return a database name that no other test uses."""
    return f"test_{os.getpid()}_{next(_numbers)}"


def fresh_chdb_url() -> str:
    """Return the URL of an empty embedded store."""
    return f"chdb://{chdb_directory()}?database={fresh_database()}"


class Front:
    """A ClickHouse server for tests in its own process, or a real one if the environment names it."""

    def __init__(self, directory: Path | None = None, *, is_cluster: bool = False) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._base = os.environ.get(SERVER_URL_VARIABLE, "")
        if self._base and directory is None and not is_cluster:
            return
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "support.clickhouse_front", str(directory or make_directory()), PASSWORD),
                *(["cluster"] if is_cluster else []),
            ],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self._base = f"http://default:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/"

    def url(self, database: str) -> str:
        """Return the URL of a database on this server."""
        return urlunsplit(urlsplit(self._base)._replace(path=f"/{database}"))

    def kill(self) -> None:
        """Kill it, as a power failure would; idempotent."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None
