"""Files that a replay writes go to a scratch folder that its later reads see; the world stays as it is.

The functions of `os`, `open` and everything built on them (`pathlib`, `shutil`, `glob`, `tempfile`) are replaced, for
every caller: a library that writes for the agent doesn't touch the world either. Our own files are exempt, and so is a
call that the plan lets go live, which may write for real. C code that opens files directly isn't seen; the audit hook
of `hermetic` stops it if Python is involved, and `kernel_guard` if not.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Final

from spanreplay.model.own_threads import make_lock
from spanreplay.replayer.sandbox.scratch import LINKS_MAX, Functions, Layer, Scratch
from spanreplay.runtime.agent_patches import Patch, install_patch, replace_copies
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.dir_entries import Listed, LookedEntry
from spanreplay.runtime.process.real_paths import real_folder
from spanreplay.runtime.process.temporary_files import replace_unlink

_WRITE_FLAGS: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_O_TMPFILE: Final = getattr(os, "O_TMPFILE", 0)
_ALWAYS_REAL: Final = ("/dev/", "/proc/", "/sys/")
_LOOKS: Final = ("stat", "lstat", "access", "readlink", "statvfs", "getxattr", "chdir")
"""Functions that look at one path."""
_CHANGES: Final = ("chmod", "chown", "utime", "setxattr", "removexattr")
"""Functions that change one existing path, or the target of a link there."""
_MAKES: Final = ("mkfifo", "mknod")

Handler = Callable[..., Any]


class _State(threading.local):
    depth = 0


class Overlay:
    """The files of one replay. Thread-safe."""

    def __init__(
        self,
        root: str,
        own: Iterable[str],
        is_live: Callable[[], bool],
        is_over: Callable[[], bool],
        real: tuple[str, ...] = (),
        runs_again: Callable[[], bool] | None = None,
    ) -> None:
        """`own` are paths, and `real` prefixes of paths, that are not redirected."""
        self._real = (*_ALWAYS_REAL, *real, root)
        self._base = Scratch(root, Functions())
        self._layer = Layer(self._base)
        self._runs_again = runs_again
        self._own = tuple(os.path.realpath(each) for each in own if each)
        self._is_live = is_live
        self._is_over = is_over
        self._state = _State()
        self._lock = make_lock()
        self._getcwd = os.getcwd
        self._real_open: Any = builtins.open
        self.abilities: list[tuple[set[Any], Any]] = []
        """(set of `os.supports_…`, our function in it)."""

    @property
    def scratch(self) -> Scratch:
        """The replay's files, as the running code sees them."""
        return self._base if self._runs_again is None or not self._runs_again() else self._layer

    # ── Which path ──────────────────────────────────────────────────────────────────────────────────
    def _cwd(self) -> str:
        return self.scratch.below(self._getcwd())

    def _has_moved(self) -> bool:
        """Whether the working directory exists only in the replay."""
        return self._getcwd().startswith(self.scratch.root)

    def locate(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the full name of a path that may be redirected; None for descriptors, devices, ours and live calls."""
        if self._state.depth or not isinstance(path, (str, bytes, os.PathLike)) or self._is_over():
            return None
        text = os.fsdecode(path)
        if "\0" in text or not text:
            return None
        if not os.path.isabs(text):  # noqa: PTH117 -- text
            text = os.path.join(self._cwd() if dir_fd is None else self._directory(dir_fd), text)  # noqa: PTH118 -- text
        with self._inside():
            # Only the folder's links are followed: the last part may be a link that is itself meant
            folder, name = os.path.split(os.path.normpath(text))
            whole = os.path.join(self._follow(folder), name)  # noqa: PTH118 -- text
        if whole.startswith(self._real) or self._is_own(whole):
            return None
        return whole

    def _follow(self, folder: str) -> str:
        """Resolve a folder's links, in the world and in the scratch folder; return the world's name."""
        folder = self.scratch.settle_folder(folder)
        found = self.scratch.find(folder)
        if found == folder or not self.scratch.real.exists(found):
            return self.scratch.settle_folder(os.path.realpath(folder))
        return self.scratch.below(os.path.realpath(found))

    def _directory(self, descriptor: int) -> str:
        with self._inside():
            return self.scratch.below(os.path.realpath(f"/proc/self/fd/{descriptor}"))

    def _is_own(self, path: str) -> bool:
        return any(path == each or path.startswith(each + os.sep) for each in self._own)

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._state.depth += 1
        try:
            yield
        finally:
            self._state.depth -= 1

    def holds(self, path: str) -> bool:
        """Whether this replay has written or removed a path."""
        whole = self.locate(path)
        return whole is not None and (self.scratch.has(whole) or self.scratch.is_hidden(whole))

    def find(self, path: str) -> str:
        """Return the real place of a path, for code that reads past the replaced functions."""
        whole = self.locate(path)
        return path if whole is None else self.scratch.find(whole)

    def find_quickly(self, path: str) -> str:
        """As `find`, for code that asks thousands of times: skips folders that this replay has never touched."""
        folder, name = os.path.split(path)
        with self._inside():
            folder = real_folder(folder or self._cwd())
        if self.scratch.has(folder) or self.scratch.is_hidden(os.path.join(folder, name)):  # noqa: PTH118 -- text
            return self.find(path)
        return path

    def names_beside(self, folder: str) -> list[str]:
        """List a folder that this replay has written in; [] for any other."""
        with self._inside():
            whole = real_folder(folder or self._cwd())
        if not self.scratch.has(whole) or self.locate(whole) is None:
            return []
        with self._lock, self._inside():
            return self.scratch.names(whole)

    def take(self, path: str) -> str:
        """Return the real place of a path, for code that writes past the replaced functions (a database)."""
        whole = self.locate(path)
        if whole is None or (self._is_live() and not self.scratch.has(whole)):
            return path
        with self._lock, self._inside():
            return self.scratch.take(self._final(whole))

    def close(self) -> None:
        """Remove our functions from the standard library's sets, after the end of the replay."""
        for supported, function in self.abilities:
            supported.discard(function)
        self.abilities.clear()

    def put(self, path: str, content: bytes) -> None:
        """Place a file with this content, as if the world had it."""
        whole = self.locate(path)
        if whole is None:
            return
        with self._lock, self._inside():
            ours = self.scratch.above(self._final(self.scratch.settle(whole)))
            self.scratch.real.makedirs(os.path.dirname(ours), exist_ok=True)  # noqa: PTH120 -- text
            with self._real_open(ours, "wb") as target:
                target.write(content)

    def have(self, path: str, kind: str) -> None:
        """Place a `directory`, an empty `file` or, for '', nothing at a path that the replay hasn't touched yet."""
        whole = self.locate(path)
        if whole is None:
            return
        with self._lock, self._inside():
            whole = self.scratch.settle(whole)
            is_there = self.scratch.exists(whole)
            if is_there and not kind and not self.scratch.has(whole):
                self.scratch.hide(whole)
            elif kind and not is_there:
                ours = self.scratch.above(whole)
                folder = ours if kind == "directory" else os.path.dirname(ours)  # noqa: PTH120 -- text
                self.scratch.real.makedirs(folder, exist_ok=True)
                if kind != "directory":
                    self._real_open(ours, "x").close()

    def _final(self, whole: str) -> str:
        """Follow a link at the end of a path, for opening it. Raises: OSError if links lead in a circle."""
        found, asked = self.scratch.find(whole), whole
        for _ in range(LINKS_MAX):
            if not os.path.islink(found):  # noqa: PTH114 -- text
                return whole
            target = os.readlink(found)  # noqa: PTH115 -- text
            folder = os.path.dirname(whole)  # noqa: PTH120 -- text
            whole = self.scratch.settle(os.path.join(folder, target))  # noqa: PTH118 -- text
            found = self.scratch.find(whole)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), asked)

    def place_of(self, path: Any, flags: int, dir_fd: int | None = None) -> Any:
        """Return what to really open instead of a path; None: the path itself."""
        whole = self.locate(path, dir_fd)
        if whole is None:
            return None
        with self._lock, self._inside():
            whole = self._final(whole)
            if not flags & _WRITE_FLAGS:
                return self.scratch.find(whole)
            if self._is_live() and not self.scratch.has(whole):
                return None
            if _O_TMPFILE and flags & _O_TMPFILE == _O_TMPFILE:
                self.scratch.real.makedirs(self.scratch.above(whole), exist_ok=True)
                return self.scratch.above(whole)
            if flags & os.O_CREAT and flags & os.O_EXCL and self.scratch.exists(whole):
                return self.scratch.find(whole)  # the system raises the right error
            if not flags & os.O_CREAT and not self.scratch.exists(whole):
                return self.scratch.above(whole)
            ours = self.scratch.take(whole, with_content=not flags & os.O_TRUNC)
            if not self.scratch.real.exists(ours) and flags & os.O_CREAT == 0:
                self._real_open(ours, "x").close()  # truncated: it exists, without its content
            return ours

    # ── Functions ───────────────────────────────────────────────────────────────────────────────────
    def handlers(self) -> dict[str, Handler]:
        """Map names in `os` to handler(real, *args, **kwargs)."""
        found: dict[str, Handler] = dict.fromkeys(_LOOKS, self._look)
        found.update(dict.fromkeys(_CHANGES, self._change))
        found.update(dict.fromkeys(_MAKES, self._make))
        found.update(
            listxattr=self._list_attributes, lchown=self._change_itself,
            open=self._open_descriptor, listdir=self._list, scandir=self._scan, mkdir=self._make_directory,
            rmdir=self._remove_directory, unlink=self._remove, remove=self._remove, rename=self._rename,
            replace=self._rename, link=self._link, symlink=self._symlink, truncate=self._truncate, getcwd=self._where,
            getcwdb=self._where_bytes,
        )  # fmt: skip
        return found

    def _look(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        whole = self.locate(path, kwargs.get("dir_fd"))
        if whole is None:
            return real(path, *args, **kwargs)
        with self._named(path):
            kwargs.pop("dir_fd", None)
            return real(self.scratch.find(whole), *args, **kwargs)

    def _list_attributes(self, real: Any, path: Any = None, *args: Any, **kwargs: Any) -> Any:
        """None for a file whose recorded content is served here: `shutil.copystat` asks behind a look."""
        try:
            return self._look(real, path, *args, **kwargs)
        except FileNotFoundError:
            return []

    def _writes(self, path: Any, kwargs: dict[str, Any]) -> str | None:
        whole = self.locate(path, kwargs.get("dir_fd"))
        if whole is None or (self._is_live() and not self.scratch.has(whole)):
            return None
        return whole

    def _change(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        whole = self._writes(path, kwargs)
        if whole is None:
            return real(path, *args, **kwargs)
        with self._named(path), self._lock, self._inside():
            kwargs.pop("dir_fd", None)
            if kwargs.get("follow_symlinks", True):  # the system would follow a scratch link into the world
                whole = self._final(whole)
            return real(self.scratch.take(whole), *args, **kwargs)

    def _change_itself(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        return self._change(partial(_without_following, real), path, *args, follow_symlinks=False, **kwargs)

    def _make(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        whole = self._writes(path, kwargs)
        if whole is None:
            return real(path, *args, **kwargs)
        with self._named(path), self._lock, self._inside():
            kwargs.pop("dir_fd", None)
            if self.scratch.exists(whole):
                raise FileExistsError(17, os.strerror(17), path)
            return real(self.scratch.take(whole), *args, **kwargs)

    def _truncate(self, real: Any, path: Any, length: int) -> Any:
        return self._change(real, path, length)

    def _open_descriptor(
        self, real: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> Any:
        with self._named(path):
            place = self.place_of(path, flags, dir_fd)
            return real(path, flags, mode, dir_fd=dir_fd) if place is None else real(place, flags, mode)

    def _list(self, real: Any, path: Any = ".") -> Any:
        whole = self.locate(path)
        if whole is None or self.scratch.is_plain(whole):
            return real(path if whole is None or not self._has_moved() else whole)
        with self._named(path), self._lock, self._inside():
            names = self.scratch.names(whole)
        return [os.fsencode(n) for n in names] if isinstance(path, bytes) else names

    def _scan(self, real: Any, path: Any = ".") -> Any:
        whole = self.locate(path)
        if whole is None or self.scratch.is_plain(whole):
            return real(path if whole is None or not self._has_moved() else whole)
        shown = os.fspath(path) if isinstance(path, (str, bytes, os.PathLike)) else "."
        names = self._list(os.listdir, path)
        return Listed([LookedEntry(_Eyes(), shown, os.fsdecode(name), "") for name in names])

    def _make_directory(self, real: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        whole = self._writes(path, {"dir_fd": dir_fd})
        if whole is None:
            real(path, mode, dir_fd=dir_fd)
            return
        with self._named(path), self._lock, self._inside():
            self.scratch.make_directory(whole, mode)

    def _remove_directory(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        whole = self._writes(path, {"dir_fd": dir_fd})
        if whole is None:
            real(path, dir_fd=dir_fd)
            return
        with self._named(path), self._lock, self._inside():
            self.scratch.remove_directory(whole)

    def _remove(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        whole = self._writes(path, {"dir_fd": dir_fd})
        if whole is None:
            real(path, dir_fd=dir_fd)
            return
        with self._named(path), self._lock, self._inside():
            self.scratch.remove(whole)

    def _rename(
        self, real: Any, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        source = self._writes(src, {"dir_fd": src_dir_fd})
        target = self.locate(dst, dst_dir_fd)
        if source is None or target is None:
            real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        with self._named(src, dst), self._lock, self._inside():
            self.scratch.rename(source, target)

    def _link(self, real: Any, src: Any, dst: Any, **kwargs: Any) -> None:
        source = self.locate(src, kwargs.get("src_dir_fd"))
        target = self._writes(dst, {"dir_fd": kwargs.get("dst_dir_fd")})
        if source is None or target is None:
            real(src, dst, **kwargs)
            return
        with self._named(src, dst), self._lock, self._inside():
            if self.scratch.exists(target):
                raise FileExistsError(17, os.strerror(17), src, None, dst)
            real(self.scratch.take(source), self.scratch.take(target))

    def _symlink(self, real: Any, src: Any, dst: Any, target_is_directory: bool = False, **kwargs: Any) -> None:
        target = self._writes(dst, kwargs)
        if target is None:
            real(src, dst, target_is_directory, **kwargs)
            return
        with self._named(src, dst), self._lock, self._inside():
            if self.scratch.exists(target):
                raise FileExistsError(17, os.strerror(17), src, None, dst)
            real(src, self.scratch.take(target))

    def _where(self, real: Any) -> str:
        return self.scratch.below(real())

    def _where_bytes(self, real: Any) -> bytes:
        return os.fsencode(self.scratch.below(os.fsdecode(real())))

    @contextlib.contextmanager
    def _named(self, *paths: Any) -> Iterator[None]:
        """A block whose errors name the requested path, not the scratch folder's."""
        try:
            yield
        except OSError as exc:
            if exc.filename is not None and paths and not isinstance(paths[0], int):
                exc.filename = os.fspath(paths[0])
                if len(paths) > 1:
                    exc.filename2 = os.fspath(paths[1])
            raise

    def open(self, real: Any, file: Any, mode: str, *rest: Any) -> Any:
        """Return the result of `open`; `rest` is everything after the mode, positionally."""
        is_custom = len(rest) > 5 and rest[5] is not None
        if is_custom and isinstance(file, (str, bytes, os.PathLike)):  # it opens through a patched function
            opener = rest[5]
            place: str | None = os.devnull
            opened = real(place, mode, *rest[:5], lambda _, flags: opener(file, flags))
        else:
            with self._named(file):
                place = None if is_custom else self.place_of(file, _flags(mode))
                opened = real(file if place is None else place, mode, *rest)
        if place is None:
            return opened
        raw = getattr(getattr(opened, "buffer", opened), "raw", getattr(opened, "buffer", opened))
        with contextlib.suppress(AttributeError):
            raw.name = file
        return opened


def _flags(mode: str) -> int:
    if "x" in mode:
        return os.O_WRONLY | os.O_CREAT | os.O_EXCL
    flags = os.O_RDWR if "+" in mode else os.O_WRONLY if set(mode) & set("wa") else os.O_RDONLY
    if "w" in mode:
        return flags | os.O_CREAT | os.O_TRUNC
    return flags | os.O_CREAT | os.O_APPEND if "a" in mode else flags


def _without_following(real: Any, path: str, *args: Any, follow_symlinks: bool) -> Any:
    """Call `lchown` without `follow_symlinks`, an argument that it doesn't have: it never follows."""
    return real(path, *args)


class _Eyes:
    """Looks at files with the current functions of `os`."""

    def stat(self, frame: FrameType, path: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        """As `os.stat`."""
        return os.stat(path, follow_symlinks=follow_symlinks)  # noqa: PTH116 -- any text


_KEEPERS: Final = (("pathlib", "_NormalAccessor"), ("glob", "_StringGlobber"))
"""Classes of the standard library of Python 3.10 and 3.13 that keep their own references to functions of `os`."""


# ── installation ────────────────────────────────────────────────────────────────────────────────────
def install(overlay: Overlay, patches: Patches) -> None:
    """Install an overlay beneath everything that opens files from now on; other patches go on top of it."""
    handlers = overlay.handlers()
    reals = {name: getattr(os, name) for name in handlers if hasattr(os, name)}
    for name, real in reals.items():
        overlay.abilities += _replace(patches, os, name, real, handlers[name])
    real_open = builtins.open

    def call(
        patch: Patch, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        return overlay.open(real_open, file, mode, buffering, encoding, errors, newline, closefd, opener)

    install_patch(patches, builtins, "open", call, Patch("builtins", "open", real_open))
    replace_copies(patches, real_open, builtins.open)
    # It removes trees through folder descriptors, of which there are two here: the scratch folder's and the world's
    patches.replace(shutil, "_use_fd_functions", False)
    if hasattr(shutil, "_rmtree_impl"):  # Python 3.14 checks only once
        patches.replace(shutil, "_rmtree_impl", vars(shutil)["_rmtree_unsafe"])
    replace_unlink(patches, vars(tempfile)["_TemporaryFileCloser"])
    for module, keeper in _KEEPERS:
        owner = getattr(sys.modules.get(module), keeper, None)
        if owner is not None:
            for name, real in reals.items():
                if getattr(owner, name, None) is real:
                    patches.replace(owner, name, staticmethod(getattr(os, name)))


def _replace(patches: Patches, owner: Any, name: str, real: Any, handler: Handler) -> list[tuple[set[Any], Any]]:
    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        return handler(real, *args, **kwargs)

    install_patch(patches, owner, name, call, Patch(owner.__name__, name, real))
    made: Any = getattr(owner, name)
    # The standard library checks by identity what a function supports
    kinds: tuple[set[Any], ...] = (
        os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids,
    )  # fmt: skip
    found = [(kind, made) for kind in kinds if real in kind]
    for kind, _ in found:
        kind.add(made)
    return found
