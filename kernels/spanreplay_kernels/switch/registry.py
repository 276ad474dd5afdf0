"""What is ours while the switch is on: how often each operation ran, and which overloads are overridden."""

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
    """The state of the switch, for the whole process; `lock` guards the rest."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    depth: int = 0
    """How many `invariant()` blocks are open."""
    calls: Counter[str] = field(default_factory=Counter)
    """Name of aten's operation → how often ours ran."""


SWITCH: Final = Switch()


def is_invariant() -> bool:
    """Whether some thread is within `invariant()`."""
    return SWITCH.depth > 0


def engaged() -> dict[str, int]:
    """How often each of our operations ran, by aten's name, since `invariant()` was last entered from outside."""
    with SWITCH.lock:
        return dict(SWITCH.calls)


def overridden(key: str) -> Mapping[str, Function]:
    """The overloads of aten that are ours within `invariant()` on a dispatch key, `CPU` or `CUDA`."""
    return {**OVERRIDES, **ON_CPU_ONLY} if key == "CPU" else OVERRIDES


def counted(name: str, function: Function) -> Function:
    """function, counted for `engaged`, and refused where a gradient is asked for: none is defined."""

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
