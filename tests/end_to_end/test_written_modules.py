"""Modules that an agent writes and imports, and files that the standard library opens without `builtins.open`."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

AGENT: Final = """
import importlib, inspect, pathlib, runpy, shutil, subprocess, sys, time
from importlib.util import module_from_spec, spec_from_file_location

print(subprocess.run(["date", "+%N"], capture_output=True, text=True).stdout)
tools = pathlib.Path("tools")
tools.mkdir(exist_ok=True)
sys.path.insert(0, ".")
try:
    import left
except ImportError as exc:
    print(exc)
for name in ("first", "second"):
    (tools / f"{name}.py").write_text(f"import time\\ndef run(): return '{name}', time.time()\\n")
    print(importlib.import_module(f"tools.{name}").run())
    time.sleep(0.05)  # so that the folder has another time; a replay sleeps for none
first = sys.modules["tools.first"]
(tools / "first.py").write_text("def run(): return 'another one'\\n")
print(importlib.reload(first).run(), inspect.getsource(first.run))
print(runpy.run_path("tools/second.py")["run"]())
shutil.copy("known.py", "copied.py")
spec = spec_from_file_location("copied", "copied.py")
copied = module_from_spec(spec)
spec.loader.exec_module(copied)
print(copied.VALUE)
(tools / "second.py").unlink()
sys.modules.pop("tools.second")
importlib.invalidate_caches()
try:
    import tools.second
except ImportError as exc:
    print(exc)
pathlib.Path("left.py").write_text("")
"""


def _clear(place: Path) -> None:
    shutil.rmtree(place / "tools", ignore_errors=True)
    for name in ("copied.py", "left.py"):
        (place / name).unlink(missing_ok=True)


def test_s50_modules_that_an_agent_has_written_are_imported_in_a_replay(workplace: Workplace) -> None:
    """By name, by path, again after a change, and not after removal; a replay leaves no file in the world."""
    agent = workplace.write("agent.py", AGENT)
    workplace.write("known.py", "VALUE = 7\n")
    recorded = workplace.record(agent)
    assert "No module named 'tools.second'" in recorded.stdout
    for _ in ("beside what the recorded run left", "where nothing is left"):
        replayed = workplace.replay(agent)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
        assert replayed.stdout == recorded.stdout
        _clear(workplace.path)
    workplace.replay(agent)
    assert {path.name for path in workplace.path.glob("*.py")} == {"agent.py", "known.py"}
    assert not (workplace.path / "tools").exists()


READS: Final = """
import bz2, gzip, lzma, subprocess, sys, tarfile, tokenize, zipfile

folder = sys.argv[1]
print(bz2.open(f"{folder}/a.bz2").read(), gzip.open(f"{folder}/a.gz").read(), lzma.open(f"{folder}/a.xz").read())
print(tarfile.open(f"{folder}/a.tar").getnames(), zipfile.ZipFile(f"{folder}/a.zip").namelist())
print(tokenize.open(f"{folder}/a.txt").read(), subprocess.run(["date", "+%N"], capture_output=True, text=True).stdout)
"""


def test_s50_files_that_the_standard_library_unpacks_are_inputs(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Modules that hold their own reference to `open` (bz2, tarfile, tokenize) read the recorded content."""
    folder = tmp_path_factory.mktemp("papers")
    text = folder / "a.txt"
    text.write_text("some text\n")
    for module in (bz2, gzip, lzma):
        suffix = {"lzma": "xz", "gzip": "gz"}.get(module.__name__, module.__name__)
        with module.open(folder / f"a.{suffix}", "wb") as packed:
            packed.write(suffix.encode())
    with tarfile.open(folder / "a.tar", "w") as tar, zipfile.ZipFile(folder / "a.zip", "w") as archive:
        tar.add(text, "in_tar.txt")
        archive.write(text, "in_zip.txt")
    agent = workplace.write("agent.py", READS)
    recorded = workplace.record(agent, str(folder))
    assert "in_tar.txt" in recorded.stdout
    shutil.rmtree(folder)
    replayed = workplace.replay(agent, str(folder))
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
