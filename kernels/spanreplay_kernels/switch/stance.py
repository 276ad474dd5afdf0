"""What `torch.compile` does within `invariant()`: compiled code never asks the dispatcher, so it is compiled by ours.

torch asks one function of its own, at every call of what was compiled, who compiles it; it is replaced. Its switch for
users, `torch.compiler.set_stance`, would take `compile_model`'s choice of a backend away.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Stance"]


class Stance:
    """Set while some thread is within `invariant()`; not thread-safe, its user holds a lock."""

    def __init__(self) -> None:
        self._restore: Callable[[], None] | None = None
        self._compile: Any = None

    def take(self) -> None:
        """Have every compiled function run as `compile_model` compiles it, from its next call on."""
        if "torch._dynamo" in sys.modules:
            self._force()
            return
        # It costs as much time to import as torch itself; who compiles imports it
        stock = self._compile = torch.compile

        @functools.wraps(stock)
        def compile_by_ours(*args: Any, **kwargs: Any) -> Any:
            if self._restore is None and self._compile is stock:
                self._force()
            return stock(*args, **kwargs)

        torch.compile = compile_by_ours

    def give_back(self) -> None:
        """Have compiled functions run as they were compiled."""
        if self._compile is not None:
            torch.compile, self._compile = self._compile, None
        if self._restore is not None:
            self._restore()
            self._restore = None

    def _force(self) -> None:
        from torch._dynamo import eval_frame

        from spanreplay_kernels.switch.compiled import BACKENDS, compile_by_ours

        stock = eval_frame._callback_from_stance
        ours = eval_frame._create_wrapped_callback(compile_by_ours)

        def choose(callback: Any) -> Any:
            """What compiles the functions that a call enters; None and False compile nothing."""
            if callback in (None, False):
                return stock(callback)
            backend: Any = eval_frame.innermost_backend(callback)
            if getattr(backend, "compiler_fn", backend) in BACKENDS.values():  # `torch.compile` wraps what it is given
                return stock(callback)
            return None if stock(callback) is None else ours

        eval_frame._callback_from_stance = choose
        self._restore = functools.partial(setattr, eval_frame, "_callback_from_stance", stock)
