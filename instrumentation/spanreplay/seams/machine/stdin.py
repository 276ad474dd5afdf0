"""Seam: standard input, recorded at the byte buffer below the text layer of `sys.stdin`.

Every line is a separate call, so that `input()`, which is recorded one level higher, and a loop over `sys.stdin` can
take turns; `read()` is one call. A replay needs no input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.patches import Patches

_NAME: Final = "stdin"
_TAIL_BYTES_MAX: Final = 3
"""The most bytes that follow the first byte of a UTF-8 character."""


def _is_cut(content: bytes) -> bool:
    """Whether the content ends in the middle of a UTF-8 character."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as exc:
        return exc.reason == "unexpected end of data"
    return False


def _read_whole(real: Callable[..., Any], buffer: Any, size: int) -> Any:
    """Read without splitting a character, because only valid text can be redacted."""
    content = real(size)
    for _ in range(_TAIL_BYTES_MAX):
        more = type(buffer).read(buffer, 1) if content and _is_cut(content) else b""
        if not more:
            break
        content += more
    return content


def _recorded(method: str, real: Callable[..., Any], buffer: Any) -> Callable[..., Any]:
    def read(size: int | None = -1, /) -> Any:
        limit = -1 if size is None else size
        if recorded_run() is None:
            return real(limit)

        def describe() -> FunctionCall:
            return FunctionCall(Kind.HUMAN.value, _NAME, Effect.READ.value, {"read": method}, prints=False)

        return call_sync(describe, lambda: _read_whole(real, buffer, limit))

    return read


def install(module: Any, patches: Patches) -> None:
    """Patch the buffer of `sys.stdin`, if it has one that can be patched."""
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None or not hasattr(buffer, "__dict__"):
        return
    patches.replace(buffer, "readline", _recorded("line", buffer.readline, buffer))
    patches.replace(buffer, "read1", _recorded("line", type(buffer).readline.__get__(buffer), buffer))
    patches.replace(buffer, "read", _recorded("all", buffer.read, buffer))
