"""Seam: reads of file metadata by the agent's code, without opening the file: existence, size, a folder's names.

As with `open` (`files.py`), code is not data: metadata of the code tree, the interpreter and its packages is read as it
is. Every other metadata read is a call; in a replay its answer comes from the recording, even if the file does not
exist. Files that the process itself has made, changed or removed are not inputs: the agent gets their present
metadata, and only what the machine chooses is as recorded: times, and the numbers of the file and its device, which an
index of files keeps.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import Patch, read, recorded_run, replace_in_os
from spanreplay.runtime.caller.caller import FOREIGN, LIBRARY, looks_for_itself, who_looks
from spanreplay.runtime.caller.places import is_input
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.dir_entries import Listed, LookedEntry, kind_of
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.runtime.reads import source
from spanreplay.seams.machine.files.by_others import is_by_others, note_missing
from spanreplay.seams.machine.files.descriptors import path_of, resolve

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

_getframe: Final = sys._getframe
_ERRNO: Final = "errno"
_TOO_MANY: Final = "too_many"
_NUMBERS: Final = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size")
"""A `stat_result`, as a tuple, begins with them; three times in whole seconds follow."""
_TIMES: Final = ("st_atime", "st_mtime", "st_ctime")
_OTHERS: Final = ("st_blksize", "st_blocks", "st_rdev")
_CHOSEN: Final = (*(f"{name}_ns" for name in _TIMES), "st_ino", "st_dev", *_OTHERS[:2])
"""What the machine chooses for a file; older recordings have only the times."""
_CHOSEN_OF_FOLDER: Final = ("st_nlink", "st_size")
"""What it chooses for a folder as well: both depend on everything else in it, and on the file system."""
NUMBERS: Final = source("clock", "os.stat.times", is_loose=True)
NUMBERS_OF_OPEN: Final = source("clock", "os.fstat.times", is_loose=True)
_OF_HERE: Final = frozenset({"listdir", "scandir"})
"""They return a folder's names; without a path, those of the working directory."""


def run_that_sees() -> Run | None:
    """Return the run for which metadata reads are calls here; None inside a call, and if the recording has none."""
    run = recorded_run()
    if run is None or run.written is None or not run.written.sees_looks or run.written.is_outside():
        return None
    return run


def pack_stat(result: os.stat_result) -> dict[str, int]:
    """Return a `stat_result` as JSON; times in nanoseconds."""
    packed = {name: getattr(result, name) for name in (*_NUMBERS, *_OTHERS) if hasattr(result, name)}
    return {**packed, **{f"{name}_ns": getattr(result, f"{name}_ns") for name in _TIMES}}


def unpack_stat(packed: dict[str, int]) -> os.stat_result:
    """Return the `stat_result` that `pack_stat` packed."""
    times = {name: packed[f"{name}_ns"] for name in _TIMES}
    more: dict[str, Any] = {name: packed[name] for name in _OTHERS if name in packed}
    more.update({name: ns / 10**9 for name, ns in times.items()} | {f"{name}_ns": ns for name, ns in times.items()})
    return os.stat_result((*(packed[name] for name in _NUMBERS), *(ns // 10**9 for ns in times.values())), more)


def _answer(find: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Wrap `find` so that an OSError, such as a missing file, is an answer like others and not the agent's error."""

    def ask() -> dict[str, Any]:
        try:
            with unwatched():
                return find()
        except OSError as exc:
            if exc.errno is None:
                raise
            return {_ERRNO: exc.errno}

    return ask


def _look(name: str, path: Any, find: Callable[[], dict[str, Any]], looker: int, **more: Any) -> Any:
    """Return a recorded or served answer; None if this is not a call. Raises: OSError as the real function does."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    run = None if looker == FOREIGN else run_that_sees()
    if run is None or run.written is None:
        return None
    text = resolve(run, os.fsdecode(path), None)
    with unwatched():
        is_own = name not in _OF_HERE and run.written.touched.has(text)  # others may put files into an own folder
        is_none = is_own or not is_input(text, by_library=looker == LIBRARY)
        if is_none and not is_by_others(run, text, name):
            note_missing(run, text)
            return None
    arguments = {"path": run.written.name(text), **more}
    answer = call_sync(lambda: FunctionCall(Kind.TOOL.value, name, Effect.READ.value, arguments), _answer(find))
    if _ERRNO in answer:
        raise OSError(answer[_ERRNO], os.strerror(answer[_ERRNO]), os.fspath(path))
    if _TOO_MANY in answer:
        reason = f"the agent listed {arguments['path']!r}, which holds more than {config.LISTED_NAMES_MAX} names"
        run.resolver.leave_out(reason, f"{reason}: they were not recorded")
        return None
    return answer


def _as_recorded(path: Any, found: os.stat_result) -> os.stat_result:
    """Return a file's metadata, with the recorded times and numbers if the run itself has made or changed the file."""
    run = run_that_sees()
    if run is None or run.written is None or not isinstance(path, (int, str, bytes, os.PathLike)):
        return found
    is_open = isinstance(path, int)
    with unwatched():
        name = path_of(run, path) if isinstance(path, int) else os.fsdecode(path)
        if not name or not run.written.touched.has(name):
            return found
    packed = pack_stat(found)
    chosen = (*_CHOSEN, *_CHOSEN_OF_FOLDER) if stat.S_ISDIR(found.st_mode) else _CHOSEN
    numbers = read(NUMBERS_OF_OPEN if is_open else NUMBERS, lambda: [packed.get(each, 0) for each in chosen])
    if len(numbers) != len(chosen):  # of a file, where there is a folder now
        chosen = chosen[: len(_TIMES)]
    return unpack_stat({**packed, **dict(zip(chosen, numbers, strict=False))})


class Looks:
    """The functions of `os` that read file metadata, as the agent's code calls them."""

    def __init__(self, reals: dict[str, Callable[..., Any]]) -> None:
        self.reals = reals

    def stat(self, frame: FrameType, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Same as `os.stat`."""
        return self._stat("stat", frame, path, *args, **kwargs)

    def lstat(self, frame: FrameType, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Same as `os.lstat`."""
        return self._stat("lstat", frame, path, *args, **kwargs)

    def _stat(self, name: str, frame: FrameType, path: Any, *args: Any, **kwargs: Any) -> Any:
        real = self.reals[name]
        looker = FOREIGN if args or not {"follow_symlinks"}.issuperset(kwargs) else who_looks(frame)
        if looker == FOREIGN:
            return real(path, *args, **kwargs)
        shown = name if kwargs.get("follow_symlinks", True) else "lstat"
        answer = _look(shown, path, lambda: pack_stat(real(path, **kwargs)), looker)
        return _as_recorded(path, real(path, **kwargs)) if answer is None else unpack_stat(answer)

    def fstat(self, frame: FrameType, fd: Any) -> Any:
        """Same as `os.fstat`."""
        found = self.reals["fstat"](fd)
        return found if who_looks(frame) == FOREIGN else _as_recorded(fd, found)

    def access(self, frame: FrameType, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Same as `os.access`."""
        real = self.reals["access"]
        if len(args) + len(kwargs) != 1 or not {"mode"}.issuperset(kwargs):
            return real(path, *args, **kwargs)
        mode = args[0] if args else kwargs["mode"]
        answer = _look("access", path, lambda: {"value": bool(real(path, mode))}, who_looks(frame), mode=mode)
        return real(path, mode) if answer is None else answer["value"]

    def readlink(self, frame: FrameType, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Same as `os.readlink`."""
        real = self.reals["readlink"]
        if args or kwargs:
            return real(path, *args, **kwargs)
        answer = _look("readlink", path, lambda: {"value": os.fsdecode(real(path))}, who_looks(frame))
        return real(path) if answer is None else _like(path, answer["value"])

    def listdir(self, frame: FrameType, path: Any) -> Any:
        """Same as `os.listdir`."""
        real = self.reals["listdir"]
        answer = _look("listdir", path, lambda: _limited([os.fsdecode(each) for each in real(path)]), who_looks(frame))
        if answer is None:
            return real(path)
        return [_like(path, name) for name in _with_own(path, answer["names"])[0]]

    def scandir(self, frame: FrameType, path: Any) -> Any:
        """Same as `os.scandir`."""
        real = self.reals["scandir"]

        def find() -> dict[str, Any]:
            with real(path) as entries:
                return _limited([[os.fsdecode(each.name), kind_of(each)] for each in entries])

        answer = _look("scandir", path, find, who_looks(frame))
        if answer is None:
            return real(path)
        kinds: dict[str, str] = dict(answer["names"])
        names, own = _with_own(path, list(kinds))
        folder = os.fspath(path)
        return Listed([LookedEntry(self, folder, name, "" if name in own else kinds[name]) for name in names])


def _like(path: Any, text: str) -> Any:
    """Return text in the type of path."""
    return os.fsencode(text) if isinstance(path, bytes) else text


def _limited(names: list[Any]) -> dict[str, Any]:
    return {"names": names} if len(names) <= config.LISTED_NAMES_MAX else {_TOO_MANY: len(names)}


def _with_own(path: Any, names: list[str]) -> tuple[list[str], frozenset[str]]:
    """Return a folder's recorded names merged with those this process has there now; and those that it has touched."""
    run = recorded_run()
    own = frozenset() if run is None or run.written is None else run.written.touched.names_in(os.fsdecode(path))
    here = {name for name in own if os.path.lexists(os.path.join(os.fsdecode(path), name))}  # noqa: PTH118 -- text
    found = [name for name in names if name not in own or name in here]
    return [*found, *sorted(here.difference(found))], own


# ── Installation ────────────────────────────────────────────────────────────────────────────────────
def _replace(patches: Patches, name: str, handler: Callable[..., Any]) -> None:
    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        if looks_for_itself(_getframe(1)):
            return patch.__wrapped__(*args, **kwargs)
        given = "fd" if name == "fstat" else "path"
        if not args and given in kwargs:
            args = (kwargs.pop(given),)
        if not args and name in _OF_HERE:
            args = (".",)
        return handler(_getframe(1), *args, **kwargs)

    replace_in_os(patches, name, call)


def install(module: Any, patches: Patches) -> None:
    """Patch the functions of `os` that read file metadata."""
    looked = ("stat", "lstat", "fstat", "access", "readlink", "listdir", "scandir")
    names = [name for name in looked if hasattr(module, name)]
    looks = Looks({name: getattr(module, name) for name in names})
    for name in names:
        _replace(patches, name, getattr(looks, name))
