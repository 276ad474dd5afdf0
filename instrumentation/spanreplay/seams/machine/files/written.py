"""Files that the agent's code writes outside every call: noted by name, compared by content at the end.

A file that the run itself has written is not an input: reading it again is not a call. The manifest lists the files
that the run left behind under `files`: path, size, the hash of the redacted content, and the text itself if it is
short.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from spanreplay.model import ids
from spanreplay.model.code_state import ABSENT, APPENDED, BY_PROGRAM, DIRECTORIES, SHARED
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.caller.places import is_code
from spanreplay.runtime.process.real_paths import real_path
from spanreplay.runtime.process.surroundings import FILES, TEMPORARY_NAME, Surroundings
from spanreplay.runtime.process.touched import Touched
from spanreplay.seams.machine.files.state import State
from spanreplay.seams.machine.files.versions import Versions

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Relocation
    from spanreplay.runtime.run import Run

PATHS_MAX: Final = 1000
SHARED_MAX: Final = 10_000
"""Files of which the process remembers who writes them."""
TEXT_BYTES_MAX: Final = 16 * 1024
TEXTS_BYTES_MAX: Final = 256 * 1024
HASHED_BYTES_MAX: Final = 256 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024


_writers: Final[dict[str, WeakSet[Written]]] = {}
"""Path → the runs of this process that have written there."""
_meeting: Final = make_lock()


class Written:
    """The files that a run has written so far. Thread-safe."""

    def __init__(self, run: Run, surroundings: Surroundings) -> None:
        self._run = run
        self._surroundings = surroundings
        self.is_outside: Callable[[], bool] = lambda: False
        """Whether the running code is not part of this run."""
        self.touched = Touched()
        self.sees_looks = True
        """Whether reads of file metadata are calls; False in a replay of a recording without them."""
        self.state: State | None = State()
        """The run's changes in its code tree; None in a replay of a recording without them."""
        folder = tempfile.gettempdir()
        self._directory = os.path.realpath(surroundings.directory or os.getcwd())  # noqa: PTH109 -- text
        self._temporary = tuple(each + os.sep for each in (folder, os.path.realpath(folder)))
        self.versions: Versions | None = Versions()
        """Contents that are gone when the run ends; None in a replay of a recording without them."""
        self.program_ns = 0
        """When the run started its first program; 0 before that."""
        self._temporary_files: dict[str, None] = {}
        self._lock = make_lock()
        self._paths: dict[str, bool] = {}
        self._base: dict[str, int] = {}
        self._directories: dict[str, bool] = {}
        self._shared: set[str] = set()
        """Files that other runs have written since this one did: they hold what others wrote, too."""
        self._appended: set[str] = set()
        """Files that this run has only appended to."""
        self._unfilled: set[str] = set()
        """Those of them whose earlier content is not recorded yet."""

    def add(self, path: str, *, is_append: bool = False) -> None:
        """Note that a file is about to be written; call this before it is opened."""
        whole = os.path.realpath(path)
        self.touched.add(path)
        self._meet(whole)
        with self._lock:
            if whole in self._paths or len(self._paths) >= PATHS_MAX:
                return
            try:
                size, is_new = os.stat(whole).st_size, False  # noqa: PTH116 -- text
            except OSError:
                size, is_new = 0, True
            self._paths[whole] = is_new
            if is_append and size:
                self._base[whole] = size
            if is_append:
                self._appended.add(whole)
                self._unfilled.add(whole)
        if self.versions is not None:
            self.versions.write(whole)

    def _meet(self, path: str) -> None:
        """Tell the other runs of this process that have written a file that this one is about to."""
        with _meeting:
            known = _writers.get(path)
            if known is None:
                if len(_writers) >= SHARED_MAX:
                    for gone in [each for each, runs in _writers.items() if not runs]:
                        del _writers[gone]
                if len(_writers) < SHARED_MAX:
                    _writers[path] = WeakSet((self,))
                return
            for other in known:
                if other is not self:
                    other._shared.add(path)
            known.add(self)

    def add_temporary(self, path: str) -> None:
        """Note a temporary file about to be made for the agent; whoever reads it later may read what others wrote."""
        whole = os.path.realpath(path)
        with self._lock:
            if self.versions is not None and len(self._temporary_files) < PATHS_MAX:
                self._temporary_files[whole] = None
                self.versions.write(whole)

    def add_again(self, path: str, *, is_new: bool) -> None:
        """Note that a file of this run is about to be written again; `is_new`: its content is discarded first."""
        whole = os.path.realpath(path)
        self._meet(whole)
        if is_new:
            self._appended.discard(whole)
            self._unfilled.discard(whole)
        if self.versions is not None:
            if is_new:
                self.versions.end(whole, self._find_digest)
            self.versions.write(whole)
        if is_new:
            self._base.pop(whole, None)

    def take_base(self, path: str) -> int | None:
        """How long a file was before this run appended to it; None if that is recorded, or for other files."""
        whole = os.path.realpath(path)
        with self._lock:
            if whole not in self._unfilled:
                return None
            self._unfilled.discard(whole)
            return self._base.get(whole, 0)

    def put_base(self, path: str, size: int) -> None:
        """State, in a replay, how long a file was before the run appended to it."""
        with self._lock:
            self._base[os.path.realpath(path)] = size

    def end(self, path: str) -> None:
        """Note that a file, or everything in a folder, is about to be removed."""
        if self.versions is not None and (self._paths or self._temporary_files):
            self.versions.end(os.path.realpath(path), self._find_digest)

    def hand_over(self, path: str) -> None:
        """Note that a database or another library keeps a file from now on."""
        if self.versions is not None:
            self.versions.forget(os.path.realpath(path))

    def show_to_program(self) -> None:
        """Note that a program is about to start, and can read all files written so far."""
        self.program_ns = self.program_ns or ids.now_ns()
        if self.versions is not None and (self._paths or self._temporary_files):
            self.versions.show(self._find_digest)

    def is_changed_by_program(self, path: str) -> bool:
        """Whether a program that could read this file of the run has changed it since."""
        return self.versions is not None and self.versions.is_changed(real_path(path), self._find_digest)

    def _find_digest(self, path: str) -> str:
        found = self._read(path, self._base.get(path, 0), 0)
        return "" if found is None else str(found["sha256"])

    def restate_by(self, relocation: Relocation) -> None:
        """In a replay: hash contents in the words of the recording, too."""
        if self.versions is None or not relocation:
            return

        def restate(path: str) -> str:
            found = self._read(path, self._base.get(path, 0), TEXT_BYTES_MAX)
            if found is None or "text" not in found:
                return "" if found is None else str(found["sha256"])
            return _hash(relocation.whole_text(str(found["text"])))

        self.versions.restate = restate

    def add_directory(self, path: str) -> None:
        """Note that a directory is about to be made."""
        whole = os.path.realpath(path)
        with self._lock:
            if len(self._directories) < PATHS_MAX and not os.path.exists(whole):  # noqa: PTH110 -- text
                self._directories[whole] = True

    def move(self, source: str, target: str) -> None:
        """Note that a file or directory is about to be moved."""
        old, new = os.path.realpath(source), os.path.realpath(target)
        if self.versions is not None:
            self.versions.move(old, new, self._find_digest)
        with self._lock:
            is_new = not os.path.exists(new)  # noqa: PTH110 -- text
            for path in [p for p in self._paths if p == old or p.startswith(old + os.sep)]:
                self._paths[new + path[len(old) :]] = is_new
                base = self._base.pop(path, 0)
                if base:
                    self._base[new + path[len(old) :]] = base
            if os.path.isfile(old) and len(self._paths) < PATHS_MAX:  # noqa: PTH113 -- text
                self._paths.setdefault(new, is_new)

    def has(self, path: str) -> bool:
        """Whether this run has written a file."""
        return bool(self._paths) and real_path(path) in self._paths

    def list_code_read(self) -> list[str]:
        """Return the files of the code tree that the run has read."""
        return [] if self.state is None else [each for each in self.state.list_read() if is_code(each)]

    def list_made(self) -> list[str]:
        """Return the paths that did not exist before the run made something there."""
        files = [path for path, is_new in dict(self._paths).items() if is_new]
        return [*files, *dict(self._directories), *([] if self.state is None else self.state.list_absent())]

    def describe(self) -> dict[str, Any]:
        """Describe the written files for the manifest; reads those that are left."""
        files = self._describe_temporary()
        temporary = self._temporary_files
        room = TEXTS_BYTES_MAX
        for name, path, is_new in self._named():
            found = self._read(path, self._base.get(path, 0), room)
            earlier = {} if self.versions is None or path in temporary else self.versions.describe(path)
            if earlier and self.is_changed_by_program(path):
                earlier[BY_PROGRAM] = True
            if found is None:
                if earlier:
                    files[name] = {"size": 0, "gone": True, **earlier}
                continue
            found.update(earlier)
            room -= len(found.get("text", ""))
            shared = {SHARED: APPENDED if path in self._appended else True} if path in self._shared else {}
            files[name] = {**found, **({"new": True} if is_new else {}), **shared}
        made = [self.show(p) for p in self._directories if os.path.isdir(p)]  # noqa: PTH112 -- text
        new = {path for path, is_new in dict(self._paths).items() if is_new}.union(self._directories)
        absent = [] if self.state is None else [self.show(p) for p in self.state.list_absent() if p not in new]
        return {FILES: files, **({DIRECTORIES: made} if made else {}), **({ABSENT: absent} if absent else {})}

    def _describe_temporary(self) -> dict[str, Any]:
        """Describe only the content of temporary files: whether one is left depends on garbage collection."""
        files: dict[str, Any] = {}
        for name, path, _ in self._named(dict.fromkeys(self._temporary_files, False)):
            if self.versions is not None:
                self.versions.end(path, self._find_digest)
                files[f"{name} (temporary)"] = {"size": 0, "gone": True, **self.versions.describe(path)}
        return files

    def _named(self, given: dict[str, bool] | None = None) -> Iterator[tuple[str, str, bool]]:
        with self._lock:
            paths = dict(self._paths if given is None else given)
        names: dict[str, int] = {}
        for path, is_new in paths.items():
            name = self.show(path)
            if path.startswith(self._temporary):
                name = TEMPORARY_NAME.sub("tmp*", name)  # drawn at random each time
            count = names[name] = names.get(name, 0) + 1
            yield (name if count == 1 else f"{name}#{count}"), path, is_new

    def is_temporary(self, path: str) -> bool:
        """Whether a path lies directly in the folder for temporary files."""
        return os.path.dirname(path) + os.sep in self._temporary  # noqa: PTH120 -- text

    def name(self, path: str) -> str:
        """Return a path as calls name it: random names of temporary files all become the same name."""
        if path.startswith(self._temporary):
            path = TEMPORARY_NAME.sub("tmp*", path)
        return self._surroundings.name(path) if self._surroundings.aliases else path

    def show(self, path: str) -> str:
        """Return a full path as the manifest names it: relative to the run's folder, redacted."""
        below = self._surroundings.name(path)
        if below is path and path.startswith(self._directory + os.sep):
            below = path[len(self._directory) + 1 :]
        return self._run.redactor.text(below)

    def _read(self, path: str, base: int, room: int) -> dict[str, Any] | None:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 -- text
                return None  # opening a named pipe would wait for ever
            with open(path, "rb") as stream:  # noqa: PTH123 -- the overlay's file
                size = os.fstat(stream.fileno()).st_size - base
                stream.seek(base)
                if size > TEXT_BYTES_MAX:
                    return {"size": size, "sha256": self._digest(stream)}
                content = stream.read(TEXT_BYTES_MAX)
        except OSError:
            return None
        try:
            text = self._run.redactor.text(content.decode("utf-8"))
        except UnicodeDecodeError:
            return {"size": size, "sha256": hmac.digest(self._key(), content, "sha256").hex()}
        return {"size": size, "sha256": _hash(text), **({"text": text} if len(text) <= room else {})}

    def _digest(self, stream: Any) -> str:
        # Keyed: the hash must not let anyone check a guess at a secret in the file
        made = hmac.new(self._key(), digestmod="sha256")
        left = HASHED_BYTES_MAX
        while left > 0 and (piece := stream.read(_CHUNK_BYTES)):
            made.update(piece)
            left -= len(piece)
        return made.hexdigest()

    def _key(self) -> bytes:
        return self._run.redactor.derive(b"files")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
