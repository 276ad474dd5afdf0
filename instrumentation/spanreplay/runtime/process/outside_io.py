"""Input and output outside every boundary: who caused it, and whether it matters."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Final
from urllib.parse import urlsplit

from spanreplay.model import distributions as installed
from spanreplay.model import ids, owners
from spanreplay.model.here import PACKAGE
from spanreplay.runtime.caller.caller import FRAMES_MAX, is_among
from spanreplay.runtime.caller.reporting import is_others, passes_on

_REPORTING: Final = ("agno/api/",)
"""Parts of distributions that report about the agent."""

_HARMLESS: Final = frozenset({"platform", "ctypes/util", "uuid", "sysconfig", "_osx_support", "_sysconfigdata"})
"""Modules of the standard library that start a program only to identify the machine."""

SAID: Final = {
    "socket": "opened a socket to {detail} outside of every boundary",
    "descriptor": "used a connection to {detail} by its descriptor, which is not recorded",
    "connection": "used a connection to {detail} that is not recorded",
    "native connection": "connected to {detail}, which is not recorded",
    "process": "started {detail} outside of every boundary ({what})",
    "file": "read {detail} in a way that is not recorded ({what})",
    "clock": "read the clock with {what}, which is not recorded",
    "random": "drew random bytes with {what}, which is not recorded",
    "environment": "read {detail} with {what}, which is not as recorded",
    "device": "read {detail} with {what}, which is not recorded",
    "events": "watches files ({detail}), and what it learns is not recorded",
    "native": "called into {detail} with {what}, which is not recorded",
    "fork": "forked, and the calls of the child are not in this run",
}
"""Kind of leak → the message for a user, after its place."""


def strip_query(detail: str) -> str:
    """A name without parts that may be secret: the user, the query and the fragment of a URL."""
    if "://" not in detail:
        return detail
    parts = urlsplit(detail)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


_LOGGING: Final = f"{os.sep}logging{os.sep}"


# ── Who did it ──────────────────────────────────────────────────────────────────────────────────────
class _Quiet(threading.local):
    depth = 0


quiet_state = _Quiet()


class unwatched:  # noqa: N801 -- reads as a statement: `with unwatched():`
    """A block of ours whose I/O in this thread is not a leak: it belongs to a call that has just been recorded."""

    def __enter__(self) -> None:
        quiet_state.depth += 1

    def __exit__(self, *exc_info: object) -> None:
        quiet_state.depth -= 1


def is_unwatched() -> bool:
    """Whether this thread is inside such a block."""
    return quiet_state.depth > 0


def _reports(filename: str) -> bool:
    if is_among(filename, (owners.TELEMETRY, owners.FLAGS)):
        return True
    return installed.split_site(filename)[1].startswith(_REPORTING)


def is_telemetry_stack(frame: FrameType | None, *below: CodeType) -> bool:
    """Whether code on this stack, up to the agent's, reports about the agent.

    Code that only wraps other code's functions, e.g. those that threads run, does not report what these do; what it
    imports works for it. `below` are functions of ours that this frame has called in place of others'.
    """
    inside = set(below)
    for _ in range(FRAMES_MAX):
        if frame is None or ids.is_agent_file(frame.f_code.co_filename):
            return False
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            inside.clear()
        elif _reports(name):
            if not passes_on(frame, inside):
                return True
        elif is_others(name):
            inside.add(frame.f_code)
        frame = frame.f_back
    return False


def is_library_log(frame: FrameType | None) -> bool:
    """Whether a handler of `logging` sends a library's record somewhere, such as a mail about an error.

    Which records a library writes, and with what text, may depend on the machine. Those of the agent are calls, and
    those of a thread that only passes records on, which may be the agent's (`QueueListener`).
    """
    is_log = False
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        name = frame.f_code.co_filename
        if ids.is_agent_file(name):
            return False
        if _LOGGING in name:
            is_log = True
        elif is_log and not ids.is_stdlib_file(name) and not name.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def is_harmless_spawn(frame: FrameType | None) -> bool:
    """Whether a program is started only to identify the machine."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        name = frame.f_code.co_filename
        if ids.is_agent_file(name):
            return False
        if ids.is_stdlib_file(name) and name.removesuffix(".py").endswith(tuple(f"/{each}" for each in _HARMLESS)):
            return True
        frame = frame.f_back
    return False


_MULTIPROCESSING: Final = f"{os.sep}multiprocessing{os.sep}"
_EXECUTES: Final = "_execute_child"
"""The method in which every `subprocess` forks."""
_FORK_FRAMES_MAX: Final = 12


def _in_terminal() -> object:
    """`pty.fork`, whose child becomes a program in a terminal of its own: pexpect, ptyprocess, `pty.spawn`."""
    return getattr(getattr(sys.modules.get("pty"), "fork", None), "__code__", None)


def starts_program(frame: FrameType | None) -> bool:
    """Whether a fork here only starts a program: the child does nothing for the agent."""
    for _ in range(_FORK_FRAMES_MAX):
        if frame is None:
            return False
        if frame.f_code.co_name == _EXECUTES or frame.f_code is _in_terminal():
            return True
        frame = frame.f_back
    return False


def is_known_start(frame: FrameType) -> bool:
    """Whether the standard library calls `fork_exec` here, which itself raises no audit event.

    `subprocess.Popen` has raised an audit event before; `multiprocessing` starts a Python for itself.
    """
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:  # the code that watches it
        frame = frame.f_back
    code = frame.f_code
    if code.co_name == _EXECUTES and ids.is_stdlib_file(code.co_filename):
        return True
    if code.co_name != "spawnv_passfds" or not _is_below_multiprocessing(frame):
        return False
    at = frame.f_back
    while at is not None and at.f_code.co_filename.startswith(PACKAGE):  # the seam
        at = at.f_back
    return at is not None and _is_below_multiprocessing(at)


def _is_below_multiprocessing(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return ids.is_stdlib_file(name) and _MULTIPROCESSING in name


def is_importing(frame: FrameType | None) -> bool:
    """Whether code is being loaded here by an `import`, and not opened by the agent."""
    for _ in range(FRAMES_MAX):
        if frame is None or frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        if ids.is_agent_file(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return False


_WATCH: Final = os.path.join(PACKAGE, "seams", "machine", "outside", "watch.py")  # noqa: PTH118 -- as frames name it


def describe_program(program: Any) -> str:
    """The name of a program, without its arguments: they may be secret."""
    listed = program if isinstance(program, (str, bytes, os.PathLike)) else (list(program) or [""])[0]
    text = os.fsdecode(listed)
    return os.path.basename(text.split()[0] if text.split() else text)  # noqa: PTH119 -- any text


def loader_of(frame: FrameType | None) -> FrameType | None:
    """The code that wants a library which `ctypes` loads here."""
    while frame is not None and (frame.f_code.co_filename == ctypes_file() or _is_watching(frame)):
        frame = frame.f_back
    return frame


def ctypes_file() -> str:
    """The code file of `ctypes`, which need not be loaded."""
    return str(getattr(sys.modules.get("ctypes"), "__file__", ""))


def _is_watching(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _WATCH


def describe_library(name: Any) -> str:
    """The C library, which can do anything; '' for the agent's own library, which only computes."""
    text = "" if name is None else os.path.basename(os.fsdecode(name))  # noqa: PTH119 -- any text
    return "the C library" if name is None or text.startswith(("libc.", "libc-", "libSystem")) else ""
