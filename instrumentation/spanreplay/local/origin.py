"""Who asks: the agent's own code, a library that puts dates and ids into prompts, or anybody else.

Only the first two are recorded. The interpreter, logging, OpenTelemetry and ourselves see the real world always.
"""

from __future__ import annotations

import os
import threading
from types import CodeType, FrameType
from typing import Final

from spanreplay import ids

LIBRARIES: Final = (
    "agents/extensions/memory",
    "agents/memory",
    "agno",
    "aiosqlite",
    "arrow",
    "autogen",
    "backoff",
    "beeai_framework",
    "crewai",
    "diskcache",
    "dspy",
    "faker",
    "google/adk",
    "haystack",
    "joblib/_store_backends",
    "joblib/memory",
    "joblib/numpy_pickle",
    "langchain",
    "langgraph",
    "letta",
    "llama_index",
    "mem0",
    "nanoid",
    "pendulum",
    "pydantic_ai",
    "qdrant_client",
    "requests_cache",
    "semantic_kernel",
    "shortuuid",
    "smolagents",
    "stamina",
    "strands",
    "tenacity",
    "ulid",
)
"""Folders of site-packages, by their first letters, that put dates and ids into prompts, say how long they wait, or
keep what the agent remembers in databases and files."""
BOOKKEEPING: Final = (
    "agno/api/",
    "crewai/events/",
    "crewai/memory/storage/kickoff_task_outputs",
    "crewai/rag/chromadb/factory",
    "crewai/telemetry/",
    "crewai_cli/",
    "crewai_core/",
    "haystack/telemetry/",
)
"""Parts of LIBRARIES that keep accounts of their own, in files of the user's home; none of it gets into a prompt."""
THROUGH: Final = (
    "attr",
    "attrs",
    "dataset",
    "docx",
    "fpdf",
    "icalendar",
    "openpyxl",
    "pandas",
    "peewee",
    "pptx",
    "pydantic",
    "pydantic_core",
    "pypdf",
    "reportlab",
    "sqlalchemy",
    "sqlite_utils",
    "wrapt",
    "xlsxwriter",
)
"""Folders of site-packages that only carry out what their caller wants: the caller is who asks. Some put the time, or
something random, into the documents that they make."""
_THROUGH_STDLIB: Final = frozenset(
    {
        "_collections_abc",
        "contextlib",
        "dataclasses",
        "email",
        "functools",
        "gzip",
        "mailbox",
        "os",
        "pathlib",
        "sched",
        "statistics",
        "subprocess",
        "tarfile",
        "timeit",
        "zipfile",
    }
)
"""Modules and packages of the standard library that only carry out what their caller wants; some put the time, or
something random, into what they make for it."""
FRAMES_MAX: Final = 60
_FILES_MAX: Final = 10_000

AGENT: Final = 1
FOREIGN: Final = 0
PASS: Final = 2
known: Final[dict[str, int]] = {}
"""Code file → AGENT, FOREIGN or PASS (look at the caller's caller)."""
foreign: Final[set[str]] = set()
"""The FOREIGN ones, for the one test that every passed-through call pays for."""


def _is_in(filename: str, folders: tuple[str, ...], *, whole: bool) -> bool:
    for root in ("site-packages", "dist-packages"):
        _, found, below = filename.rpartition(root + os.sep)
        if found:
            below = below.replace(os.sep, "/")
            return below.startswith(tuple(f"{f}/" for f in folders) if whole else folders)
    return False


def is_below(filename: str, packages: tuple[str, ...]) -> bool:
    """Whether a code file belongs to one of these packages of site-packages; names are first letters of folders."""
    return _is_in(filename, packages, whole=False)


def classify(filename: str) -> int:
    """AGENT, FOREIGN or PASS for a code file."""
    if ids.is_agent_file(filename):
        return AGENT
    if _is_in(filename, LIBRARIES, whole=False):
        return FOREIGN if _is_in(filename, BOOKKEEPING, whole=False) else AGENT
    if _is_in(filename, THROUGH, whole=True):
        return PASS
    module = filename.removeprefix("<frozen ").removesuffix(">").replace(os.sep, "/")
    is_stdlib = filename.startswith("<frozen ") or not _is_in(filename, ("",), whole=False)
    # By the last folder too: `email` is a package, and so are `pathlib` and `zipfile` since Python 3.12 and 3.13
    names = module.removesuffix(".py").split("/")[-2:]
    return PASS if is_stdlib and not is_ours(filename) and not _THROUGH_STDLIB.isdisjoint(names) else FOREIGN


_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 -- start-up


def is_ours(filename: str) -> bool:
    """Whether a code file is one of this package's."""
    return filename.startswith(_OURS)


def origin_of(frame: FrameType) -> int:
    """AGENT, FOREIGN or PASS for one frame; code made by `exec` belongs to the file that made it."""
    filename = frame.f_code.co_filename
    origin = known.get(filename)
    if origin is not None:
        return origin
    if filename.startswith("<") and not filename.startswith("<frozen"):
        # A generated `__init__`: dataclasses and attrs run it in the globals of the class's module
        made_by = frame.f_globals.get("__file__")
        return classify(made_by) if isinstance(made_by, str) else classify(filename)
    origin = classify(filename)
    if len(known) < _FILES_MAX:
        known[filename] = origin
        if origin == FOREIGN and filename not in _entry_files:
            foreign.add(filename)
    return origin


def is_agent(frame: FrameType | None) -> bool:
    """Whether the code that asks in this frame, or that lets it ask, is the agent's."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        origin = origin_of(frame)
        if origin == FOREIGN and frame.f_code in entries:
            return handed.by_agent
        if origin != PASS and frame.f_code not in between:
            return origin == AGENT
        frame = frame.f_back
    return False


def is_own(frame: FrameType | None) -> bool:
    """Whether it is the agent's own code, and not a framework's, that asks in this frame, or that lets it ask.

    How often a framework looks whether something is there may be a matter of time.
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
    by_agent = False
    """Whether the agent handed this thread the work that it does."""


handed: Final = _Handed()
entries: Final[set[CodeType]] = set()
"""Functions of ours that do handed work in a thread: below them, who handed it over is who asks."""
between: Final[set[CodeType]] = {threading.Thread.run.__code__}
"""Functions that a thread runs its work with, above `entries`: nobody asks in them."""
_HANDERS: Final = ("aiofiles", "anyio", "asgiref", "asyncer", "starlette/concurrency", "trio")
"""Folders of site-packages that hand work to threads for their caller, besides asyncio and concurrent.futures."""
_HANDERS_STDLIB: Final = frozenset({"asyncio", "concurrent", "futures", "threading.py"})
_handers: Final[dict[str, bool]] = {}


def enters_thread(function: CodeType) -> None:
    """Say that a function of ours does handed work in a thread."""
    entries.add(function)
    foreign.discard(function.co_filename)
    _entry_files.add(function.co_filename)


_entry_files: Final[set[str]] = set()
"""Never in `foreign`: whether who asks there is the agent depends on more than the file."""


def _hands_over(filename: str) -> bool:
    known_one = _handers.get(filename)
    if known_one is None:
        parts = filename.replace(os.sep, "/").split("/")
        is_stdlib = ids.is_stdlib_file(filename) and not _HANDERS_STDLIB.isdisjoint(parts[-3:])
        known_one = is_stdlib or is_ours(filename) or _is_in(filename, _HANDERS, whole=False)
        if len(_handers) < _FILES_MAX:
            _handers[filename] = known_one
    return known_one


def is_handed_by_agent(frame: FrameType | None) -> bool:
    """Whether it is the agent that hands work to a thread in this frame, by itself or with what does so for it.

    What of ours stands between, for an order of a replay, hands over too.
    """
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        origin = origin_of(frame)
        if origin == AGENT:
            return True
        if origin == FOREIGN and frame.f_code in entries:
            return handed.by_agent
        if origin == FOREIGN and not _hands_over(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return False


_FILE_CARRIERS: Final = frozenset(
    {
        "_compression",
        "bz2",
        "codecs",
        "configparser",
        "ElementTree",
        "filecmp",
        "fileinput",
        "gzip",
        "lzma",
        "netrc",
        "plistlib",
        "shutil",
        "tarfile",
        "wave",
        "zipfile",
    }
)
"""Modules of the standard library that open the files that their caller names."""
_FILE_LIBRARIES: Final = (
    "PIL",
    "fsspec",
    "markitdown",
    "numpy",
    "pdfminer",
    "pdfplumber",
    "polars",
    "unstructured",
    "xlrd",
    "yaml",
)
"""Folders of site-packages that open the files that their caller names."""


_FILE_MODULES: Final = ("aiofiles/", "anyio/_core/_fileio", "trio/_file_io", "trio/_path")
"""Files of site-packages that do the same, in threads of their own."""


def _carries_files(filename: str) -> bool:
    if _is_in(filename, _FILE_LIBRARIES, whole=True) or _is_in(filename, _FILE_MODULES, whole=False):
        return True
    parts = filename.replace(os.sep, "/").removesuffix(".py").split("/")
    return ids.is_stdlib_file(filename) and not _FILE_CARRIERS.isdisjoint(parts[-2:])


_for_themselves: Final[set[str]] = set()
"""Code files of libraries that open files of their own, for the one test that each of those pays for."""


def asks_for_files(frame: FrameType | None) -> bool:
    """Whether it is the agent that opens a file here, by itself or with a library that opens what it is told to."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        filename = frame.f_code.co_filename
        if filename in _for_themselves:
            return False
        origin = origin_of(frame)
        if origin == AGENT:
            return True
        if origin == FOREIGN and frame.f_code in entries:
            return handed.by_agent
        if origin == FOREIGN and frame.f_code not in between and not _carries_files(filename):
            if filename in foreign:  # not where it depends on more than the file's name
                _for_themselves.add(filename)
            return False
        frame = frame.f_back
    return False


_LOGS: Final = ("loguru",)
"""Folders of site-packages that keep a log of what the agent does, as `logging` does."""


def keeps_log(frame: FrameType | None) -> bool:
    """Whether a file is opened here for a log that the agent sets up; what is in it is nobody's input."""
    is_log = False
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        filename = frame.f_code.co_filename
        if _is_in(filename, _LOGS, whole=True) or (
            ids.is_stdlib_file(filename) and f"{os.sep}logging{os.sep}" in filename
        ):
            is_log = True
        elif not is_ours(filename):
            return is_log and asks_for_files(frame)
        frame = frame.f_back
    return False


LIBRARY: Final = "library"
_LOOK_CARRIERS: Final = frozenset({"filecmp", "genericpath", "glob", "ntpath", "posixpath"})
"""Modules of the standard library that look at the paths that their caller names."""
_RESOLVERS: Final = frozenset({"_joinrealpath", "_realpath", "realpath", "resolve"})
"""Functions that look at every folder of a path, of which the caller learns nothing but where links lead; as little as
from what removes a tree."""
_looks_for_itself: Final[set[str]] = set()


def _carries_looks(filename: str) -> bool:
    stem = filename.replace(os.sep, "/").rpartition("/")[2].removesuffix(".py").removesuffix(">")
    is_carrier = stem.removeprefix("<frozen ") in _LOOK_CARRIERS and ids.is_stdlib_file(filename)
    return is_carrier or _carries_files(filename)


def find_looker(frame: FrameType | None) -> str:
    """`agent` or LIBRARY, whose code wants to know of a file here; '' where it is nobody of the run."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return ""
        code = frame.f_code
        filename = code.co_filename
        if filename in _looks_for_itself:
            return ""
        origin = origin_of(frame)
        if origin == AGENT:
            return "agent" if ids.is_agent_file(filename) else LIBRARY
        if origin == FOREIGN and code in entries:
            return "agent" if handed.by_agent else ""
        if origin == FOREIGN and code not in between and not _carries_looks(filename):
            if filename in foreign:
                _looks_for_itself.add(filename)
            return ""
        if code.co_name in _RESOLVERS or "rmtree" in code.co_name:
            return ""
        frame = frame.f_back
    return ""
