"""Facts about its process that a run states."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spanreplay.runtime.process import environment
from spanreplay.runtime.process.environment import LoadedCode, describe_code


def test_code_is_what_it_was_when_its_module_was_first_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes later is not read again; a module that is loaded later is added."""
    monkeypatch.setattr(environment, "CODE_FILES_MAX", sys.maxsize)  # modules of the tests that ran before count too
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


def test_code_is_read_again_when_its_module_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that merely changes keeps the hash of the loaded module; reloading the module gives a new hash."""
    monkeypatch.setattr(environment, "CODE_FILES_MAX", sys.maxsize)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "loaded_again.py"

    def load(value: int, how: Callable[[], object]) -> str:
        file.write_text(f"value = {value}\n")
        how()
        return next(found for path, found in describe_code().items() if path.endswith(file.name))

    first = load(1, lambda: importlib.import_module("loaded_again"))
    assert load(2, lambda: None) == first
    second = load(2, lambda: importlib.reload(sys.modules["loaded_again"]))
    assert second != first
    monkeypatch.delitem(sys.modules, "loaded_again")
    assert load(3, lambda: importlib.import_module("loaded_again")) not in (first, second)
    monkeypatch.delitem(sys.modules, "loaded_again")


def test_code_beyond_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program of thousands of files, only as many are hashed as are recorded."""
    monkeypatch.setattr(environment, "CODE_FILES_MAX", 0)
    monkeypatch.setattr(environment, "_looked_at", {})
    monkeypatch.setattr(environment, "hash_file", lambda path: pytest.fail(f"{path} was read"))
    assert describe_code() == LoadedCode().look() == {}
