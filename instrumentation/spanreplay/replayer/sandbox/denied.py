"""Tells from an exception whether this replay denied native code a file.

An exception counts if it names a file that this process could write without the guard, or one that only the replay has.
An exception without a name counts only if the agent ended by it and didn't when recorded. Anything served from the
recording says nothing about this machine.
"""

from __future__ import annotations

import contextlib
import errno
import opcode
import os
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple

from spanreplay.model import ids
from spanreplay.replayer.resolve.session import Session
from spanreplay.replayer.sandbox import overlay
from spanreplay.runtime.run import Run

_EXCEPTIONS_MAX: Final = 20
_TEXT_CHARACTERS_MAX: Final = 4_096
_DENIED: Final = re.compile(
    r"permission denied|\berr(?:or|no)\W{1,3}13\b|unable to open database file|readonly database", re.IGNORECASE
)
"""EACCES in the words of C, Rust and SQLite."""
_ABSENT: Final = re.compile(r"no such file|no files? found|\berr(?:or|no)\W{1,3}2\b", re.IGNORECASE)
_QUOTED: Final = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|`([^`\n]+)`|(?<![\w/])(/[^\s'\"`,;:()]+)")
_RAISE: Final = opcode.opmap["RAISE_VARARGS"]
_NATIVE_SOURCES: Final = (".pyx", ".pxi", ".pxd")


class Denied(NamedTuple):
    """The message for a report, and the agent's code that caused it."""

    message: str
    code: str
    is_connection: bool = False
    """Whether a connection was denied, not a file, as far as the exception tells."""


def find_denied(
    exc: BaseException, session: Session, run: Run, free: tuple[str, ...], *, is_nameless: bool
) -> Denied | None:
    """Return the denial that caused this exception, if any; nothing is denied within `free`."""
    reader = _Reader(session, run, free)
    for each in _chain(exc):
        said = "" if _is_of_overlay(each) else reader.describe(each)
        if said:
            return Denied(said, _place(each.__traceback__))
    for each in _chain(exc):
        if is_nameless and _DENIED.search(_text(each)) and _is_native(each):
            is_connection = session.guard is not None and session.guard.is_offline and _tells_of_connection(each)
            what = "make no connection" if is_connection else "change no file"
            said = f"native code failed with {type(each).__name__}: this replay lets it {what}"
            return Denied(said, _place(each.__traceback__), is_connection)
    return None


def _tells_of_connection(exc: BaseException) -> bool:
    return "connect" in f"{type(exc).__name__} {_text(exc)}".lower()


class _Reader:
    def __init__(self, session: Session, run: Run, free: tuple[str, ...]) -> None:
        self._session = session
        self._run = run
        self._free = free

    def describe(self, exc: BaseException) -> str:
        """Describe what this replay did to an exception's file; '' if it names none, or one the system protects."""
        text, number = _text(exc), exc.errno if isinstance(exc, OSError) else None
        named = (name for name in _names(exc, text) if "\0" not in name)
        if number in (errno.EACCES, errno.EXDEV) or _DENIED.search(text):
            name = next(filter(self._is_guarded, named), "")
            if not _is_native(exc) and self._is_served():
                return ""
            return name and f"changing {_last(name)} from native code was denied: no boundary covers it"
        if _is_native(exc) and (number == errno.ENOENT or _ABSENT.search(text)):
            name = next(filter(self._is_ours, named), "")
            return (
                name and f"native code can't find {_last(name)}: only Python code sees the files that a replay writes"
            )
        return ""

    def _is_guarded(self, name: str) -> bool:
        """Whether this process may change or create a file, so that only the guard denies it."""
        path = os.path.realpath(name)
        if any(path == each or path.startswith(each + os.sep) for each in self._free):
            return False
        # It checks file permissions, which the guard leaves alone
        return os.access(path if os.path.exists(path) else os.path.dirname(path), os.W_OK)  # noqa: PTH110, PTH120 -- text

    def _is_ours(self, name: str) -> bool:
        """Whether a file, or the folder that it would be in, exists only in this replay."""
        files = self._run.overlay
        return files is not None and (files.holds(name) or files.holds(os.path.dirname(name)))  # noqa: PTH120 -- text

    def _is_served(self) -> bool:
        """Whether something served from the recording contains the same message."""
        used = self._session.index.used
        return any(c.seq in used and _DENIED.search(c.response) for c in self._session.recording.calls)


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its causes, and the members of exception groups."""
    left, seen = [exc], 0
    while left and seen < _EXCEPTIONS_MAX:
        each = left.pop(0)
        if each is None:
            continue
        seen += 1
        yield each
        left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def _text(exc: BaseException) -> str:
    with contextlib.suppress(Exception):  # the exception's own class may raise anything
        return str(exc)[:_TEXT_CHARACTERS_MAX]
    return ""


def _names(exc: BaseException, text: str) -> Iterator[str]:
    """Yield possible file names in an exception and in its text."""
    if isinstance(exc, OSError):
        yield from (name for name in (exc.filename, exc.filename2) if isinstance(name, str))
    for match in _QUOTED.finditer(text):
        name = next(filter(None, match.groups()))
        if os.sep in name or os.path.splitext(name)[1]:  # noqa: PTH122 -- text
            yield name


def _last(name: str) -> str:
    return os.path.basename(name.rstrip(os.sep))  # noqa: PTH119 -- text


def _innermost(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _is_of_overlay(exc: BaseException) -> bool:
    """Whether Python code asked for the file, through a function that knows the replay's files."""
    at = _innermost(exc.__traceback__)
    return at is not None and at.tb_frame.f_code.co_filename == overlay.__file__


def _is_native(exc: BaseException) -> bool:
    """Whether something other than a `raise` in Python code made it."""
    at = _innermost(exc.__traceback__)
    if at is None:
        return False
    code = at.tb_frame.f_code
    if code.co_filename.endswith(_NATIVE_SOURCES):
        return True
    return 0 <= at.tb_lasti < len(code.co_code) and code.co_code[at.tb_lasti] != _RAISE


def _place(traceback: TracebackType | None) -> str:
    """Return the innermost place in the agent's code."""
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if ids.is_agent_file(code.co_filename) and not code.co_filename.endswith(_NATIVE_SOURCES):
            found = ids.describe_place(code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
