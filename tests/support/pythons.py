"""Other Python versions with spanreplay and pytest, if installed by tools/agents.sh or `make matrix`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from support.agents import ROOT

OWN: Final = sys.version_info[:2]
TIMEOUT_S: Final = 300
NONE: Final = "no other Python here: tools/agents.sh makes .venvs/py3.*"
_NAME: Final = re.compile(r"py3\.(\d+)")


@cache
def other_pythons() -> dict[tuple[int, int], Path]:
    """Return interpreters by version, oldest first, without this one's version."""
    found = {}
    for python in ROOT.glob(".venvs/py3.*/bin/python"):
        if name := _NAME.fullmatch(python.parents[1].name):
            found[3, int(name[1])] = python
    return {version: found[version] for version in sorted(found) if version != OWN}


def run_tests(python: Path, *arguments: str) -> str:
    """Run pytest under another Python and return its output; it must pass."""
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def since(*version: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a test that needs a version of Python; under an older one it runs in a newer child interpreter."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if version <= OWN:
            return test
        nodeid = f"{Path(test.__code__.co_filename).relative_to(ROOT)}::{test.__name__}"

        def in_a_newer_python() -> None:
            newer = [python for known, python in other_pythons().items() if known >= version]
            if not newer:
                pytest.skip(f"it came with Python {version[0]}.{version[1]}")
            assert "1 passed" in run_tests(newer[-1], nodeid)

        in_a_newer_python.__name__ = test.__name__
        in_a_newer_python.__qualname__ = test.__qualname__
        in_a_newer_python.__module__ = test.__module__
        in_a_newer_python.__doc__ = test.__doc__
        return in_a_newer_python

    return decorate
