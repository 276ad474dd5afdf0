"""Runs tests that `make test` runs with less: whole, as a benchmark that counts what was survived."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).resolve().parent.parent


def count_passed(path: str, chosen: str, **settings: int) -> Counter[str]:
    """Run chosen tests; return how often each of their functions passed. Raises: RuntimeError if one did not."""
    environ = {**os.environ, **{f"SPANREPLAY_TEST_{name}": str(value) for name, value in settings.items()}}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", path, "-k", chosen, f"--junit-xml={report}"]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{path} -k {chosen} failed:\n{done.stdout[-4000:]}")
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - our own file
    passed = [case for case in cases if case.find("skipped") is None]
    return Counter(str(case.get("name")).partition("[")[0] for case in passed)
