"""torch's own CPU kernels for products, taken before anything is overridden."""

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
# Fetch them now, before an override can replace them
_kernel()
_batched_kernel()


def vendor_mm(x: Tensor, w: Tensor) -> Tensor:
    """Multiply x (M, K) by w (K, N) with the CPU's library; the bits depend on M."""
    result: Tensor = _kernel().call_boxed(_KEYS, x, w)
    return result


def vendor_bmm(x: Tensor, w: Tensor) -> Tensor:
    """Multiply x (B, M, K) by w (B, K, N) with the CPU's library; the bits depend on B and M."""
    result: Tensor = _batched_kernel().call_boxed(_KEYS, x, w)
    return result
