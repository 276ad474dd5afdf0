"""The tests' own MariaDB server: a folder of its own, a port of loopback, one user with a password."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from support.ports import free_port
from support.replaying import TIMEOUT_S
from support.units import await_true, listens

_PATH: Final = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
USER, PASSWORD, DATABASE = "agent", "open-sesame-19", "shop"
_START: Final = f"""
create database {DATABASE};
create user {USER}@'%' identified by '{PASSWORD}';
grant all on {DATABASE}.* to {USER}@'%';
"""


class MariaDB(NamedTuple):
    """A running server."""

    port: int
    process: subprocess.Popen[str]

    def stop(self) -> None:
        """Stop the server for good."""
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT_S)


@contextmanager
def serve() -> Iterator[MariaDB]:
    """Yield a new server. Skips the test if none is installed, except in CI."""
    server = shutil.which("mariadbd", path=_PATH)
    if server is None:
        if os.environ.get("CI"):
            pytest.fail("there is no MariaDB server: tools/mariadb.sh installs it")
        pytest.skip("there is no MariaDB server: tools/mariadb.sh installs it")
    folder, port = Path(tempfile.mkdtemp(prefix="db-", dir="/tmp")), free_port()  # short: the path of a socket
    as_user = {"user": "nobody"} if os.getuid() == 0 else {}
    common = ("--no-defaults", f"--datadir={folder / 'data'}")
    environ: dict[str, Any] = {"env": {"PATH": _PATH, "LC_ALL": "C"}, "text": True, "cwd": folder, **as_user}
    try:
        folder.chmod(0o777)
        install = ["mariadb-install-db", *common, "--skip-test-db", "--auth-root-authentication-method=normal"]
        done = subprocess.run(install, capture_output=True, timeout=TIMEOUT_S, check=False, **environ)
        assert done.returncode == 0, done.stderr + done.stdout
        (folder / "start.sql").write_text(_START)
        (folder / "start.sql").chmod(0o644)
        words = [server, *common, f"--socket={folder / 's'}", f"--port={port}", "--bind-address=127.0.0.1"]
        words += [f"--init-file={folder / 'start.sql'}", f"--pid-file={folder / 'pid'}"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **environ)
        made = MariaDB(port, process)
        try:
            await_true(lambda: listens(port, process))
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
