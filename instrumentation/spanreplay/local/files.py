"""Seam: data files that the agent's code reads with `open` or `pathlib`.

Code is not data: files of the agent's code tree (the git work tree of its script, else the script's folder), of the
interpreter and of its packages are read as they are, so that an edited prompt shows as a changed call. Every other
regular file is a call, with its content; in a replay the content comes from the recording through the classes of `io`.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import os
import sys
from typing import Any, Final

from spanreplay import config
from spanreplay._patch import Patches
from spanreplay.call import Effect, Kind
from spanreplay.leaf import Leaf, call_sync
from spanreplay.local.leaks import unwatched
from spanreplay.local.patching import Patch, asks, install_patch, recorded_run
from spanreplay.local.places import forget_places, places
from spanreplay.run import Run

_getframe: Final = sys._getframe
_READING: Final = frozenset({"r", "rb", "br", "rt", "tr"})


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
        return Leaf(Kind.TOOL.value, "open", Effect.READ.value, {"path": path, "mode": mode})

    value = call_sync(describe, live)
    if is_live:
        with unwatched():
            return real(file, mode, buffering, encoding, errors, newline)
    if "content" not in value and run.session is not None:
        raise run.session.broken(f"the content of {path!r} was not recorded: it was too large")
    return open_recorded(value["content"], *given)


def install(module: Any, patches: Patches) -> None:
    """Patch `builtins.open` and `io.open`."""
    real = builtins.open
    forget_places()

    def call(
        patch: Patch,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if mode not in _READING or isinstance(file, int) or opener is not None or not asks(_getframe(1)):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        run = recorded_run()
        if run is None:
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        path = os.fsdecode(file)
        if run.census is not None:
            run.census.add("file", path, "recorded" if places().is_data(path) else "code, read as it is", depth=3)
        if not places().is_data(path):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        return _ask(run, real, path, (file, mode, buffering, encoding, errors, newline))

    install_patch(patches, builtins, "open", call, Patch("builtins", "open", real))
    patches.replace(io, "open", builtins.open)
    accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)  # Python 3.10 keeps its own reference
    if accessor is not None:
        patches.replace(accessor, "open", staticmethod(builtins.open))
