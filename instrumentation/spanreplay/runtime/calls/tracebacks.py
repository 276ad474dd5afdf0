"""The stack of an exception below a boundary: recorded, and rebuilt in a replay in which no body ran.

Agents print tracebacks and hand them to models (`traceback.format_exc()`): both must be the same text. Our own frames
are left out in both the recording and the replay.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

from spanreplay.model.here import PACKAGE

FRAMES_MAX: Final = 100
"""Frames of a deeper stack are left out in the middle."""
_NOWHERE: Final = -1
"""Index of an instruction without columns."""
_HAS_POSITIONS: Final = sys.version_info >= (3, 11)


class _Probe(Exception):
    pass


def strip(exc: BaseException) -> None:
    """Remove our own frames from the traceback of an exception that came from a body."""
    whole = list(_iter_traceback(exc.__traceback__))
    kept = [tb for tb in whole if not tb.tb_frame.f_code.co_filename.startswith(PACKAGE)]
    if len(kept) == len(whole):
        return
    below: TracebackType | None = None
    for tb in reversed(kept):
        below = TracebackType(below, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    exc.__traceback__ = below


def describe(exc: BaseException) -> list[list[Any]]:
    """Each frame, outermost first.

    As [file, name, qualified name, first line, last line, first column, end column, module].
    """
    frames = [_describe_frame(tb) for tb in _iter_traceback(exc.__traceback__)]
    if len(frames) > FRAMES_MAX:
        frames = [*frames[: FRAMES_MAX // 2], *frames[-FRAMES_MAX // 2 :]]
    return frames


def restore(exc: BaseException, frames: Any, find_file: Callable[[str], str] = str) -> None:
    """Give an exception the described traceback; frames that can't be rebuilt are left out.

    `find_file`: path of a recorded file → its path now.
    """
    below: TracebackType | None = None
    for described in reversed(frames if isinstance(frames, list) else []):
        try:
            file, *rest = described
            frame, instruction, line = _make_frame(find_file(file), *rest)
            below = TracebackType(below, frame, instruction, line)
        except (TypeError, ValueError, SyntaxError, OverflowError):
            continue
    exc.__traceback__ = below


def _iter_traceback(tb: TracebackType | None) -> Any:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _describe_frame(tb: TracebackType) -> list[Any]:
    code = tb.tb_frame.f_code
    line, last, column, end = tb.tb_lineno, None, None, None
    if _HAS_POSITIONS and tb.tb_lasti >= 0:
        at = tb.tb_lasti // 2
        positions = next(itertools.islice(code.co_positions(), at, at + 1), None)
        if positions is not None and positions[0] == line:
            _, last, column, end = positions
    module = tb.tb_frame.f_globals.get("__name__")
    names = [code.co_filename, code.co_name, getattr(code, "co_qualname", code.co_name)]
    return [*names, line, last, column, end, module if isinstance(module, str) else ""]


def _make_frame(
    file: str,
    name: str,
    qualified: str,
    line: int,
    last: int | None,
    column: int | None,
    end: int | None,
    module: str = "",
) -> tuple[FrameType, int, int]:
    has_place = last is not None and column is not None and end is not None
    place: dict[str, Any] = {
        "lineno": line,
        "end_lineno": last if has_place else line,
        "col_offset": column if has_place else 0,
        "end_col_offset": end if has_place else 0,
    }
    statement = ast.Raise(exc=ast.Name(id="problem", ctx=ast.Load(), **place), cause=None, **place)
    code = compile(ast.Module(body=[statement], type_ignores=[]), file, "exec")
    names: dict[str, Any] = {"co_name": name, **({"co_qualname": qualified} if _HAS_POSITIONS else {})}
    try:
        exec(code.replace(**names), _make_globals(module), {})  # noqa: S102 -- it only raises
    except _Probe as probe:
        tb = probe.__traceback__
        while tb is not None and tb.tb_next is not None:
            tb = tb.tb_next
        if tb is not None:
            return tb.tb_frame, tb.tb_lasti if has_place else _NOWHERE, line
    raise ValueError("no frame")


def _make_globals(module: str) -> dict[str, Any]:
    """Globals of a frame; `linecache` asks a module's loader for its source, which a compiled one does not have."""
    found: dict[str, Any] = {"problem": _Probe(), "__builtins__": {}, "__name__": module}
    loaded = sys.modules.get(module)
    if loaded is not None and "__loader__" in vars(loaded):
        found["__loader__"] = vars(loaded)["__loader__"]
    return found
