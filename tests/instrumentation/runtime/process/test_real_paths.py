"""Paths resolve as with `os.path.realpath`, and asyncio's loops read the clock that the program has."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.real_paths import forget_folders, real_folder, real_path
from spanreplay.seams.machine.clock import clock


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders, files and links of all kinds, in the working directory."""
    forget_folders()
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "file").write_text("1")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "real" / "up").symlink_to("..")
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "broken").symlink_to("nothing/there")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "/", "real/file", "real//file", "./real/./file", "real/file/", "folder/file", "link", "link/",
        "folder/inner/../file", "folder/up/real/file", "broken", "broken/more", "loop", "missing", "missing/more",
        "folder/missing", "folder/..", "real/..file",
    ],
)  # fmt: skip
def test_p7_real_paths_are_those_of_the_standard_library(tree: Path, path: str) -> None:
    """Relative and absolute paths give the same result, the first time and from the cache."""
    for each in (path, str(tree / path) if path else path):
        for _ in range(2):
            assert real_path(each) == os.path.realpath(each)


def test_p7_a_folder_that_is_not_there_yet_is_looked_at_again(tree: Path) -> None:
    """A folder is not cached before it exists."""
    assert real_folder(str(tree / "later")) == str(tree / "later")
    (tree / "later").symlink_to("real")
    assert real_path(str(tree / "later" / "file")) == str(tree / "real" / "file")


def test_p7_loops_read_the_real_clock_or_the_one_that_lies_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An asyncio loop bypasses our patch, but not another patch over it, such as freezegun's."""
    patches, own = Patches(), asyncio.BaseEventLoop.time
    clock._patch_loops(patches, time.monotonic)
    loop = asyncio.new_event_loop()
    try:
        before = loop.time()
        assert before <= loop.time() <= time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: 7.0)
        assert loop.time() == 7.0
    finally:
        monkeypatch.undo()
        loop.close()
        patches.undo()
    assert asyncio.BaseEventLoop.time is own
