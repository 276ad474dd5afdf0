"""Makes `torch.compile` use our compiler within `invariant()`, since compiled code bypasses the dispatcher.

At every call of a compiled function, torch calls an internal function to choose the compiler; that function is
replaced. The public `torch.compiler.set_stance` would override the backend chosen by `compile_model`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Stance"]


class Stance:
    """The replacement of torch's compiler choice, active within `invariant()`; not thread-safe, the caller locks."""

    def __init__(self) -> None:
        self._restore: Callable[[], None] | None = None
        self._compile: Any = None

    def take(self) -> None:
        """Make every compiled function use `compile_model`'s compiler, from its next call on."""
        if "torch._dynamo" in sys.modules:
            self._force()
            return
        # Importing it takes as long as importing torch, so wait until something is compiled
        stock = self._compile = torch.compile

        @functools.wraps(stock)
        def compile_by_ours(*args: Any, **kwargs: Any) -> Any:
            if self._restore is None and self._compile is stock:
                self._force()
            return stock(*args, **kwargs)

        torch.compile = compile_by_ours

    def give_back(self) -> None:
        """Restore torch's own choice of compiler."""
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
            """Return the compiler for the functions that a call enters; None and False compile nothing."""
            if callback in (None, False):
                return stock(callback)
            backend: Any = eval_frame.innermost_backend(callback)
            if getattr(backend, "compiler_fn", backend) in BACKENDS.values():  # `torch.compile` wraps the backend
                return stock(callback)
            return None if stock(callback) is None else ours

        eval_frame._callback_from_stance = choose
        self._restore = functools.partial(setattr, eval_frame, "_callback_from_stance", stock)
