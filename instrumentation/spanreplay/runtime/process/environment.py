"""The environment of a run: everything else that could have changed its result."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import sys
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from spanreplay.model import config, ids
from spanreplay.model.here import PACKAGE
from spanreplay.runtime.process import inherited_sockets
from spanreplay.runtime.process.machine import file_mask, time_zone

TEMPORARY: Final = "temporary"
"""Name of the folder for temporary files among the folders of an environment."""
_TEMPORARY: Final = "/tmp"  # noqa: S108 -- only its name
_PACKED_REFS_BYTES_MAX: Final = 4 * 1024 * 1024
RANDOM: Final = "random"
MODULE: Final = "module"
"""Member of an environment: the argument of `python -m`, which is not among the arguments of the program."""
TERMINALS: Final = "terminals"
"""Member of an environment: name of a standard stream that is a terminal → its columns and lines."""
STREAMS: Final = ("stdin", "stdout", "stderr")
_isatty: Final = os.isatty
_get_terminal_size: Final = os.get_terminal_size
CODE_FILES_MAX: Final = 200
_COMMAND_CHARACTERS_MAX: Final = 300
_CODE_BYTES_MAX: Final = 1024 * 1024
_VERSION: Final = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_PACKAGES: Final = (
    "anthropic",
    "httpx",
    "httpx2",
    "langchain-core",
    "langgraph",
    "mcp",
    "openai",
    "opentelemetry-sdk",
    "spanreplay",
)


def describe_environment(argv: list[str]) -> dict[str, Any]:
    """Code, interpreter and package versions of this process; the other moving parts are on the calls.

    Of the eight moving parts, sampler, prompt, retrieval, tools, model version and history are recorded on each call,
    the clock by the calls' times, and the serving stack by the response's fingerprint and headers.
    """
    module = config.find_module(argv[0] if argv else "")
    return {
        "argv": argv,
        **({MODULE: module} if module else {}),
        "cwd": Path.cwd().name,
        "folders": find_folders(argv),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": sys.platform,
        "machine": platform.machine(),
        "hash_seed": read_hash_seed(),
        time_zone.MEMBER: time_zone.describe_time_zone(),
        file_mask.MEMBER: file_mask.read_mask(),
        TERMINALS: _describe_terminals(),
        "git_sha": read_git_sha(Path.cwd()),
        "packages": _read_versions(),
        **inherited_sockets.describe(),
    }


def _describe_terminals() -> dict[str, list[int]]:
    return {name: _measure(descriptor) for descriptor, name in enumerate(STREAMS) if _isatty(descriptor)}


def _measure(descriptor: int) -> list[int]:
    try:
        return list(_get_terminal_size(descriptor))
    except OSError:
        return []


def show_command(env: Mapping[str, Any]) -> str:
    """The command line of a recorded process, as in a shell, without the interpreter; '' if its recording has none."""
    argv, module = env.get("argv"), env.get(MODULE)
    words = [str(each) for each in argv] if isinstance(argv, list) else []
    if module and words:
        words[:1] = ["-m", str(module)]
    shown = shlex.join(words)
    return shown if len(shown) <= _COMMAND_CHARACTERS_MAX else f"{shown[:_COMMAND_CHARACTERS_MAX]}…"


def find_folders(argv: list[str]) -> dict[str, str]:
    """The folders that the agent's texts may name: its working directory, its script's, its user's, Python's, …"""
    script = os.path.dirname(os.path.realpath(argv[0])) if argv and argv[0] else ""  # noqa: PTH120 -- text
    is_own = script and not script.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep))
    found = {
        "cwd": os.getcwd(),  # noqa: PTH109 -- text
        "home": os.path.expanduser("~"),  # noqa: PTH111 -- text
        TEMPORARY: _find_temporary(),
        "packages": os.path.dirname(os.path.dirname(PACKAGE)),  # noqa: PTH120 -- text
        "python": sys.executable,
        "stdlib": os.path.dirname(os.__file__),  # noqa: PTH120 -- text
    }
    return {**found, "code": script} if is_own else found


def _find_temporary() -> str:
    """The folder of `tempfile`, which is not imported for it."""
    given = (os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    found = (os.path.abspath(path) for path in given if path and os.path.isdir(path))  # noqa: PTH100, PTH112 -- text
    return next(found, _TEMPORARY)


def read_hash_seed() -> str:
    """The seed of string hashes, which order sets; `random` if Python chose one and keeps it secret."""
    seed = os.environ.get("PYTHONHASHSEED", "")
    if not sys.flags.hash_randomization:
        return "0"
    return seed if seed.isdecimal() and not sys.flags.ignore_environment else RANDOM


def _read_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, distribution

    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            installed = distribution(package)
        except PackageNotFoundError:
            continue
        # Parsing the whole file takes milliseconds: most of it is the package's README
        stated = _VERSION.search(installed.read_text("METADATA") or "")
        found[package] = installed.version if stated is None else stated[1]
    return found


_looked_at: dict[str, tuple[object, str, str]] = {}
"""Name of a loaded module → its loader, its file, the file's hash; both '' if it is not the agent's."""


def describe_code(among: Collection[str] | None = None) -> dict[str, str]:
    """The agent's own source files that are loaded: path → hash; at most CODE_FILES_MAX, large ones left out.

    `among` are the names of the modules to look at; None for all. A file is read again only after its module has been
    loaded again: a test suite of a thousand runs reads it once.
    """
    global _looked_at
    files: dict[str, str] = {}
    looked_at: dict[str, tuple[object, str, str]] = {}
    for name, module in list(sys.modules.items()):
        if among is not None and name not in among:
            continue
        loaded_by = _loaded_by(module)
        known = _looked_at.get(name)
        if known is None or known[0] is not loaded_by:
            path = _agent_file_of(module)
            if path and len(files) >= CODE_FILES_MAX:
                continue
            known = (loaded_by, path, hash_file(Path(path)) if path else "")
        looked_at[name] = known
        _, path, found = known
        if found and len(files) < CODE_FILES_MAX:
            files[ids.shorten(path)] = found
    _looked_at = looked_at if among is None else {**_looked_at, **looked_at}
    return dict(sorted(files.items()))


def _loaded_by(module: object) -> object:
    """An object that changes when a module is loaded again, also by `reload`; a script's is a reference to the module.

    Keeping a script itself would keep its objects until Python has cleared the modules that their finalizers need.
    """
    spec = module.__dict__.get("__spec__") if isinstance(module, ModuleType) else None
    try:
        return spec or weakref.ref(module)
    except TypeError:  # `sys.modules` may contain anything
        return module


class LoadedCode:
    """`describe_code` for a process that forks: each module is looked at once, also for processes forked from this one.

    Touching every module of a process that was just forked copies most of its memory, which takes tens of milliseconds.
    """

    def __init__(self) -> None:
        self._known: tuple[frozenset[str], dict[str, str]] = (frozenset(), {})
        self._looked_at: tuple[int, list[str]] | None = None
        """How many modules there were at the last look, and the last of them: new ones come last."""

    def look(self) -> dict[str, str]:
        """All files of the agent that are loaded by now, as they were when their modules were first seen."""
        seen, files = self._known
        loaded = list(sys.modules)
        state = len(loaded), loaded[-1:]
        if state == self._looked_at:
            return files
        if not seen.issuperset(loaded):
            new = [name for name in loaded if name not in seen]
            added: dict[str, str] = {}
            for name in new:
                path = _agent_file_of(sys.modules.get(name))
                has_room = len(files) + len(added) < CODE_FILES_MAX
                found = hash_file(Path(path)) if path and has_room else ""
                if found:
                    added[ids.shorten(path)] = found
            files = dict(sorted({**files, **added}.items()))
            self._known = (seen.union(new), files)  # in one assignment: other threads may look too
        self._looked_at = state
        return files


def _agent_file_of(module: object) -> str:
    """The source of one of the agent's modules; '' for any other object, since `sys.modules` may contain anything."""
    name = _source_of(module) if isinstance(module, ModuleType) else None
    return name if isinstance(name, str) and name.endswith(".py") and ids.is_agent_file(name) else ""


def _source_of(module: ModuleType) -> object:
    """The file of a module; a script loses its `__file__` after it has run to its end, but keeps its loader."""
    known = module.__dict__
    return known.get("__file__") or getattr(known.get("__loader__"), "path", None)


def hash_file(path: Path) -> str:
    """The first 16 hexadecimal digits of a file's SHA-256; '' if it can't be read or is too large."""
    try:
        if path.stat().st_size > _CODE_BYTES_MAX:
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def read_git_sha(directory: Path) -> str:
    """The commit that is checked out at or above a directory, read from files; '' if there is none."""
    for folder in (directory, *directory.parents):
        dot_git = folder / ".git"
        if not dot_git.exists():
            continue
        try:
            git_dir = dot_git
            if dot_git.is_file():
                git_dir = folder / dot_git.read_text().partition("gitdir:")[2].strip()
            return _read_head(git_dir)
        except OSError:
            return ""
    return ""


def _read_head(git_dir: Path) -> str:
    head = (git_dir / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head
    ref = head.partition(":")[2].strip()
    common = git_dir / "commondir"
    roots = [git_dir] + ([git_dir / common.read_text().strip()] if common.exists() else [])
    for root in roots:
        loose = root / ref
        if loose.exists():
            return loose.read_text().strip()
        packed = root / "packed-refs"
        if packed.exists() and packed.stat().st_size < _PACKED_REFS_BYTES_MAX:
            for line in packed.read_text().splitlines():
                sha, _, name = line.partition(" ")
                if name == ref:
                    return sha
    return ""
