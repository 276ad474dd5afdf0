"""The switch: within `invariant()` torch's own operations are the batch-invariant ones.

Nothing of a model changes. torch's dispatcher is told to call our kernels in place of aten's, for the whole process:
while one thread is within, all threads compute with ours, so that a server that computes in a thread of its own needs
no more than its starter being within. The last one to leave puts aten's kernels back.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.overrides import ON_CPU_ONLY, ORIGINALS, OVERRIDES, Function, original
from spanreplay_kernels.stance import Stance

__all__ = ["counted", "engaged", "invariant", "is_invariant", "overridden"]

_lock = threading.RLock()
_depth = 0
_library: Any = None
_precisions: list[tuple[Any, str, Any]] = []
_calls: Counter[str] = Counter()
_stance: Final = Stance()


@contextmanager
def invariant() -> Iterator[None]:
    """Within it, torch's reductions give a row its bits whatever shares its batch; on the CPU and on CUDA.

    Nests, from any thread; the last exit puts back every kernel and flag, after an exception too. Process-wide: while
    one thread is within, all threads compute so. TF32 and sums in half precision are off meanwhile.
    Forward only: an operation that is asked for a gradient raises UnsupportedInput; wrap inference in
    `torch.inference_mode()`. What `torch.compile` was given is compiled anew, as `compile_model` does, since
    compiled code does not come by the dispatcher.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def is_invariant() -> bool:
    """Whether some thread is within `invariant()`."""
    return _depth > 0


def engaged() -> dict[str, int]:
    """How often each of our operations ran, by aten's name, since `invariant()` was last entered from outside."""
    with _lock:
        return dict(_calls)


def overridden(key: str) -> Mapping[str, Function]:
    """The overloads of aten that are ours within `invariant()` on a dispatch key, `CPU` or `CUDA`."""
    return {**OVERRIDES, **ON_CPU_ONLY} if key == "CPU" else OVERRIDES


def _enter() -> None:
    global _depth
    with _lock:
        if _depth == 0:
            _calls.clear()
            try:
                _set_precisions()
                _override()
                _stance.take()
            except BaseException:
                _restore()
                raise
        _depth += 1


def _leave() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
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
    """Register ours over aten's, on the keys that this build of torch has."""
    global _library
    keys = ("CPU", "CUDA") if torch.cuda.is_available() else ("CPU",)
    for key in keys:
        _keep_originals(key)
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # That aten's kernels are overridden is what the user asked for
        warnings.filterwarnings("ignore", category=UserWarning)
        for key in keys:
            for name, function in overridden(key).items():
                _library.impl(name, counted(name, function), key)


@functools.lru_cache(maxsize=2)
def _keep_originals(key: str) -> None:
    for name in (*ORIGINALS, *(ON_CPU_ONLY if key == "CPU" else ())):
        original(name, key)


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
        with _lock:
            _calls[name] += 1
        return function(*args, **kwargs)

    return run


def _set_precisions() -> None:
    """Turn off TF32 and reduced-precision sums, also in what is not overridden; remember what was set."""
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
