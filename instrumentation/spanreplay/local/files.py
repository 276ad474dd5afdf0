"""Seam: data files that the agent's code reads with `open` or `pathlib`.

Code is not data: files of the agent's code tree (the git work tree of its script, else the script's folder), of the
interpreter and of its packages are read as they are, so that an edited prompt shows as a changed call. Every other
regular file is a call, with its content; in a replay the content comes from the recording through the classes of `io`.
A file that the run itself has written is no input, and what it leaves behind is compared (`written.py`).
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from spanreplay import config, guard
from spanreplay._patch import Patches
from spanreplay.call import Effect, Kind
from spanreplay.leaf import Leaf, call_sync
from spanreplay.local.leaks import note, unwatched
from spanreplay.local.origin import asks_for_files
from spanreplay.local.patching import Patch, install_patch, recorded_run
from spanreplay.local.places import DEVICES, forget_places, places
from spanreplay.local.watch import describe_read
from spanreplay.local.written import Written
from spanreplay.run import Run

_getframe: Final = sys._getframe
_READING: Final = frozenset({"r", "rb", "br", "rt", "tr"})
_WRITING: Final = frozenset("wax+")


class RecordedFile(io.RawIOBase):
    """Recorded content as a raw file: what `io` builds its buffered and text files on."""

    def __init__(self, content: bytes, name: Any) -> None:
        super().__init__()
        self._content = io.BytesIO(content)
        self.name = name
        self.mode = "rb"

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer from the content."""
        return self._content.readinto(buffer)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move within the content."""
        return self._content.seek(offset, whence)

    def tell(self) -> int:
        """The place in the content."""
        return self._content.tell()


def open_recorded(
    content: bytes, file: Any, mode: str, buffering: int, encoding: Any, errors: Any, newline: Any
) -> Any:
    """What `open` gives, with recorded content. Raises: ValueError as `open` does."""
    raw = RecordedFile(content, file)
    if "b" in mode:
        if buffering == 0:
            return raw
        return io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    text = io.TextIOWrapper(io.BufferedReader(raw), encoding, errors, newline, buffering == 1)
    text.mode = mode  # type: ignore[misc]  # as `open` does
    return text


def _name(run: Run, path: str) -> str:
    return path if run.written is None else run.written.name(path)


def _ask(run: Run, real: Any, path: str, given: tuple[Any, ...]) -> Any:
    file, mode, buffering, encoding, errors, newline = given
    is_live = False

    def live() -> dict[str, Any]:
        nonlocal is_live
        is_live = True
        with real(file, "rb") as source:
            content = source.read(config.FILE_BYTES_MAX + 1)
        if len(content) > config.FILE_BYTES_MAX:
            run.hole(f"the agent read {path!r}, which is larger than {config.FILE_BYTES_MAX} bytes")
            return {"is_too_large": True}
        return {"sha256": hashlib.sha256(content).hexdigest(), "content": content}

    def describe() -> Leaf:
        return Leaf(Kind.TOOL.value, "open", Effect.READ.value, {"path": _name(run, path), "mode": mode})

    value = call_sync(describe, live)
    if is_live:
        with unwatched():
            return real(file, mode, buffering, encoding, errors, newline)
    if "content" not in value and run.session is not None:
        raise run.session.broken(f"the content of {path!r} was not recorded: it was too large")
    return open_recorded(value["content"], *given)


def _seed(run: Run, real: Any, path: str, mode: str) -> None:
    """A data file that is changed in place is an input first: in a replay it begins as it was."""
    is_live = False

    def live() -> dict[str, Any]:
        nonlocal is_live
        is_live = True
        with real(path, "rb") as source:
            content = source.read(config.FILE_BYTES_MAX + 1)
        if len(content) > config.FILE_BYTES_MAX:
            run.hole(f"the agent changed {path!r}, which is larger than {config.FILE_BYTES_MAX} bytes")
            return {"is_too_large": True}
        return {"sha256": hashlib.sha256(content).hexdigest(), "content": content}

    def describe() -> Leaf:
        return Leaf(Kind.TOOL.value, "open", Effect.READ.value, {"path": _name(run, path), "mode": mode})

    value = call_sync(describe, live)
    if not is_live and run.overlay is not None and "content" in value:
        run.overlay.put(path, value["content"])


def _write(run: Run, real: Any, path: str, mode: str) -> None:
    """The agent is about to open a file for writing."""
    written = run.written
    if written is None or written.has(path):
        return
    changes = "+" in mode and not set(mode) & set("wx")
    if changes and "a" not in mode and places().is_data(path):
        _seed(run, real, path, mode)
    guard.guarded("noting a file", functools.partial(written.add, path, is_append="a" in mode))


def _run_of_files() -> Run | None:
    run = recorded_run()
    return None if run is not None and run.written is not None and run.written.is_outside() else run


def _open(real: Any, frame: Any, given: tuple[Any, ...], closefd: bool, opener: Any) -> Any:
    """What `open` gives to the code in this frame."""
    file, mode = given[0], given[1]
    is_ours = isinstance(file, (str, bytes, os.PathLike)) and isinstance(mode, str) and opener is None
    run = _run_of_files() if is_ours and asks_for_files(frame) else None
    if run is None:
        return real(*given, closefd, opener)
    path = os.fsdecode(file)
    if mode not in _READING:
        if set(mode) & _WRITING and not path.startswith(DEVICES):
            _write(run, real, path, mode)
        return real(*given, closefd, opener)
    if run.written is not None and run.written.has(path):
        return real(*given, closefd, opener)
    is_data = places().is_data(path)
    if run.census is not None:
        run.census.add("file", path, "recorded" if is_data else "code, read as it is", depth=4)
    return _ask(run, real, path, given) if is_data else real(*given, closefd, opener)


def _install_os(module: Any, patches: Patches) -> None:
    """Follow files and directories that the agent makes and moves with functions of `os`."""
    opening = module.open

    def open_descriptor(patch: Patch, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        if dir_fd is None and asks_for_files(_getframe(1)):
            guard.guarded("noting a file", _note_descriptor, path, flags)
        return opening(path, flags, mode, dir_fd=dir_fd)

    install_patch(patches, module, "open", open_descriptor, Patch("os", "open", opening))
    for name in ("rename", "replace"):
        moving = getattr(module, name)

        def move(patch: Patch, src: Any, dst: Any, *, moving: Any = moving, **kwargs: Any) -> None:
            if not kwargs:
                _note(_getframe(1), lambda written: written.move(os.fsdecode(src), os.fsdecode(dst)))
            moving(src, dst, **kwargs)

        install_patch(patches, module, name, move, Patch("os", name, moving))
    making = module.mkdir

    def make(patch: Patch, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is None:
            _note(_getframe(1), lambda written: written.add_directory(os.fsdecode(path)))
        making(path, mode, dir_fd=dir_fd)

    install_patch(patches, module, "mkdir", make, Patch("os", "mkdir", making))


def _note_descriptor(path: Any, flags: int) -> None:
    run = _run_of_files()
    if run is None or not isinstance(path, (str, bytes, os.PathLike)):
        return
    name = os.fsdecode(path)
    if flags & (os.O_WRONLY | os.O_RDWR):
        if run.written is not None and not name.startswith(DEVICES):
            run.written.add(name, is_append=bool(flags & os.O_APPEND))
    elif (run.written is None or not run.written.has(name)) and describe_read(name, flags):
        note("file", "os.open", name)


def _note(frame: Any, tell: Callable[[Written], None]) -> None:
    if asks_for_files(frame):
        run = _run_of_files()
        if run is not None and run.written is not None:
            guard.guarded("noting a file", tell, run.written)


def install(module: Any, patches: Patches) -> None:
    """Patch `builtins.open` and `io.open`, or `os`."""
    if module is os:
        _install_os(module, patches)
        return
    real = builtins.open
    forget_places()

    def call(
        patch: Patch, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        return _open(real, _getframe(1), (file, mode, buffering, encoding, errors, newline), closefd, opener)

    install_patch(patches, builtins, "open", call, Patch("builtins", "open", real))
    patches.replace(io, "open", builtins.open)
    accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)  # Python 3.10 keeps its own reference
    if accessor is not None:
        patches.replace(accessor, "open", staticmethod(builtins.open))
