"""What of its process a run names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from spanreplay.runtime.process import environment
from spanreplay.runtime.process.environment import LoadedCode


def test_code_is_what_it_was_when_its_module_was_first_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes later is not read again; a module that is loaded later is found."""
    monkeypatch.setattr(environment, "CODE_FILES_MAX", sys.maxsize)  # the tests that ran before are files too
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("first_seen", "seen_later"):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
    code = LoadedCode()
    importlib.import_module("first_seen")
    before = code.look()
    (tmp_path / "first_seen.py").write_text("value = 2\n")
    importlib.import_module("seen_later")
    found = code.look()
    assert {path.rpartition("/")[2] for path in found.keys() - before.keys()} == {"seen_later.py"}
    assert {path: found[path] for path in before} == before
    assert "first_seen.py" in {path.rpartition("/")[2] for path in before}
    for name in ("first_seen", "seen_later"):
        monkeypatch.delitem(sys.modules, name)
