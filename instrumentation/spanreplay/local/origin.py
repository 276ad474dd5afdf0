"""Who asks: the agent's own code, a library that puts dates and ids into prompts, or anybody else.

Only the first two are recorded. The interpreter, logging, OpenTelemetry and ourselves see the real world always.
"""

from __future__ import annotations

import os
from types import FrameType
from typing import Final

from spanreplay import ids

LIBRARIES: Final = (
    "agno",
    "aiosqlite",
    "arrow",
    "autogen",
    "backoff",
    "beeai_framework",
    "crewai",
    "dspy",
    "faker",
    "google/adk",
    "haystack",
    "langchain",
    "langgraph",
    "letta",
    "llama_index",
    "nanoid",
    "pendulum",
    "pydantic_ai",
    "semantic_kernel",
    "shortuuid",
    "smolagents",
    "stamina",
    "strands",
    "tenacity",
    "ulid",
)
"""Folders of site-packages, by their first letters, that put dates and ids into prompts, or say how long they wait."""
BOOKKEEPING: Final = (
    "agno/api/",
    "crewai/events/",
    "crewai/memory/storage/kickoff_task_outputs",
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
    "pandas",
    "peewee",
    "pydantic",
    "pydantic_core",
    "sqlalchemy",
    "sqlite_utils",
    "wrapt",
)
"""Folders of site-packages that only carry out what their caller wants: the caller is who asks."""
_THROUGH_STDLIB: Final = frozenset(
    {"contextlib", "dataclasses", "functools", "pathlib", "subprocess", "os", "_collections_abc"}
)
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
    stem = module.rpartition("/")[2].removesuffix(".py")
    is_stdlib = filename.startswith("<frozen ") or not _is_in(filename, ("",), whole=False)
    is_pathlib = "/pathlib/" in module  # a package since Python 3.13
    return PASS if is_stdlib and not _is_ours(filename) and (stem in _THROUGH_STDLIB or is_pathlib) else FOREIGN


_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 -- start-up


def _is_ours(filename: str) -> bool:
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
        if origin == FOREIGN:
            foreign.add(filename)
    return origin


def is_agent(frame: FrameType | None) -> bool:
    """Whether the code that asks in this frame, or that lets it ask, is the agent's."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        origin = origin_of(frame)
        if origin != PASS:
            return origin == AGENT
        frame = frame.f_back
    return False


_FILE_CARRIERS: Final = frozenset(
    {
        "_compression",
        "bz2",
        "codecs",
        "configparser",
        "ElementTree",
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
_FILE_LIBRARIES: Final = ("PIL", "docx", "openpyxl", "polars", "pypdf", "xlsxwriter", "yaml")


def _carries_files(filename: str) -> bool:
    if _is_in(filename, _FILE_LIBRARIES, whole=True):
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
        if origin == FOREIGN and not _carries_files(filename):
            if filename in foreign:  # not where it depends on more than the file's name
                _for_themselves.add(filename)
            return False
        frame = frame.f_back
    return False
