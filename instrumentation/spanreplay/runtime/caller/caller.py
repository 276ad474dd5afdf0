"""Who makes a call: the agent's own code or a framework, a library that works for it, or anybody else.

Only the former are recorded (`owners.py` classifies distributions). The interpreter, logging, plumbing and spanreplay
itself always see the real world.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Final

from spanreplay.model import distributions as installed
from spanreplay.model import ids, owners
from spanreplay.model.here import PACKAGE
from spanreplay.model.owners import AGENT as AGENT
from spanreplay.model.owners import FOREIGN as FOREIGN
from spanreplay.model.owners import LIBRARY as LIBRARY
from spanreplay.model.owners import PASS as PASS
from spanreplay.runtime.caller.running import IN_UNIT, RUN, is_between_units

_THROUGH_STDLIB: Final = frozenset(
    {
        "_collections_abc",
        "contextlib",
        "cookies",
        "dataclasses",
        "dbm",
        "email",
        "functools",
        "gzip",
        "mailbox",
        "os",
        "pathlib",
        "sched",
        "shelve",
        "statistics",
        "subprocess",
        "tarfile",
        "tokenize",
        "timeit",
        "webbrowser",
        "zipfile",
    }
)
"""Modules and packages of the standard library that act on behalf of their caller.

Some put the time, or a random value, into the objects they make for it.
"""
FRAMES_MAX: Final = 60
_HANDLES: Final = logging.Handler.handle.__code__
_FILES_MAX: Final = 10_000

known: Final[dict[str, int]] = {}
"""Code file → AGENT, LIBRARY, FOREIGN or PASS (look at the caller's caller)."""
foreign: Final[set[str]] = set()
"""The FOREIGN ones, for the single test that every passed-through call pays for."""
_SERVERS: Final = (owners.SERVERS,)
_GENERATED: Final = "<string>"
serving: Final[set[str]] = set()
"""Those of `foreign` that run other people's code: servers and workers."""


def classify(filename: str) -> int:
    """AGENT (frameworks included), LIBRARY, FOREIGN or PASS for a code file."""
    if is_ours(filename):
        return FOREIGN
    if filename.startswith("<frozen ") or ids.is_stdlib_file(filename):
        module = filename.removeprefix("<frozen ").removesuffix(">").replace(os.sep, "/")
        # By the last folder too: `email` is a package, and so are `pathlib` and `zipfile` since Python 3.12 and 3.13
        names = module.removesuffix(".py").split("/")[-2:]
        return FOREIGN if _THROUGH_STDLIB.isdisjoint(names) else PASS
    found = owners.owners().classify(filename)
    return AGENT if found == owners.FRAMEWORK else found


@functools.lru_cache(maxsize=_FILES_MAX)
def is_among(filename: str, rows: tuple[re.Pattern[str], ...]) -> bool:
    """Whether a code file was installed with one of these distributions."""
    distribution = installed.find_distribution(filename)
    return bool(distribution) and owners.is_among(distribution, rows)


def is_ours(filename: str) -> bool:
    """Whether a code file belongs to this package."""
    return filename.startswith(PACKAGE)


def _is_made_up(filename: str) -> bool:
    """Whether code was compiled under a name that is no file's: `<string>`, or a single word."""
    return (filename[:1] == "<" and filename[:7] != "<frozen") or (os.sep not in filename and "." not in filename)


def origin_of(frame: FrameType) -> int:
    """AGENT, LIBRARY, FOREIGN or PASS for one frame; code made by `exec` belongs to the file that made it."""
    filename = frame.f_code.co_filename
    origin = known.get(filename)
    if origin is not None:
        return origin
    if _is_made_up(filename):
        # A generated `__init__`: dataclasses and attrs run it in the globals of the class's module. Sanic does so with
        # its own methods, which it rewrites when it starts
        made_by = frame.f_globals.get("__file__")
        return classify(made_by) if isinstance(made_by, str) else classify(filename)
    origin = classify(filename)
    if len(known) < _FILES_MAX and not _is_retry(filename):  # theirs depends on the thread: `who_asks`
        known[filename] = origin
        if origin == FOREIGN and filename not in _entry_files:
            foreign.add(filename)
            if is_among(filename, _SERVERS):
                serving.add(filename)
    return origin


def is_agent(frame: FrameType | None) -> bool:
    """Whether the code that acts in this frame, or the caller it acts for, is the agent's."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        origin = origin_of(frame)
        if origin == FOREIGN and frame.f_code in entries:
            return handed.by == AGENT
        if origin != PASS and frame.f_code not in between:
            return origin == AGENT
        frame = frame.f_back
    return False


def who_asks(frame: FrameType | None) -> int:
    """AGENT (frameworks included) or LIBRARY if its code acts in this frame or through it; else FOREIGN.

    Log records of a framework or library are its own: a server logs how long a request took if it was long.
    """
    is_log, greenlet = False, None
    for _ in range(FRAMES_MAX):
        if frame is None:
            greenlet = _starter_of(greenlet)
            frame = None if greenlet is None else greenlet.gr_frame
            if frame is None:
                return FOREIGN
        origin = origin_of(frame)
        if origin == FOREIGN and frame.f_code in entries:
            return LIBRARY if frame.f_code in delivering else handed.by
        if origin != PASS and frame.f_code not in between:
            if is_log and not ids.is_agent_file(frame.f_code.co_filename):
                return FOREIGN
            is_own_work = handed.is_background and _is_for_others(origin, frame) and not _is_for_agent(frame)
            return FOREIGN if is_own_work else origin
        is_log = is_log or _is_log(origin, frame)
        frame = frame.f_back
    return FOREIGN


def serves_agent(frame: FrameType | None) -> bool:
    """Whether a server's or a worker's code acts in this frame for the agent, which calls it, perhaps with a library.

    A handler that publishes a job, for instance: its id and its time are drawn by the worker's package. What such a
    package does between its units is its own, also in a program that calls it to work.
    """
    if not _is_serving(frame) or handed.is_background or is_between_units():
        return False
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        origin = origin_of(frame)
        if origin == AGENT:
            return True
        if origin not in (PASS, LIBRARY) and not _is_serving(frame):
            return False
        frame = frame.f_back
    return False


def _is_serving(frame: FrameType | None) -> bool:
    if frame is None:
        return False
    filename = frame.f_code.co_filename
    if filename in serving:
        return True
    made_by = frame.f_globals.get("__file__") if filename == _GENERATED else None  # the `__init__` of a dataclass
    return made_by in serving


def _starter_of(greenlet: Any) -> Any:
    """Return the greenlet that started this one, or the current one: SQLAlchemy works in one for the agent's task."""
    module = sys.modules.get("greenlet")
    current = module.getcurrent() if greenlet is None and module is not None else greenlet
    return None if current is None else current.parent


def _is_for_agent(frame: FrameType | None) -> bool:
    """Whether the agent's own code has called this one in the same thread: a coroutine of its that a library runs."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        if ids.is_agent_file(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _is_for_others(origin: int, frame: FrameType) -> bool:
    """Whether a library's code acts here, or code with which it repeats something."""
    return origin == LIBRARY or _is_retry(frame.f_code.co_filename)


def _is_retry(filename: str) -> bool:
    return is_among(filename, (owners.RETRIES,))


def is_own(frame: FrameType | None) -> bool:
    """Whether the agent's own code, not a framework's, acts in this frame or through it.

    How often a framework checks whether something exists may depend on timing.
    """
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        if origin_of(frame) != PASS and frame.f_code not in between:
            return ids.is_agent_file(frame.f_code.co_filename)
        frame = frame.f_back
    return False


# ── Work that another thread does for the agent ─────────────────────────────────────────────────────
class _Handed(threading.local):
    by = FOREIGN
    """AGENT, LIBRARY or FOREIGN: who handed this thread its work."""
    _is_background = False
    _within: object = None

    @property
    def is_background(self) -> bool:
        """Whether a library started this thread to run code of its own, whose reads are not part of the run.

        A unit of work that such a thread then handles is part of the run: a server's thread serves requests.
        """
        return self._is_background and RUN.get() is self._within and not IN_UNIT.get()

    @is_background.setter
    def is_background(self, value: bool) -> None:
        self._is_background, self._within = value, RUN.get()

    def enter_run(self) -> None:
        """Note that the thread has entered the run that it was started in; `is_background` remains valid there."""
        self._within = RUN.get()


handed: Final = _Handed()
entries: Final[set[CodeType]] = set()
"""Functions of ours that do handed-over work in a thread: calls below them count as made by whoever handed it over."""
delivering: Final[set[CodeType]] = set()
"""Those of `entries` that hand received data to the protocol of a library, which may be native code without a frame."""
between: Final[set[CodeType]] = {threading.Thread.run.__code__}
"""Functions, above `entries`, with which a thread runs its work; they never act by themselves."""
_HANDERS: Final = (owners.compile_row("aiofiles anyio asgiref asyncer gevent starlette trio"),)
"""Distributions that hand work to threads for their caller, besides asyncio and concurrent.futures."""
_HANDERS_STDLIB: Final = frozenset({"asyncio", "concurrent", "futures", "threading.py"})
_handers: Final[dict[str, bool]] = {}
handing: Final[set[CodeType]] = set()
"""Functions with which a library, by itself no such distribution, starts a thread for its caller; seams add them."""


def enters_thread(function: CodeType) -> None:
    """Register a function of ours that does handed-over work in a thread."""
    entries.add(function)
    foreign.discard(function.co_filename)
    _entry_files.add(function.co_filename)


_entry_files: Final[set[str]] = set()
"""Never in `foreign`: whether the agent acts there depends on more than the file."""


def _hands_over(filename: str) -> bool:
    known_one = _handers.get(filename)
    if known_one is None:
        parts = filename.replace(os.sep, "/").split("/")
        is_stdlib = ids.is_stdlib_file(filename) and not _HANDERS_STDLIB.isdisjoint(parts[-3:])
        known_one = is_stdlib or is_ours(filename) or is_among(filename, _HANDERS)
        if len(_handers) < _FILES_MAX:
            _handers[filename] = known_one
    return known_one


def who_hands(frame: FrameType | None) -> int:
    """AGENT or LIBRARY if it hands work to a thread in this frame, directly or through an intermediary; else FOREIGN.

    Code of ours in between, which orders a replay, is an intermediary too. A library that hands over work for others
    does so for itself if nobody else is above it, as in a task of its own.
    """
    last = FOREIGN
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        origin = origin_of(frame)
        if origin == AGENT:
            return AGENT
        if origin == FOREIGN and frame.f_code in entries:
            return handed.by
        if origin == LIBRARY:
            last = LIBRARY
        if _is_log(origin, frame):
            break
        if origin != PASS and frame.f_code not in handing and not _hands_over(frame.f_code.co_filename):
            break
        frame = frame.f_back
    return FOREIGN if handed.is_background else last


def is_handed_by_agent(frame: FrameType | None) -> bool:
    """Whether the agent or a framework hands work to a thread in this frame."""
    return who_hands(frame) == AGENT


def runs_in_background(frame: FrameType | None, work: object) -> bool:
    """Whether a library starts a thread in this frame to run its own code; `work` is a function or a class."""
    if handed.is_background:
        return True
    code = getattr(getattr(work, "run", work) if isinstance(work, type) else work, "__code__", None)
    if code is None or who_hands(frame) == AGENT:
        return False
    return classify(code.co_filename) != AGENT


def _is_log(origin: int, frame: FrameType) -> bool:
    """Whether a library that keeps a log for the agent works here: its files and threads are its own."""
    return origin == PASS and is_among(frame.f_code.co_filename, (owners.LOGS,))


_FILE_CARRIERS: Final = frozenset(
    {
        "_compression",
        "bz2",
        "codecs",
        "configparser",
        "dbm",
        "ElementTree",
        "filecmp",
        "fileinput",
        "gzip",
        "lzma",
        "netrc",
        "plistlib",
        "shelve",
        "shutil",
        "tarfile",
        "tokenize",
        "wave",
        "zipfile",
    }
)
"""Modules of the standard library that open the files that their caller names."""
_FILE_LIBRARIES: Final = (
    owners.compile_row(
        """
        aiofiles fsspec markitdown numpy pdfminer-six pdfplumber pillow polars pyyaml unstructured xlrd
        """
    ),
)
"""Distributions that open the files that their caller names; aiofiles in threads of its own."""
_FILE_MODULES: Final = ("anyio/_core/_fileio", "trio/_file_io", "trio/_path")
"""Files of site-packages that do the same."""


def _carries_files(filename: str) -> bool:
    if is_among(filename, _FILE_LIBRARIES) or installed.split_site(filename)[1].startswith(_FILE_MODULES):
        return True
    parts = filename.replace(os.sep, "/").removesuffix(".py").split("/")
    return ids.is_stdlib_file(filename) and not _FILE_CARRIERS.isdisjoint(parts[-2:])


_for_themselves: Final[set[str]] = set()
"""Code files of libraries that open files of their own, for the single test that each such call pays for."""


def who_opens(frame: FrameType | None) -> int:
    """AGENT or LIBRARY if it opens a file here, directly or through a carrier module; else FOREIGN."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return FOREIGN
        filename = frame.f_code.co_filename
        if filename in _for_themselves:
            return FOREIGN
        origin = origin_of(frame)
        if origin == AGENT:
            return AGENT
        if origin == FOREIGN and frame.f_code in entries:
            return handed.by
        if _is_log(origin, frame):
            return FOREIGN
        if origin != PASS and frame.f_code not in between and not _carries_files(filename):
            if filename in foreign:  # not if it depends on more than the file's name
                _for_themselves.add(filename)
            return FOREIGN if handed.is_background else origin
        frame = frame.f_back
    return FOREIGN


def asks_for_files(frame: FrameType | None) -> bool:
    """Whether the agent, or a library that works for it, opens a file here."""
    return who_opens(frame) != FOREIGN


def keeps_log(frame: FrameType | None) -> bool:
    """Whether a file is opened here for a log that the agent sets up; its content is nobody's input."""
    is_log = False
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        filename = frame.f_code.co_filename
        if is_among(filename, (owners.LOGS,)) or (
            ids.is_stdlib_file(filename) and f"{os.sep}logging{os.sep}" in filename
        ):
            is_log = True
        elif not is_ours(filename):
            return is_log and asks_for_files(frame)
        frame = frame.f_back
    return False


def is_in_handler(frame: FrameType | None) -> bool:
    """Whether a log calls a handler of the agent's here: files that it writes are logs, too."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        code = frame.f_code
        if code is _HANDLES or (code.co_name == "emit" and is_among(code.co_filename, (owners.LOGS,))):
            return True
        frame = frame.f_back
    return False


_LOOK_CARRIERS: Final = frozenset({"filecmp", "genericpath", "glob", "ntpath", "posixpath"})
"""Modules of the standard library that look up the paths that their caller names."""
_RESOLVERS: Final = frozenset({"_joinrealpath", "_realpath", "realpath", "resolve"})
"""Functions that look up every folder of a path, from which the caller learns only where links lead.

Functions that remove a tree tell the caller equally little.
"""
_RESOLVING: Final = {
    function.__code__ for function in (getattr(os.path, name, None) for name in _RESOLVERS) if function is not None
}
_looks_for_itself: Final[set[str]] = set()


@functools.lru_cache(maxsize=_FILES_MAX)
def _carries_looks(filename: str) -> bool:
    stem = filename.replace(os.sep, "/").rpartition("/")[2].removesuffix(".py").removesuffix(">")
    is_carrier = stem.removeprefix("<frozen ") in _LOOK_CARRIERS and ids.is_stdlib_file(filename)
    return is_carrier or _carries_files(filename)


def looks_for_itself(frame: FrameType) -> bool:
    """Whether the lookup here is known not to be the agent's: a fast path for paths that are resolved."""
    code = frame.f_code
    return code in _RESOLVING or code.co_filename in _looks_for_itself


def who_looks(frame: FrameType | None) -> int:
    """AGENT or LIBRARY (frameworks included) if its code looks up a file here; FOREIGN if neither does."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return FOREIGN
        code = frame.f_code
        filename = code.co_filename
        if filename in _looks_for_itself:
            return FOREIGN
        origin = origin_of(frame)
        if origin == AGENT:
            return AGENT if ids.is_agent_file(filename) else LIBRARY
        if origin == FOREIGN and code in entries:
            return handed.by
        if _is_log(origin, frame):
            return FOREIGN
        if origin != PASS and code not in between and not _carries_looks(filename):
            if filename in foreign:
                _looks_for_itself.add(filename)
            return FOREIGN if handed.is_background else origin
        if code.co_name in _RESOLVERS or "rmtree" in code.co_name:
            return FOREIGN
        frame = frame.f_back
    return FOREIGN
