"""Changes that the agent's code makes to files: noted by path; what was there before is an input.

A replay begins with what was there: if the machine lacks the folder, a file is written into it all the same, and an
inbox whose files the recorded run has moved away still holds them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config, guard
from spanreplay.model.call import Effect, Kind
from spanreplay.model.code_state import APPENDS, CONTENT, KEEPS, NAMES, NOTHING, REPLACES, TIMES
from spanreplay.runtime.agent_patches import Patch, install_patch, recorded_run, replace_in_os
from spanreplay.runtime.caller.places import DEVICES, asks_for, is_input, places
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.noted_effects import APPENDED_CONTENT
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.seams.machine.clock.temporary import asks_for_temporary, is_tempfile
from spanreplay.seams.machine.files import path_effects
from spanreplay.seams.machine.files.appended import fill_appended
from spanreplay.seams.machine.files.by_others import is_by_others
from spanreplay.seams.machine.files.descriptors import resolve
from spanreplay.seams.machine.files.path_effects import note_change
from spanreplay.seams.machine.outside.device_reads import note_open
from spanreplay.seams.machine.outside.watch import describe_read

if TYPE_CHECKING:
    from spanreplay.runtime.contributors import Files
    from spanreplay.runtime.run import Run

_getframe: Final = sys._getframe
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_RDWR
_NAMELESS: Final = getattr(os, "O_TMPFILE", -1)
"""Opens a file without a name: the path is that of the folder, which does not change."""
_APPENDING: Final = dict.fromkeys(("a", "ab", "ba", "at", "ta"), APPENDS)


def run_of_files() -> Run | None:
    """Return the run whose files are noted here; None inside a call."""
    run = recorded_run()
    return None if run is not None and run.written is not None and run.written.is_outside() else run


def name_of(run: Run, path: str) -> str:
    """Return a path as calls name it."""
    return path if run.written is None else run.written.name(path)


def read_content(run: Run, real: Any, path: Any, what: str) -> dict[str, Any]:
    """Return a file's content and hash as the answer of a call; notes a hole if it is too large. `real` is `open`.

    If metadata reads are not recorded, the answer includes its times too (access and change, ns).
    """
    with real(path, "rb") as source:
        content = source.read(config.FILE_BYTES_MAX + 1)
        found = None if "looks" in run.level else os.fstat(source.fileno())
    if len(content) > config.FILE_BYTES_MAX:
        run.hole(f"the agent {what} {os.fsdecode(path)!r}, which is larger than {config.FILE_BYTES_MAX} bytes")
        return {"is_too_large": True}
    answer = {"sha256": hashlib.sha256(content).hexdigest(), CONTENT: content}
    return answer if found is None else {**answer, TIMES: [found.st_atime_ns, found.st_mtime_ns]}


def _seed(run: Run, real: Any, path: str, mode: str) -> None:
    """Record a data file as an input before it is changed in place; a replay begins with that content."""
    is_live = False

    def live() -> dict[str, Any]:
        nonlocal is_live
        is_live = True
        return read_content(run, real, path, "changed")

    arguments = {"path": name_of(run, path), "mode": mode}
    value = call_sync(lambda: FunctionCall(Kind.TOOL.value, "open", Effect.READ.value, arguments), live)
    if not is_live and run.overlay is not None and CONTENT in value:
        run.overlay.put(path, value[CONTENT])


def _kind_at(look: Callable[[str], os.stat_result], path: str) -> str:
    try:
        mode = look(path).st_mode
    except OSError:
        return ""
    return "directory" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


def look_before(run: Run, path: str, how: str = KEEPS) -> str:
    """Return what is at a path that the agent is about to change: `file`, `directory`, `link` or '' for nothing.

    Outside the code tree, the first time that the process changes a path, this is a call; in a replay the overlay then
    has the same there, and the same kind of folder around it. Inside the code tree, `state.py` records it; `how` is the
    kind of change. Raises: ReplayMiss.
    """
    written = run.written
    with unwatched():
        there = _kind_at(os.lstat, path)
        if written is None or not written.sees_looks or written.touched.has(path):
            return there
        is_inside = not is_input(path)
    if is_inside:
        if written.state is not None:
            written.state.begin(run, path, there, how)
        return there
    with unwatched():
        folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120 -- text
        if not there and written.touched.has_made(folder):
            return there
    arguments = {"path": written.name(path)}
    found = call_sync(
        lambda: FunctionCall(Kind.TOOL.value, "lookup", Effect.READ.value, arguments),
        lambda: {"folder": _kind_at(os.stat, folder), "there": there},
    )
    if run.overlay is not None:
        run.overlay.have(folder, found["folder"])
        run.overlay.have(path, found["there"])
    return str(found["there"])


def note_write(run: Run, real: Any, path: str, mode: str) -> None:
    """Note that the agent is about to open a file for writing; `real` is `open`. Raises: ReplayMiss."""
    written = run.written
    if written is None:
        return
    if written.has(path):
        if "w" not in mode and is_by_others(run, path, "open"):
            _seed(run, real, path, mode)
        guard.guarded("noting a file", functools.partial(written.add_again, path, is_new="w" in mode))
        return
    changes = "+" in mode and not set(mode) & set("wx")
    if changes and "a" not in mode and places().is_data(path):
        _seed(run, real, path, mode)
    elif look_before(run, path, _how(mode)) and "x" in mode:
        return  # opening it fails
    guard.guarded("noting a file", functools.partial(written.add, path, is_append="a" in mode))
    if changes and "a" in mode:
        fill_appended(run, real, path)


def _how(mode: str) -> str:
    return NOTHING if "x" in mode else REPLACES if "w" in mode else _APPENDING.get(mode, KEEPS)


def note_log(path: str) -> None:
    """Note that the agent's log is about to be opened, so that a replay has the same folder. Raises: ReplayMiss."""
    run = run_of_files()
    if run is not None and not path.startswith(DEVICES):
        look_before(run, path, NAMES)


def note_made(path: str) -> None:
    """Note that code other than the agent's is about to write a file, which is therefore not an input of the run."""
    run = run_of_files()
    if run is not None and run.written is not None:
        _note_made(run, run.written, path)


def _note_made(run: Run, written: Files, path: str) -> None:
    """Note a file as made by the run; if it did not exist before, a replay begins without it."""
    with unwatched():
        if written.state is not None and not written.touched.has(path) and not os.path.lexists(path):
            written.state.note_absent(path)
    written.touched.add(path)


def _begin_temporary(run: Run, frame: FrameType, path: str) -> None:
    """Prepare for a temporary file that is about to be made: a replay has its folder, and its recorded name is free."""
    if not is_tempfile(frame) or run.written is None:
        return
    if not run.written.is_temporary(path):
        if asks_for_temporary(frame):
            look_before(run, path)
    elif run.overlay is not None:
        run.overlay.have(path, "")


def _open_descriptor(real: Any, frame: FrameType, path: Any, flags: int, folder: int | None) -> None:
    run = run_of_files()
    if run is None or run.written is None or not isinstance(path, (str, bytes, os.PathLike)):
        return
    name = resolve(run, os.fsdecode(path), folder)
    if name.startswith(DEVICES) or flags & _NAMELESS == _NAMELESS:
        return
    if not asks_for(frame, name):
        if flags & _WRITE_FLAGS:
            _begin_temporary(run, frame, name)
            made = functools.partial(_note_made, run, run.written)
            guard.guarded("noting a file", run.written.touched.add if is_tempfile(frame) else made, name)
            if is_tempfile(frame) and flags & os.O_CREAT and asks_for_temporary(frame):
                guard.guarded("noting a file", run.written.add_temporary, name)
    elif flags & _WRITE_FLAGS:
        if run.written.has(name):
            again = functools.partial(run.written.add_again, name, is_new=bool(flags & os.O_TRUNC))
            guard.guarded("noting a file", again)
            return
        there = look_before(run, name, _how_of_flags(flags))
        if there and flags & os.O_EXCL:
            return  # opening it fails
        keeps = there == "file" and flags & os.O_RDWR and _how_of_flags(flags) == KEEPS and is_input(name)
        if keeps and run.resolver.has(APPENDED_CONTENT):
            _seed(run, real, name, "r+")
        guard.guarded("noting a file", functools.partial(run.written.add, name, is_append=bool(flags & os.O_APPEND)))
    elif run.written.has(name):
        fill_appended(run, real, name)
    else:
        if describe_read(name, flags):
            _read_by_descriptor(run, real, name)
        else:
            guard.guarded("watching", note_open, run, frame, name)


def _read_by_descriptor(run: Run, real: Any, path: str) -> None:
    """Record a data file opened by descriptor as an input; a replay has the same file there, or none.

    The whole content is recorded, because reads of memory-mapped files can't be observed. Raises: ReplayMiss.
    """
    is_live = False

    def live() -> dict[str, Any]:
        nonlocal is_live
        is_live = True
        with unwatched():
            is_there = os.path.isfile(path)  # noqa: PTH113 -- the real one; opening a pipe would block
        try:
            return read_content(run, real, path, "read") if is_there else {"there": ""}
        except OSError:
            return {"there": "file"}  # opening it says why

    arguments = {"path": name_of(run, path), "mode": "rb"}
    value = call_sync(lambda: FunctionCall(Kind.TOOL.value, "open", Effect.READ.value, arguments), live)
    if is_live or run.overlay is None:
        return
    if CONTENT in value:
        run.overlay.put(path, value[CONTENT])
    elif "is_too_large" in value:
        run.resolver.leave_out(f"the content of {path!r} was not recorded: it was too large")
    elif not value.get("there"):
        run.overlay.have(path, "")


def _how_of_flags(flags: int) -> str:
    if flags & os.O_EXCL:
        return NOTHING
    return REPLACES if flags & os.O_TRUNC else APPENDS if flags & os.O_APPEND else KEEPS


# ── Functions that change a path: (run, written, path, …) before the real function ───────────────────
def _remove(run: Run, written: Files, real: Any, path: str) -> None:
    look_before(run, path, REPLACES)
    guard.guarded("what a file held", written.end, path)
    written.touched.add(path)


def _remove_folder(run: Run, written: Files, real: Any, path: str) -> None:
    with unwatched():
        is_full = os.path.isdir(path) and bool(os.listdir(path))  # noqa: PTH112, PTH208 -- text
    look_before(run, path, NOTHING if is_full else REPLACES)
    written.touched.add(path)


def _make(run: Run, written: Files, real: Any, path: str) -> None:
    if not look_before(run, path, NOTHING):
        written.touched.add_directory(path)
        written.add_directory(path)


def _change(run: Run, written: Files, real: Any, path: str) -> None:
    is_folder = os.path.isdir(path)  # noqa: PTH112 -- text
    look_before(run, path, NOTHING if is_folder else KEEPS)


def _cut(run: Run, written: Files, real: Any, path: str) -> None:
    note_write(run, real, path, "r+")


def _add(run: Run, written: Files, real: Any, target: str) -> None:
    look_before(run, target, NOTHING)
    written.touched.add(target)


def _move(run: Run, written: Files, real: Any, source: str, target: str) -> None:
    is_own = written.touched.has(source) or written.has(source)
    if look_before(run, source) == "file" and not is_own and is_input(source):
        _seed(run, real, source, "move")
    look_before(run, target, REPLACES)
    written.move(source, target)
    written.touched.add(source)
    written.touched.add(target)


_ONE: Final[dict[str, Callable[..., None]]] = {
    "remove": _remove, "unlink": _remove, "rmdir": _remove_folder, "mkdir": _make, "chmod": _change, "utime": _change,
    "truncate": _cut, "mkfifo": _add, "mknod": _add,
}  # fmt: skip
_TWO: Final[dict[str, Callable[..., None]]] = {"rename": _move, "replace": _move}
_SECOND: Final[dict[str, Callable[..., None]]] = {"symlink": _add, "link": _add}


def folders_of(kwargs: Mapping[str, Any], *, takes_two: bool) -> tuple[Any, ...]:
    """Return the open folders to which the paths of a change are relative, each or None."""
    if takes_two:
        return kwargs.get("src_dir_fd"), kwargs.get("dst_dir_fd")
    return (kwargs.get("dir_fd", kwargs.get("dst_dir_fd")),)


def _before(
    handler: Callable[..., None], real_open: Any, frame: FrameType, paths: Sequence[Any], folders: Sequence[Any]
) -> None:
    """Note a change by the agent; for a change by other code, only that the path is not an input."""
    run = run_of_files()
    if run is None or run.written is None or not all(isinstance(p, (str, bytes, os.PathLike)) for p in paths):
        return
    names = [resolve(run, os.fsdecode(each), folder) for each, folder in zip(paths, folders, strict=True)]
    if any(each.startswith(DEVICES) or "\0" in each for each in names):
        return
    if asks_for(frame, *names) and not _is_removing_tree(frame):
        handler(run, run.written, real_open, *names)
    elif handler is _make:
        _begin_temporary(run, frame, names[0])
        if not os.path.lexists(names[0]):
            if run.written.state is not None and not is_tempfile(frame) and not run.written.touched.has(names[0]):
                run.written.state.note_absent(names[0])
            run.written.touched.add_directory(names[0])
    elif handler is not _change:
        for each in names:
            if handler is _remove:
                guard.guarded("what a file held", run.written.end, each)
            guard.guarded("noting a file", _note_made, run, run.written, each)


def _is_removing_tree(frame: FrameType) -> bool:
    return "rmtree" in frame.f_code.co_name


def _install_one(patches: Patches, module: Any, name: str, handler: Callable[..., None], real_open: Any) -> None:
    real, takes_two, is_second = getattr(module, name), name in _TWO, name in _SECOND

    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        paths = args[:2] if takes_two else args[1:2] if is_second else args[:1]
        if paths:
            _before(handler, real_open, _getframe(1), paths, folders_of(kwargs, takes_two=takes_two))
        if args:
            note_change(name, _getframe(1), args, kwargs)
        return real(*args, **kwargs)

    replace_in_os(patches, name, call)


def _install_rmtree(patches: Patches, module: Any) -> None:
    real = module.rmtree

    def rmtree(patch: Patch, path: Any, *args: Any, **kwargs: Any) -> Any:
        _before(_remove, None, _getframe(1), (path,), folders_of(kwargs, takes_two=False))
        note_change("rmtree", _getframe(1), (path,), kwargs)
        run = run_of_files()
        if run is not None and run.overlay is not None and kwargs.get("dir_fd") is not None:
            path = resolve(run, os.fsdecode(path), kwargs.pop("dir_fd"))  # ours can't work relative to an open folder
        return real(path, *args, **kwargs)

    patch = Patch("shutil", "rmtree", real)
    vars_of_real = getattr(real, "avoids_symlink_attacks", None)
    install_patch(patches, module, "rmtree", rmtree, patch)
    if vars_of_real is not None:
        rmtree.avoids_symlink_attacks = vars_of_real  # type: ignore[attr-defined]  # callers read it there


def install(module: Any, patches: Patches) -> None:
    """Patch the functions of `os` that make, change, move and remove files, or `shutil.rmtree`."""
    if module is not os:
        _install_rmtree(patches, module)
        return
    opening, real_open = module.open, open

    def open_descriptor(patch: Patch, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        _open_descriptor(real_open, _getframe(1), path, flags, dir_fd)
        if flags & os.O_CREAT and not isinstance(path, int):
            note_change("open", _getframe(1), (path, flags, mode), {"dir_fd": dir_fd})
        return opening(path, flags, mode, dir_fd=dir_fd)

    replace_in_os(patches, "open", open_descriptor)
    path_effects.install(module, patches)
    for handlers in (_ONE, _TWO, _SECOND):
        for name, handler in handlers.items():
            if hasattr(module, name):
                _install_one(patches, module, name, handler, real_open)
