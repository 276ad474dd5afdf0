"""The layer of tools that run again: it behaves as a file system, and what lies beneath it stays as it was."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spanreplay.replayer.sandbox.scratch import Functions, Layer, Scratch

NAMES = ("a", "b", "d/a", "d/c", "e/f/g", "d", "e", "e/f", "n", "n/a")
OPERATIONS = ("write", "append", "remove", "mkdir", "rmdir", "rename")
Step = tuple[str, str, str]
steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=10)


def change_scratch(scratch: Scratch, root: Path, step: Step, number: int) -> None:
    """Do one step as `Overlay` does it."""
    what, path, target = step[0], str(root / step[1]), str(root / step[2])
    if what in {"write", "append"}:
        ours = scratch.take(path, with_content=what == "append")
        with Path(ours).open("ab" if what == "append" else "wb") as file:
            file.write(b"%d" % number)
    elif what == "remove":
        scratch.remove(path)
    elif what == "mkdir":
        scratch.make_directory(path, 0o755)
    elif what == "rmdir":
        scratch.remove_directory(path)
    else:
        scratch.rename(path, target)


def change_world(root: Path, step: Step, number: int) -> None:
    """Do the same in a plain folder."""
    what, path, target = step[0], root / step[1], root / step[2]
    if what in {"write", "append"}:
        with path.open("ab" if what == "append" else "wb") as file:
            file.write(b"%d" % number)
    elif what == "remove":
        path.unlink()
    elif what == "mkdir":
        path.mkdir()
    elif what == "rmdir":
        path.rmdir()
    else:
        path.rename(target)


def fails(change: Callable[[], None]) -> bool:
    try:
        change()
    except OSError:
        return True
    return False


def show_scratch(scratch: Scratch, root: Path, folder: str = "") -> dict[str, bytes | None]:
    """Every path below `root` as the scratch shows it, with its content; None for a folder."""
    found: dict[str, bytes | None] = {}
    for name in scratch.names(str(root / folder)):
        below = f"{folder}/{name}".lstrip("/")
        place = Path(scratch.find(str(root / below)))
        if place.is_dir():
            found[below] = None
            found.update(show_scratch(scratch, root, below))
        else:
            found[below] = place.read_bytes()
    return found


def show_world(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


def fill(root: Path) -> None:
    for name in ("a", "d/a", "e/f/g"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())


@example(before=[("mkdir", "n", ""), ("write", "n/a", "")], inside=[("write", "n/b", ""), ("rename", "n", "m")])
@given(before=steps, inside=steps)
def test_p12_what_tools_write_that_run_again_is_seen_by_them_alone(before: list[Step], inside: list[Step]) -> None:
    """The replay's own changes stay as they are; the layer's are those of a plain folder."""
    place = Path(os.path.realpath(tempfile.mkdtemp()))
    try:
        world, lower, upper = place / "world", place / "lower", place / "upper"
        fill(world)
        fill(lower)
        base = Scratch(str(place / "scratch"), Functions())
        layer = Layer(base)
        for number, step in enumerate(before):
            assert fails(partial(change_scratch, base, world, step, number)) == fails(
                partial(change_world, lower, step, number)
            ), step
        shutil.copytree(lower, upper)
        for number, step in enumerate(inside, 100):
            failed = fails(partial(change_scratch, layer, world, step, number))
            assert failed == fails(partial(change_world, upper, step, number)), step
        assert show_scratch(layer, world) == show_world(upper)
        assert show_scratch(base, world) == show_world(lower)
        assert show_world(world) == {"a": b"a", "d": None, "d/a": b"d/a", "e": None, "e/f": None, "e/f/g": b"e/f/g"}
    finally:
        shutil.rmtree(place)


def test_p12_path_in_a_layer_is_named_as_the_worlds(tmp_path: Path) -> None:
    """`below` knows both folders."""
    layer = Layer(Scratch(str(tmp_path), Functions()))
    assert layer.below(layer.above("/work/notes.txt")) == "/work/notes.txt"
    assert layer.below(f"{tmp_path}/work/notes.txt") == "/work/notes.txt"
    with pytest.raises(FileNotFoundError):
        layer.names(str(tmp_path / "none"))
