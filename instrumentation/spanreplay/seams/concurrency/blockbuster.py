"""Seam: blockbuster, which raises if a program blocks its event loop; LangGraph's server uses it.

Records nothing. The recorder's own writes and reads are exempt: otherwise the run would lose its records. The agent's
own blocking calls raise as without us, also through a seam.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from spanreplay.model.here import PACKAGE
from spanreplay.runtime.patches import Patches

_PARTS: Final = (
    *("codec/", "dialects/", "model/", "recording/", "redact/", "replayer/sandbox/", "runtime/caller/"),
    *("runtime/process/real_paths.py", "seams/machine/files/written.py"),
)
_OWN: Final = tuple(f"{PACKAGE}{part.replace('/', os.sep)}" for part in _PARTS)
"""Code that never calls the agent's, so that everything below it is our own work; `guarded` is among it."""


def install(module: Any, patches: Patches) -> None:
    """Patch `blockbuster.blockbuster`."""
    patches.wrap(module.BlockBusterFunction, "__init__", _make)


def _make(wrapped: Any, function: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    function.can_block_predicate = _exempt_us(function.can_block_predicate)


def _exempt_us(may_block: Callable[..., bool]) -> Callable[..., bool]:
    def may_block_or_is_ours(*args: Any, **kwargs: Any) -> bool:
        return may_block(*args, **kwargs) or _is_own_work(sys._getframe(2))

    return may_block_or_is_ours


def _is_own_work(frame: FrameType | None) -> bool:
    """Whether the recorder itself made this call."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OWN):
            return True
        frame = frame.f_back
    return False
