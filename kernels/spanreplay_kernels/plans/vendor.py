"""The CPU's own kernels, as they were before anything was overridden."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["vendor_bmm", "vendor_mm"]


@functools.lru_cache(maxsize=1)
def _kernel():  # type: ignore[no-untyped-def]  # torch has no public name for the type
    return torch.library.get_kernel("aten::mm", "CPU")


@functools.lru_cache(maxsize=1)
def _batched_kernel():  # type: ignore[no-untyped-def]  # torch has no public name for the type
    return torch.library.get_kernel("aten::bmm", "CPU")


_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# Before an override can stand in their place
_kernel()
_batched_kernel()


def vendor_mm(x: Tensor, w: Tensor) -> Tensor:
    """x (M, K) times w (K, N) as the CPU's library computes it; its bits depend on M."""
    result: Tensor = _kernel().call_boxed(_KEYS, x, w)
    return result


def vendor_bmm(x: Tensor, w: Tensor) -> Tensor:
    """x (B, M, K) times w (B, K, N) as the CPU's library computes it; its bits depend on B and M."""
    result: Tensor = _batched_kernel().call_boxed(_KEYS, x, w)
    return result
