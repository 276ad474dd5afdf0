"""What a replay's overlay begins with: the agent's state beside its code, as it was before the run changed it.

The recording has it in its calls (`seams/machine/files/state.py`): each path with its content, a folder with all in it.
It is laid before the agent starts, so that reads before the change find it too, and in the place of what the world has
there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay import codec
from spanreplay.model.code_state import AT, ENTRIES
from spanreplay.model.json_text import load
from spanreplay.runtime.process import environment
from spanreplay.runtime.process.surroundings import find_shown

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Recording
    from spanreplay.replayer.sandbox.scratch import Scratch
    from spanreplay.runtime.process.surroundings import Surroundings

_LOOKUP: Final = "lookup"


def lay(
    scratch: Scratch, recording: Recording, surroundings: Surroundings, open_response: Callable[[CallRecord], str]
) -> None:
    """Put the recorded state into an overlay that is not in place yet; what came first of a path counts.

    `open_response` gives the response of a call as it is served.
    """
    laid: set[str] = set()
    for name, entries in _recorded(recording, open_response):
        place = _clean(find_shown(name, surroundings), recording)
        if place in laid:
            continue
        for below, entry in sorted(entries.items()):
            path = os.path.join(place, below) if below else place  # noqa: PTH118 -- text
            if path not in laid:
                laid.add(path)
                _put(scratch, path, entry)


def _recorded(
    recording: Recording, open_response: Callable[[CallRecord], str]
) -> Iterator[tuple[str, Mapping[str, Mapping[str, Any]]]]:
    for call in recording.calls:
        if call.name != _LOOKUP or f'"{ENTRIES}"' not in call.response:
            continue
        value = load(open_response(call)).get("value")
        found = codec.decode(value) if value is not None else None
        if isinstance(found, dict) and isinstance(found.get(ENTRIES), dict):
            yield str(found[AT]), found[ENTRIES]


def _clean(path: str, recording: Recording) -> str:
    """A recorded path in the folders of now, without the links of the folders around it."""
    then, argv = recording.root.env.get("folders"), [str(each) for each in recording.root.env.get("argv") or ()]
    if isinstance(then, Mapping):
        here = environment.find_folders(argv)
        pairs = sorted(((str(then[n]), here[n]) for n in ("code", "cwd") if then.get(n) and n in here), reverse=True)
        for recorded, now in pairs:
            if path == recorded or path.startswith(recorded + os.sep):
                path = now + path[len(recorded) :]
                break
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 -- text


def _put(scratch: Scratch, path: str, entry: Mapping[str, Any]) -> None:
    ours, kind = scratch.above(path), entry["kind"]
    if kind == "other" or (entry.get("is_too_large") and scratch.real.exists(path)):
        return
    scratch.hide(path)
    if scratch.real.exists(ours) and kind != "directory":
        return
    scratch.real.makedirs(ours if kind == "directory" else os.path.dirname(ours), exist_ok=True)  # noqa: PTH120 -- text
    if kind == "link":
        scratch.real.symlink(entry["target"], ours)
        return
    if kind == "file":
        with open(ours, "wb") as target:  # noqa: PTH123 -- no call
            target.write(entry.get("content", b""))
        os.utime(ours, ns=tuple(entry["times"]))
    os.chmod(ours, entry["mode"] | (0o700 if kind == "directory" else 0o600))  # noqa: PTH101 -- text
