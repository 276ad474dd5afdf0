"""What was in a file before the run appended to it: an input as soon as the run reads the file.

Most files that a program appends to are never read by it, and may be large; so their content is recorded at the first
reading, once. A replay puts it in front of what the run has appended by then.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config
from spanreplay.model.call import Effect, Kind
from spanreplay.model.code_state import CONTENT
from spanreplay.runtime.caller.places import is_input
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.process.noted_effects import APPENDED_CONTENT
from spanreplay.runtime.process.outside_io import unwatched

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

__all__ = ["fill_appended"]

_NAME: Final = "earlier_content"


def fill_appended(run: Run, real: Any, path: str) -> None:
    """Record what was there before if the run has appended to a file outside its code. `real` is `open`.

    Raises: ReplayMiss.
    """
    written = run.written
    if written is None or not run.resolver.has(APPENDED_CONTENT) or not is_input(path):
        return
    base = written.take_base(path)
    if base is None:
        return
    is_live = False

    def live() -> dict[str, Any]:
        nonlocal is_live
        is_live = True
        if base > config.FILE_BYTES_MAX:
            run.hole(f"the agent appended to {path!r} and read it, which is larger than {config.FILE_BYTES_MAX} bytes")
            return {"is_too_large": True}
        content = _read(real, path, 0, base)
        return {"sha256": hashlib.sha256(content).hexdigest(), CONTENT: content}

    arguments = {"path": written.name(path)}
    value = call_sync(lambda: FunctionCall(Kind.TOOL.value, _NAME, Effect.READ.value, arguments), live)
    if is_live or run.overlay is None:
        return
    if CONTENT not in value:
        run.resolver.leave_out(f"the content of {path!r} was not recorded: it was too large")
    run.overlay.put(path, value[CONTENT] + _read(real, run.overlay.find(path), base, -1))
    written.put_base(path, len(value[CONTENT]))


def _read(real: Any, path: str, start: int, size: int) -> bytes:
    """Read part of a file; b'' if nothing is there."""
    if size == 0:
        return b""
    with unwatched():
        if not os.path.isfile(path):  # noqa: PTH113 -- text
            return b""
        with real(path, "rb") as source:
            source.seek(start)
            content: bytes = source.read(size)
            return content
