"""Environment variables and `.env` files that a run has used, redacted.

A replay provides them to an agent that lacks them.

A variable is used when the agent, or a library that works for it, reads it by name. Code that copies the whole
environment (`dict(os.environ)`, `os.environ.items()`, pydantic-settings) has used only the names that the agent's
source mentions. The kept value is the one with which the run began: variables that the agent sets itself, it sets in a
replay too.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import ids, owners
from spanreplay.redact.names import looks_like_credential, secret_name
from spanreplay.runtime.caller.caller import FOREIGN, FRAMES_MAX, PASS, between, entries, handed, is_among, origin_of
from spanreplay.runtime.process.noted_effects import first_environ
from spanreplay.runtime.process.outside_io import unwatched

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

VARIABLES: Final = "variables"
"""Member of the manifest: name → redacted value, null for a variable that was not set."""
ENV_FILES: Final = "env_files"
"""Member of the manifest: files that set variables, each with its place, times and redacted content."""
CODE, CWD = "code", "cwd"
NAMES_MAX: Final = 500
"""Limit for variables that were set, and for those that were not: frameworks look for hundreds of unset settings."""
VALUE_CHARACTERS_MAX: Final = 32 * 1024
FILES_MAX: Final = 10
FILE_BYTES_MAX: Final = 64 * 1024
_COPIES_MAX: Final = 20
_PASSES_MAX: Final = 8
"""How many passes of one thread are remembered: nested open ones, and ended ones."""
_SOURCES_MAX: Final = 200
_SOURCE_BYTES_MAX: Final = 1024 * 1024
_MACHINE: Final = re.compile(
    r"HOME|PWD|OLDPWD|SHLVL|TERM|TMPDIR|TEMP|TMP|LANG|LANGUAGE|VIRTUAL_ENV|DISPLAY|BAGGAGE|TRACEPARENT|TRACESTATE"
    r"|_|PATH|(?:LC|LD|DYLD|XDG|SSH|DBUS|PYTEST|OTEL|SPANREPLAY)_.*|PYTHON.*|.*_(?:PROXY|proxy)|SSL.*|.*CA_BUNDLE"
)
"""Variables that describe this machine's folders and network: another machine has its own, or none."""
_ENV_FILE: Final = re.compile(r"\.env|\.env\..+|.+\.env")
_SDKS: Final = (owners.MODEL_SDKS, owners.SERVERS, owners.compile_row("aiobotocore boto3 botocore"))
"""Plumbing that reads its keys, or its application's settings, from variables."""
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LITERAL: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
"""A JSON string; if the second group matches, it is a name."""
_PREFIX_CHARACTERS_MIN: Final = 3
ASSIGNMENT: Final = re.compile(
    r"(?m)^(?P<before>[ \t]*(?:export[ \t]+)?(?P<name>[\w.-]+)[ \t]*=[ \t]*)(?P<value>[^\n]*)"
)
"""A line of a `.env` file."""


def is_env_file(path: str) -> bool:
    """Whether a file's name says that it sets variables."""
    return _ENV_FILE.fullmatch(os.path.basename(path)) is not None  # noqa: PTH119 -- text


@functools.lru_cache(maxsize=4096)
def may_be_given(name: str) -> bool:
    """Whether a variable may be taken over from another machine."""
    return bool(name) and _MACHINE.fullmatch(name) is None


def is_used(frame: FrameType | None) -> bool:
    """Whether the agent, a library that works for it or an SDK reads a variable in this frame."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        origin = origin_of(frame)
        if origin == FOREIGN and frame.f_code in entries:
            return handed.by != FOREIGN
        if origin != PASS and frame.f_code not in between:
            return origin != FOREIGN or is_among(frame.f_code.co_filename, _SDKS)
        frame = frame.f_back
    return False


class Copy:
    """One pass over the names of the environment: all of them, and those whose value was read with it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {id(name): name for name in names}
        self._read: set[str] = set()
        self.is_known = False

    def has(self, name: object) -> bool:
        """Whether this very string object came from the pass, rather than from the reader's own code."""
        return self._names.get(id(name)) is name

    def read(self, name: str) -> None:
        """Note that a value was read by a name from the pass."""
        self._read.add(name)

    @property
    def chosen(self) -> set[str]:
        """The names whose value was read, if they were chosen; nothing where all were."""
        return self._read if len(self._read) < len(self._names) else set()


class _Passes(threading.local):
    def __init__(self) -> None:
        self.open: list[Copy] = []
        self.ended: deque[Copy] = deque(maxlen=_PASSES_MAX)

    def find(self, name: object) -> Copy | None:
        """The pass that a name came from, the newest first."""
        if not (self.open or self.ended):
            return None
        return next((each for each in (*reversed(self.ended), *reversed(self.open)) if each.has(name)), None)


_passes: Final = _Passes()


def is_passed(name: object) -> bool:
    """Whether a name came from a pass over the environment in this thread."""
    return _passes.find(name) is not None


def go_through(names: list[str]) -> Iterator[str]:
    """Yield the names to a pass in this thread."""
    copied, here, ended = Copy(names), _passes.open, _passes.ended
    here.append(copied)
    del here[:-_PASSES_MAX]
    try:
        yield from names
    finally:  # perhaps in another thread, if that collects the generator
        if copied in here:
            here.remove(copied)
        ended.append(copied)


class UsedVariables:
    """The variables and files that one run has used so far. Thread-safe: single operations on dictionaries."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._names: dict[str, bool] = {}
        """Name → whether it was set."""
        self._left = {True: NAMES_MAX, False: NAMES_MAX}
        self._copies: list[Copy] = []
        self._files: dict[str, dict[str, Any]] = {}

    def read(self, name: object, frame: FrameType) -> None:
        """Note that a variable is read in this frame."""
        copied = _passes.find(name)
        if copied is not None and isinstance(name, str):
            copied.read(name)
            if not copied.is_known and len(self._copies) < _COPIES_MAX and is_used(frame):
                copied.is_known = True
                self._copies.append(copied)
            return
        text = os.fsdecode(name) if isinstance(name, (str, bytes)) else ""
        if text not in self._names and may_be_given(text) and is_used(frame):
            self.add([text])

    def is_settled(self, name: str) -> bool:
        """Whether further readings of a variable by its name add nothing."""
        return name in self._names or not may_be_given(name)

    def add(self, names: Iterable[str]) -> None:
        """Note that these variables are used; values of secret names are redacted everywhere from now on."""
        for name in names:
            if name in self._names or not may_be_given(name):
                continue
            value = first_environ(self._run).get(name) or os.environ.get(name)
            is_set = value is not None
            if self._left[is_set] <= 0:
                continue
            self._left[is_set] -= 1
            self._names[name] = is_set
            if self._learns and secret_name(name) is not None:
                self._clean(name, value)

    @property
    def _learns(self) -> bool:
        """Whether secret variables are redacted in texts: not in a replay of a recording that did not do so."""
        resolver = self._run.resolver
        return resolver.keeps or VARIABLES in resolver.answers.recording.root.manifest

    def read_file(self, path: str, is_data: bool) -> None:
        """Keep a `.env` file that is read outside every call; `is_data`: the read is a call after all."""
        if not self._run.resolver.keeps or is_data or not is_env_file(path) or len(self._files) >= FILES_MAX:
            return
        with unwatched():
            whole = os.path.abspath(path)  # noqa: PTH100 -- links stay
            is_own = self._run.written is not None and self._run.written.has(whole)
            if whole in self._files or is_own or not os.path.isfile(whole):  # noqa: PTH113 -- text
                return
            with open(whole, "rb") as source:  # noqa: PTH123 -- our own read, not a call
                content = source.read(FILE_BYTES_MAX + 1)
                found = os.fstat(source.fileno())
        if len(content) <= FILE_BYTES_MAX:
            times = [found.st_atime_ns, found.st_mtime_ns]
            text = content.decode("utf-8", "replace")
            self._files[whole] = {**_place(self._run, whole), "times": times, "content": text}

    def describe(self) -> dict[str, Any]:
        """Members for the manifest."""
        if self._copies:
            self.add(sorted(set().union(*(each.chosen for each in self._copies))))
            if any(not each.chosen for each in self._copies):
                self.add(find_mentioned(first_environ(self._run), _read_sources()))
        first = first_environ(self._run)
        values = {name: self._clean(name, first.get(name)) for name in sorted(self._names)}
        redactor = self._run.redactor
        files = [{**each, "content": clean_env_text(redactor, each["content"])} for each in self._files.values()]
        return {VARIABLES: values, **({ENV_FILES: files} if files else {})}

    def _clean(self, name: str, value: str | None) -> str | None:
        if value is None or len(value) > VALUE_CHARACTERS_MAX:
            return None
        return clean_variable(self._run.redactor, name, value)


def clean_variable(redactor: Any, name: str, value: str) -> str:
    """The redacted value of a variable, also by its name; in JSON, strings that look like credentials are hidden."""
    clean: Any = redactor.value({name: value})
    text = str(clean[name] if isinstance(clean, dict) and name in clean else clean)
    if text.lstrip()[:1] not in ("{", "["):
        return text

    def hide(literal: re.Match[str]) -> str:
        inside = literal[1]
        is_hidden = looks_like_credential(inside) and "rdx-" not in inside
        return f'"{redactor.token(inside)}"' if is_hidden and not literal[2] else literal[0]

    return _LITERAL.sub(hide, text)


def clean_env_text(redactor: Any, text: str) -> str:
    """The content of a `.env` file, redacted: first obvious secrets, then values whose name marks them as secret."""

    def clean(line: re.Match[str]) -> str:
        value = line["value"].rstrip()
        end = line["value"][len(value) :]
        quote = value[0] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'`" else ""
        bare = value[1:-1] if quote else value
        if not bare or "rdx-" in bare:
            return line[0]
        return f"{line['before']}{quote}{clean_variable(redactor, line['name'], bare)}{quote}{end}"

    return ASSIGNMENT.sub(clean, str(redactor.text(text)))


def _place(run: Run, path: str) -> dict[str, str]:
    """Where a file lies, relative to the agent's script or else its working directory."""
    folders = run.environment.get("folders")
    known: Mapping[str, str] = folders if isinstance(folders, Mapping) else {}
    base = CODE if known.get(CODE) else CWD
    return {"from": base, "path": os.path.relpath(path, known.get(base) or os.getcwd())}  # noqa: PTH109 -- text


def find_mentioned(first: Mapping[str, str], sources: Iterable[str]) -> list[str]:
    """The variables whose name (ignoring case), or whose prefix including `_`, appears in one of these texts."""
    words = {word.lower() for text in sources for word in _WORD.findall(text)}
    starts = tuple(w for w in words if w.endswith("_") and len(w) >= _PREFIX_CHARACTERS_MIN and w.strip("_"))
    return sorted(name for name in first if name.lower() in words or name.lower().startswith(starts))


def _read_sources() -> Iterator[str]:
    """The agent's own source files that are loaded."""
    modules: list[object] = list(sys.modules.values())  # `sys.modules` may contain anything
    files: dict[str, None] = {}
    for module in modules:
        known = module.__dict__ if isinstance(module, ModuleType) else {}
        name = known.get("__file__") or getattr(known.get("__loader__"), "path", None)
        if isinstance(name, str) and name.endswith(".py") and ids.is_agent_file(name) and len(files) < _SOURCES_MAX:
            files[name] = None
    for name in files:
        try:
            with unwatched(), Path(name).open("rb") as source:
                yield source.read(_SOURCE_BYTES_MAX).decode("utf-8", "replace")
        except OSError:
            continue
