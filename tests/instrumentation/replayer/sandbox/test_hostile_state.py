"""The initial files of a replay are in its overlay, whatever paths and links the recording names."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanreplay import codec
from spanreplay.model.call import CallRecord, Recording
from spanreplay.replayer.sandbox import beginning
from spanreplay.replayer.sandbox.overlay import Overlay
from spanreplay.runtime.process.surroundings import Surroundings
from support.runs import make_recording

HELD: Final = b"what the user has"
FILE: Final = {"kind": "file", "mode": 0o4777, "content": b"hostile", "times": [1, 1]}
FOLDER: Final = {"kind": "directory", "mode": 0o777}


def link(target: str) -> dict[str, Any]:
    """A recorded link."""
    return {"kind": "link", "target": target}


class World:
    """A user's folder, and a replay's overlay beside it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.mine, self.scratch = base / "mine", base / "overlay" / "deep" / "root"
        self.code = self.mine / "code"
        for each in (self.code, self.scratch):
            each.mkdir(parents=True)
        (self.mine / "held").write_bytes(HELD)
        (self.code / "b").symlink_to(self.mine / "held")
        self.overlay = Overlay(str(self.scratch), (), lambda: False, lambda: False)

    def seen(self) -> dict[str, tuple[int, int, bytes]]:
        """Everything outside the overlay: kind and mode, time of the last change, content."""
        found = {}
        for each in sorted(self.base.rglob("*")):
            if self.scratch not in (each, *each.parents):
                state = each.lstat()
                content = each.read_bytes() if each.is_file() else b""
                found[str(each)] = (state.st_mode, state.st_mtime_ns if each.is_file() else 0, content)
        return found


def recorded(*states: tuple[str, Mapping[str, Mapping[str, Any]]]) -> Recording:
    """A recording in which the agent was about to change each of these paths, with their recorded state."""
    made = make_recording(calls=len(states))
    calls = [_lookup(call, *state) for call, state in zip(made.calls, states, strict=True)]
    return replace(made, calls=tuple(calls))


def _lookup(call: CallRecord, at: str, entries: Mapping[str, Mapping[str, Any]]) -> CallRecord:
    value = codec.encode({"there": "file", "at": at, "entries": entries})
    return replace(call, kind="tool", name="lookup", effect="read", response=json.dumps({"value": value}))


def lay(world: World, recording: Recording) -> None:
    """Lay out the recording's initial files; a setup that fails ends the replay."""
    with contextlib.suppress(OSError, ValueError):
        beginning.lay(world.overlay.scratch, recording, Surroundings(), lambda call: call.response)


def _ways(world: World) -> dict[str, Recording]:
    code, mine = str(world.code), str(world.mine)
    out = os.path.relpath(mine, world.scratch)
    return {
        "dots": recorded((code, {"": FOLDER, "../" * 30 + mine.lstrip("/") + "/new": FILE})),
        "dots over what is there": recorded((code, {f"{'../' * 9}{out}/held": FILE})),
        "dots from the overlay": recorded((f"/{out}/new", {"": FILE})),
        "a whole path": recorded((code, {"": FOLDER, f"{mine}/held": FILE})),
        "through a link": recorded((code, {"": FOLDER, "a": link(mine), "a/held": FILE, "a/new/deep": FILE})),
        "through a link that leads up": recorded((code, {"a": link("../" * 40), f"a{mine}/held": FILE})),
        "through two links": recorded((code, {"a": link(mine), "b": link("a"), "b/held": FILE})),
        "through a link of another call": recorded((f"{code}/a", {"": link(mine)}), (f"{code}/a/new", {"": FILE})),
        "a folder where a link is": recorded((code, {"a": link(mine), "b": link("."), "b/a": FOLDER})),
        "in a circle": recorded((code, {"a": link("b"), "b": link("a"), "a/x": FILE})),
        "a name of dots": recorded((f"{code}/..", {"": FILE, "..": FILE, ".": FOLDER})),
    }


WAYS: Final = (
    *("dots", "dots over what is there", "dots from the overlay", "a whole path", "through a link"),
    *("through a link that leads up", "through two links", "through a link of another call"),
    *("a folder where a link is", "in a circle", "a name of dots"),
)


@pytest.mark.parametrize("way", WAYS)
def test_r8_files_of_a_hostile_recording_stay_in_the_overlay(tmp_path: Path, way: str) -> None:
    """Dots, absolute paths and links in recorded paths lead only into the overlay."""
    world = World(tmp_path)
    before = world.seen()
    lay(world, _ways(world)[way])
    assert world.seen() == before


PARTS: Final = st.sampled_from(["..", ".", "a", "b", "held", "mine", "code", "/", "//"])
NAMES: Final = st.lists(PARTS, max_size=7).map("/".join)


def _open(overlay: Overlay, path: str) -> None:
    place = overlay.place_of(path, os.O_WRONLY | os.O_CREAT)
    if place is not None:
        Path(place).write_bytes(b"opened")


def _call(name: str, *args: Any) -> Callable[[Overlay, str], None]:
    """A function of `os` on this path, as the agent calls it in a replay."""

    def write(overlay: Overlay, path: str) -> None:
        if overlay.locate(path) is not None:
            overlay.handlers()[name](getattr(os, name), path, *args)

    return write


def _link_to(overlay: Overlay, path: str) -> None:
    if overlay.locate(path) is not None:
        overlay.handlers()["symlink"](os.symlink, "../mine/held", path)


WRITES: Final[tuple[Callable[[Overlay, str], Any], ...]] = (
    lambda overlay, path: overlay.put(path, b"written"),
    lambda overlay, path: overlay.have(path + "/in", "file"),
    _open,
    lambda overlay, path: Path(overlay.take(path)).write_bytes(b"taken") if overlay.locate(path) else None,
    *(_call("chmod", 0o700), _call("truncate", 1), _call("utime", (5, 5)), _call("lchown", -1, -1)),
    *(_call("mkdir"), _link_to, _call("unlink"), _call("rmdir")),
)


def _entry(base: str) -> st.SearchStrategy[dict[str, Any]]:
    targets = st.builds(lambda start, rest: start + rest, st.sampled_from(["", base, f"{base}/mine"]), NAMES)
    return st.sampled_from([FILE, FOLDER]) | targets.map(link)


@settings(
    max_examples=int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60")) // 2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(choices=st.data())
def test_r8_no_recorded_path_leaves_the_overlay(
    tmp_path_factory: pytest.TempPathFactory, choices: st.DataObject
) -> None:
    """Random files, folders and links at random paths, and the agent's later writes through them, stay inside."""
    world = World(tmp_path_factory.mktemp("any"))
    base = str(world.base)
    paths = st.builds(lambda start, rest: start + "/" + rest, st.sampled_from([base, f"{base}/mine", "", "a"]), NAMES)
    entries = st.dictionaries(paths, _entry(base), max_size=4)
    states = choices.draw(st.lists(st.tuples(paths, entries), max_size=4))
    before = world.seen()
    lay(world, recorded(*states))
    for path in choices.draw(st.lists(paths, max_size=4)):
        whole = path if path.startswith("/") else f"{base}/{path}"
        for write in WRITES:
            with contextlib.suppress(OSError, ValueError):
                write(world.overlay, whole)
    assert world.seen() == before


def test_r8_a_recorded_link_shows_what_is_recorded_behind_it(tmp_path: Path) -> None:
    """A path below a recorded link is found by both its names, in the overlay alone."""
    world = World(tmp_path)
    code, mine = str(world.code), str(world.mine)
    lay(world, recorded((code, {"": FOLDER, "a": link(mine), "a/held": FILE})))
    for name in (f"{code}/a/held", f"{mine}/held"):
        assert Path(world.overlay.find(name)).read_bytes() == b"hostile"
    assert (world.mine / "held").read_bytes() == HELD
