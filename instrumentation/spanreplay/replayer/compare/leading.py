"""Puts the most important divergence first: the exception that ended the agent, then calls, then reads."""

from __future__ import annotations

import errno
import linecache
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from spanreplay.model import ids
from spanreplay.model.call import Kind
from spanreplay.model.errors import ReplayMiss, Suspended
from spanreplay.replayer.divergence import Divergence
from spanreplay.runtime.process.last_error import find_last_error

__all__ = ["RAISED", "Raised", "find_raised", "put_first"]

RAISED: Final = "raised"
"""Kind of the divergence of an agent that ended with an exception."""
MESSAGE_CHARACTERS_MAX: Final = 200
_LINE_CHARACTERS_MAX: Final = 80
_FRAMES_MAX: Final = 1_000
_CAUSES_MAX: Final = 20
_REFUSED: Final = f"os error {errno.EACCES}"
"""EACCES in the words of Rust libraries."""
HINT: Final = "a replay denies connections of native code; SPANREPLAY_SANDBOX=python allows them"
_READS: Final = (f"{Kind.CLOCK.value}:", f"{Kind.RANDOM.value}:")
_AT_THE_END: Final = frozenset({"missing_call", "file_changed", RAISED})
"""Kinds that are only known after the agent has ended, so they can't have made it raise."""
_OF_THE_PROCESS: Final = "process:"


@dataclass(frozen=True)
class Raised:
    """The exception that ended the agent: its class, message, and the agent's own line; all redacted."""

    name: str
    message: str
    code: str
    line: str
    is_refused: bool = False
    """Whether the kernel refused something that has no file name, such as a connection."""


def find_raised(redact: Callable[[str], str]) -> Raised | None:
    """Return the exception that the interpreter printed at its end; None if there is none, or it is the replay's."""
    exception = find_last_error()
    if exception is None or isinstance(exception, (ReplayMiss, Suspended)):
        return None
    code, line = _find_line(exception.__traceback__)
    try:
        message = str(exception)
    except Exception:  # noqa: BLE001 -- the agent's own class may raise anything
        message = ""
    message = redact(message).strip().partition("\n")[0][:MESSAGE_CHARACTERS_MAX]
    shown = redact(line)[:_LINE_CHARACTERS_MAX]
    return Raised(type(exception).__name__, message, code, shown, _is_refused(exception))


def _is_refused(exception: BaseException) -> bool:
    """Whether the exception or one of its causes is an EACCES without a file, in the words of Python or native code."""
    each: BaseException | None = exception
    for _ in range(_CAUSES_MAX):
        if each is None:
            break
        if isinstance(each, OSError) and each.errno == errno.EACCES and each.filename is None:
            return True
        if any(isinstance(argument, str) and _REFUSED in argument for argument in each.args):
            return True
        each = each.__cause__ or each.__context__
    return False


def _find_line(traceback: TracebackType | None) -> tuple[str, str]:
    """Return the innermost frame of the agent: its place, and the text of its line."""
    found = ("", "")
    for _ in range(_FRAMES_MAX):
        if traceback is None:
            break
        code = traceback.tb_frame.f_code
        if ids.is_agent_file(code.co_filename):
            line = linecache.getline(code.co_filename, traceback.tb_lineno).strip()
            found = (ids.describe_place(code, traceback.tb_lineno), line)
        traceback = traceback.tb_next
    return found


def put_first(
    divergences: list[Divergence], raised: Raised | None, calls: int, *, is_offline: bool = False
) -> list[Divergence]:
    """Return the divergences, the most important first; `calls` is the number of calls before the agent ended.

    `is_offline`: whether the kernel denies connections.
    """
    found = _reads_last(divergences)
    if raised is None:
        return found
    ended = _describe(raised, calls)
    if is_offline and raised.is_refused:
        ended = replace(ended, hint=HINT)
    if any(not d.is_downstream and _may_have_raised(d) for d in found):
        return [*found, replace(ended, is_downstream=True)]
    return [ended, *(replace(d, is_downstream=True) for d in found)]


def _may_have_raised(divergence: Divergence) -> bool:
    is_late = divergence.kind in _AT_THE_END or divergence.boundary.startswith((_OF_THE_PROCESS, *_READS))
    return not is_late


def _reads_last(divergences: list[Divergence]) -> list[Divergence]:
    """Put differing reads of clocks and random sources after other differences, if there are any."""
    reads = [d for d in divergences if d.boundary.startswith(_READS)]
    others = [d for d in divergences if not d.boundary.startswith(_READS)]
    if not reads or all(d.is_downstream for d in others):
        # The effects of an early read keep their cause
        return divergences
    return [*others, *(replace(d, is_downstream=True) for d in reads)]


def _describe(raised: Raised, calls: int) -> Divergence:
    when = "before its first call" if not calls else f"after call {calls}"
    place, _, _ = raised.code.partition(" ")
    at = f" ({place}: {raised.line})" if place and raised.line else f" ({place})" if place else ""
    says = f": {raised.message}" if raised.message else ""
    return Divergence(
        kind=RAISED, boundary="", message=f"the agent raised {raised.name} {when}{at}{says}", code=raised.code
    )
