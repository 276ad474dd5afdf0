"""The initial content of a replay's overlay: the agent's state beside its code, as it was before the run changed it.

The recording contains it in its calls (`seams/machine/files/state.py`): each path with its content, each folder with
everything in it. It is placed before the agent starts, so that reads before the change find it too, and replaces the
world's files. If the run's file queries (existence, size, times) were not recorded, the data files that it read are
placed, too, so that the replay's queries find them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay import codec
from spanreplay.model.call import Effect
from spanreplay.model.code_state import AT, CONTENT, ENTRIES, TIMES
from spanreplay.model.json_text import load
from spanreplay.runtime.process import environment
from spanreplay.runtime.process.surroundings import find_shown

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Recording
    from spanreplay.replayer.sandbox.scratch import Scratch
    from spanreplay.runtime.process.surroundings import Surroundings

_LOOKUP: Final = "lookup"
_OPEN: Final = "open"
_MODE: Final = 0o644


def lay(
    scratch: Scratch,
    recording: Recording,
    surroundings: Surroundings,
    open_response: Callable[[CallRecord], str],
    *,
    with_reads: bool = False,
    after: Collection[str] = (),
    is_after: bool = False,
) -> None:
    """Put the recorded state into an overlay that is not in place yet; the first entry of a path counts.

    `open_response` returns the response of a call as served. `with_reads` also places the data files that were read.
    `after` are paths that the start of a unit's process makes: what a unit found there is omitted, or, with `is_after`,
    only that is placed, after the start.
    """
    laid: set[str] = set()
    for name, entries in _recorded(recording, open_response, with_reads=with_reads):
        place = _clean(find_shown(name, surroundings), recording)
        if place in laid or _is_below(place, after) != is_after:
            continue
        for below, entry in sorted(entries.items()):
            path = scratch.settle(os.path.join(place, below) if below else place)  # noqa: PTH118 -- text
            if path not in laid:
                laid.add(path)
                _put(scratch, path, entry)


def _is_below(path: str, folders: Collection[str]) -> bool:
    return any(path == each or path.startswith(each + os.sep) for each in folders)


def _recorded(
    recording: Recording, open_response: Callable[[CallRecord], str], *, with_reads: bool
) -> Iterator[tuple[str, Mapping[str, Mapping[str, Any]]]]:
    for call in recording.calls:
        if call.effect == Effect.IRREVERSIBLE.value:
            with_reads = False  # after a program ran, a file that is read may be its output
        if with_reads and call.name == _OPEN and f'"{TIMES}"' in call.response:
            yield from _read(call, open_response)
        if call.name != _LOOKUP or f'"{ENTRIES}"' not in call.response:
            continue
        value = load(open_response(call)).get("value")
        found = codec.decode(value) if value is not None else None
        if isinstance(found, dict) and isinstance(found.get(ENTRIES), dict):
            yield str(found[AT]), found[ENTRIES]


def _read(
    call: CallRecord, open_response: Callable[[CallRecord], str]
) -> Iterator[tuple[str, Mapping[str, Mapping[str, Any]]]]:
    """Yield a data file as it was when read."""
    value, arguments = load(open_response(call)).get("value"), load(call.request).get("arguments")
    found = codec.decode(value) if value is not None else None
    if isinstance(found, dict) and isinstance(arguments, dict) and isinstance(found.get(CONTENT), bytes):
        entry = {"kind": "file", "mode": _MODE, CONTENT: found[CONTENT], TIMES: found[TIMES]}
        yield str(arguments["path"]), {"": entry}


def _clean(path: str, recording: Recording) -> str:
    """Translate a recorded path to the current folders, with the links of its parent folders resolved."""
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
    if scratch.real.exists(ours) and (kind != "directory" or scratch.is_link(path)):
        return
    scratch.real.makedirs(ours if kind == "directory" else os.path.dirname(ours), exist_ok=True)  # noqa: PTH120 -- text
    if kind == "link":
        scratch.real.symlink(entry["target"], ours)
        return
    if kind == "file":
        with open(ours, "wb") as target:  # noqa: PTH123 -- not an agent's call
            target.write(entry.get(CONTENT, b""))
        os.utime(ours, ns=tuple(entry[TIMES]))
    os.chmod(ours, entry["mode"] & 0o777 | (0o700 if kind == "directory" else 0o600))  # noqa: PTH101 -- text
