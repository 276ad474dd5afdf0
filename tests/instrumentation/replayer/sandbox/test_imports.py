"""The import system uses the overlay: modules written there are found, hidden ones are not."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spanreplay.replayer.sandbox import imports
from spanreplay.replayer.sandbox.overlay import Overlay
from spanreplay.runtime.patches import Patches


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real folder that modules are imported from; modules loaded meanwhile are forgotten."""
    world = tmp_path / "world"
    world.mkdir()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.syspath_prepend(str(world))
    before = set(sys.modules)
    yield world
    for name in set(sys.modules) - before:
        del sys.modules[name]
    sys.path_importer_cache.pop(str(world), None)


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Overlay]:
    """An overlay that imports use."""
    (tmp_path / "scratch").mkdir()
    made, patches = Overlay(str(tmp_path / "scratch"), (), lambda: False, lambda: False), Patches()
    imports.install(made, patches)
    yield made
    patches.undo()


def test_s50_a_module_is_found_though_its_folder_has_the_same_time(folder: Path, overlay: Overlay) -> None:
    """A replay never waits, so files that it writes in a row may have the same folder time as existing ones."""
    for number in range(3):
        overlay.put(str(folder / f"tool_{number}.py"), f"NUMBER = {number}".encode())
        os.utime(overlay.scratch.above(str(folder)), (1, 1))
        assert number == importlib.import_module(f"tool_{number}").NUMBER
    assert not list(folder.iterdir())


def test_s50_a_module_that_is_hidden_is_not_found(folder: Path, overlay: Overlay) -> None:
    """A module that the recorded run made later exists for real, but not yet in the replay."""
    (folder / "made_later.py").write_text("")
    overlay.scratch.hide(str(folder / "made_later.py"))
    with pytest.raises(ModuleNotFoundError, match="made_later"):
        importlib.import_module("made_later")


def test_s50_the_worlds_modules_are_as_they_were(folder: Path, overlay: Overlay) -> None:
    """Real modules are found beside an overlay's other file, and the overlay's own version of one wins."""
    (folder / "known.py").write_text("TEXT = 'of the world'")
    overlay.put(str(folder / "another.py"), b"")
    assert importlib.import_module("known").TEXT == "of the world"
    overlay.put(str(folder / "known.py"), b"TEXT = 'of the replay'")
    assert importlib.reload(sys.modules["known"]).TEXT == "of the replay"
    assert (folder / "known.py").read_text() == "TEXT = 'of the world'"
