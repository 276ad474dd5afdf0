"""The state of the switch: how often each of our operations ran, and which overloads are overridden."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.switch.overrides import ON_CPU_ONLY, OVERRIDES, Function

__all__ = ["SWITCH", "Switch", "counted", "engaged", "is_invariant", "overridden"]


@dataclass
class Switch:
    """The process-wide state of the switch; `lock` guards the other fields."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    depth: int = 0
    """The number of open `invariant()` blocks."""
    calls: Counter[str] = field(default_factory=Counter)
    """Name of aten's operation → number of calls of ours."""


SWITCH: Final = Switch()


def is_invariant() -> bool:
    """Whether any thread is within `invariant()`."""
    return SWITCH.depth > 0


def engaged() -> dict[str, int]:
    """Return the number of runs of each of our operations, by aten's name, since the outermost `invariant()`."""
    with SWITCH.lock:
        return dict(SWITCH.calls)


def overridden(key: str) -> Mapping[str, Function]:
    """Return the aten overloads that `invariant()` overrides on a dispatch key, `CPU` or `CUDA`."""
    return {**OVERRIDES, **ON_CPU_ONLY} if key == "CPU" else OVERRIDES


def counted(name: str, function: Function) -> Function:
    """Wrap `function` to count its calls for `engaged`, and to refuse gradients, which are not defined."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in args):
            tensors = [each for each in args if isinstance(each, Tensor)]
            hint = "run the model under torch.inference_mode() or torch.no_grad()"
            raise UnsupportedInput(
                name, "a gradient is required, and these kernels are forward only", *tensors, hint=hint
            )
        with SWITCH.lock:
            SWITCH.calls[name] += 1
        return function(*args, **kwargs)

    return run
