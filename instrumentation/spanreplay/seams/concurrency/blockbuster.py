"""Seam: blockbuster, which raises where a program blocks its event loop, as LangGraph's server has it do.

Records nothing. What the recorder itself writes and reads is exempt: otherwise the run would lose what it says. The
agent's own blocking calls raise as without us, also where a seam stands in their way.
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
    "seams/machine/files/written.py",
)
_OWN: Final = tuple(f"{PACKAGE}{part.replace('/', os.sep)}" for part in _PARTS)
"""Where the agent's code is never called, so that whatever happens below is our own doing; `guarded` is there."""


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
    """Whether the recorder itself has called for this."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OWN):
            return True
        frame = frame.f_back
    return False
