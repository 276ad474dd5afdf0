"""Seam: data files that the agent's code reads with `open` or `pathlib`.

Code is not data: files of the agent's code tree (the git work tree of its script, else the script's folder; that of an
application which an installed server loads), of the interpreter and of its packages are read as they are, so that an
edited prompt shows as a changed call. Reading any other regular file is a call, with its content; in a replay the
content comes from the recording through the classes of `io`. A file that the run itself has written is not an input
(`changes.py`); its final content is compared (`written.py`).
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import Patch, install_patch, replace_copies
from spanreplay.runtime.caller.caller import is_in_handler, keeps_log
from spanreplay.runtime.caller.caller import is_ours as is_of_us
from spanreplay.runtime.caller.places import DEVICES, asks_for, forget_places, places
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.runtime.process.real_paths import real_path
from spanreplay.runtime.process.used_variables import is_env_file
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.files.appended import fill_appended
from spanreplay.seams.machine.files.by_others import is_by_others
from spanreplay.seams.machine.files.changes import name_of, note_log, note_made, note_write, read_content, run_of_files
from spanreplay.seams.machine.files.descriptors import resolve
from spanreplay.seams.machine.outside.device_reads import note_open

_getframe: Final = sys._getframe
_READING: Final = frozenset({"r", "rb", "br", "rt", "tr"})
_WRITING: Final = frozenset("wax+")
_ALSO_READING: Final = frozenset("r+")


class RecordedFile(io.RawIOBase):
    """Recorded content as a raw file, on which `io` builds its buffered and text files."""

    def __init__(self, content: bytes, name: Any) -> None:
        super().__init__()
        self._content = io.BytesIO(content)
        self._descriptor = -1
        self.name = name
        self.mode = "rb"

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """Always True."""
        return True

    def fileno(self) -> int:
        """A descriptor of a nameless file with the content, for `mmap` and native code; it is made when asked for."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._descriptor < 0:
            self._descriptor = _make_nameless(self._content.getvalue())
            os.lseek(self._descriptor, self._content.tell(), os.SEEK_SET)
        return self._descriptor

    def close(self) -> None:
        """Close it, with its descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer from the content."""
        return self._content.readinto(buffer)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move within the content."""
        return self._content.seek(offset, whence)

    def tell(self) -> int:
        """Return the position in the content."""
        return self._content.tell()


def _make_nameless(content: bytes) -> int:
    """Return the descriptor of a file that has this content and no name."""
    with unwatched():
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("recorded", os.MFD_CLOEXEC)
        else:
            import tempfile

            descriptor, path = tempfile.mkstemp()
            os.unlink(path)  # noqa: PTH108 -- text
        with open(descriptor, "wb", closefd=False) as target:
            target.write(content)
    return descriptor


def open_recorded(
    content: bytes, file: Any, mode: str, buffering: int, encoding: Any, errors: Any, newline: Any
) -> Any:
    """Return what `open` returns, with recorded content. Raises: ValueError as `open` does."""
    raw = RecordedFile(content, file)
    if "b" in mode:
        if buffering == 0:
            return raw
        return io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    if encoding is None and sys.version_info < (
        3,
        11,
    ):  # else it asks for a descriptor, to see whether it is a terminal
        import locale

        encoding = locale.getpreferredencoding(False)
    text = io.TextIOWrapper(io.BufferedReader(raw), encoding, errors, newline, buffering == 1)
    text.mode = mode  # type: ignore[misc]  # as `open` does
    return text


def _ask(run: Run, real: Any, path: str, given: tuple[Any, ...], *, by_others: bool) -> Any:
    file, mode, buffering, encoding, errors, newline = given
    is_live = False

    def live() -> dict[str, Any]:
        nonlocal is_live
        is_live = True
        return read_content(run, real, file, "read")

    def describe() -> FunctionCall:
        return FunctionCall(Kind.TOOL.value, "open", Effect.READ.value, {"path": name_of(run, path), "mode": mode})

    value = call_sync(describe, live)
    if is_live:
        with unwatched():
            return real(file, mode, buffering, encoding, errors, newline)
    if "content" not in value:
        run.resolver.leave_out(f"the content of {path!r} was not recorded: it was too large")
    if by_others and run.overlay is not None and run.written is not None and run.written.has(path):
        run.overlay.put(path, value["content"])
    return open_recorded(value["content"], *given)


def _open(real: Any, frame: Any, given: tuple[Any, ...], closefd: bool, opener: Any) -> Any:
    """Return what `open` returns to the code in this frame."""
    file, mode = given[0], given[1]
    is_ours = isinstance(file, (str, bytes, os.PathLike)) and isinstance(mode, str) and opener is None
    named = os.fsdecode(file) if is_ours else ""
    is_read = is_ours and mode in _READING
    asks = is_ours and asks_for(frame, named, is_read=is_read)
    is_written = is_ours and bool(set(mode) & _WRITING)
    is_log = is_written and asks and is_in_handler(frame)
    asks = asks and not is_log
    if is_written and not asks:
        if is_log or keeps_log(frame):
            note_log(named)
        guard.guarded("noting a file", note_made, named)
    if is_read and ".env" in named and is_env_file(named) and not is_of_us(frame.f_code.co_filename):
        guard.guarded("noting a file that sets variables", _note_env_file, named, asks)
    run = run_of_files() if asks or _is_descriptor_read(file, mode) else None
    if run is None:
        return real(*given, closefd, opener)
    if not asks:
        guard.guarded("watching", note_open, run, frame, file)
        return real(*given, closefd, opener)
    path = resolve(run, named, None)
    if not is_read:
        if set(mode) & _WRITING and not path.startswith(DEVICES):
            note_write(run, real, path, mode)
        return real(*given, closefd, opener)
    by_others = is_by_others(run, path, "open")
    if not by_others and run.written is not None and run.written.has(path):
        if run.written.state is not None:
            run.written.state.note_read(run, path)
        fill_appended(run, real, path)
        return real(*given, closefd, opener)
    whole = real_path(path)
    is_data = by_others or places().is_data_at(whole)
    if not is_data and run.written is not None and run.written.state is not None:
        run.written.state.note_read(run, path, whole)
    if run.audit is not None:
        run.audit.add("file", path, "recorded" if is_data else "code, read as it is", depth=4)
    if is_data:
        return _ask(run, real, path, given, by_others=by_others)
    guard.guarded("watching", note_open, run, frame, path)
    return real(*given, closefd, opener)


def _is_descriptor_read(file: Any, mode: Any) -> bool:
    return isinstance(file, int) and isinstance(mode, str) and bool(set(mode) & _ALSO_READING)


def _note_env_file(path: str, asks: bool) -> None:
    run = run_of_files()
    if run is None or run.environment_read is None:
        return
    run.resolver.variables.read_file(path)
    run.environment_read.used.read_file(path, is_data=asks and places().is_data(path))


def install(module: Any, patches: Patches) -> None:
    """Patch `builtins.open` and `io.open`."""
    real = builtins.open
    forget_places()

    def call(
        patch: Patch, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        return _open(real, _getframe().f_back, (file, mode, buffering, encoding, errors, newline), closefd, opener)

    install_patch(patches, builtins, "open", call, Patch("builtins", "open", real))
    replace_copies(patches, real, builtins.open)
    accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)  # Python 3.10 keeps its own reference
    if accessor is not None:
        patches.replace(accessor, "open", staticmethod(builtins.open))
