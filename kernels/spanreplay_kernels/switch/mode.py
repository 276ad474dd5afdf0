"""The switch: within `invariant()` torch's own operations are batch-invariant.

The model stays unchanged. torch's dispatcher calls our kernels instead of aten's, in the whole process: while any
thread is inside, all threads use ours, so a server with its own compute thread only needs to be started inside. The
last thread to leave restores aten's kernels.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from spanreplay_kernels.switch.overrides import ON_CPU_ONLY, ORIGINALS, REFUSED, original, refusal
from spanreplay_kernels.switch.registry import SWITCH, counted, overridden
from spanreplay_kernels.switch.stance import Stance

__all__ = ["invariant"]

_library: Any = None
_precisions: list[tuple[Any, str, Any]] = []
_stance: Final = Stance()


@contextmanager
def invariant() -> Iterator[None]:
    """Make torch's reductions batch-invariant within this context, on the CPU and on CUDA.

    Can be nested and entered from any thread; the last exit restores every kernel and flag, also after an exception.
    Process-wide: while one thread is inside, it applies to all threads. TF32 and half-precision sums are off meanwhile.
    Forward only: an operation that requires a gradient raises UnsupportedInput; wrap inference in
    `torch.inference_mode()`. Functions from `torch.compile` are recompiled as `compile_model` does, since compiled code
    bypasses the dispatcher.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    with SWITCH.lock:
        if SWITCH.depth == 0:
            SWITCH.calls.clear()
            try:
                _set_precisions()
                _override()
                _stance.take()
            except BaseException:
                _restore()
                raise
        SWITCH.depth += 1


def _leave() -> None:
    with SWITCH.lock:
        SWITCH.depth -= 1
        if SWITCH.depth == 0:
            _restore()


def _restore() -> None:
    global _library
    _stance.give_back()
    if _library is not None:
        _library._destroy()
        _library = None
    while _precisions:
        owner, name, value = _precisions.pop()
        setattr(owner, name, value)


def _override() -> None:
    """Register our kernels over aten's, on the dispatch keys that this build of torch has."""
    global _library
    keys = ("CPU", "CUDA") if torch.cuda.is_available() else ("CPU",)
    for key in keys:
        _keep_originals(key)
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns that kernels are overridden, which is what the user asked for
        warnings.filterwarnings("ignore", category=UserWarning)
        for key in keys:
            for name, function in overridden(key).items():
                _library.impl(name, counted(name, function), key)
            for name in REFUSED:
                _library.impl(name, refusal(name), key)


@functools.lru_cache(maxsize=2)
def _keep_originals(key: str) -> None:
    for name in (*ORIGINALS, *(ON_CPU_ONLY if key == "CPU" else ())):
        original(name, key)


def _set_precisions() -> None:
    """Turn off TF32 and reduced-precision sums, which also affects other operations; remember the old settings."""
    backends = torch.backends
    wanted: list[tuple[Any, str, Any]] = [
        (owner, "fp32_precision", "ieee")
        for owner in (
            backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn,
            backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn,
        )
    ]  # fmt: skip
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        wanted.append((backends.cuda.matmul, name, False))
    for owner, name, value in wanted:
        _precisions.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)
