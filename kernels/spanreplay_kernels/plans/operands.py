"""Normalises the tensors of every launch: alignment, layout and dtype.

If the compiler knows that an address is a multiple of 16, it uses wider loads, distributes a row differently over
threads, and so adds it up in another order. `x[1:]` must therefore not be treated differently from `x`: operands of
reductions have an aligned base and contiguous rows, or are copied once. Whether the *rows* are aligned then depends
only on the width, which is the same in every batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput

__all__ = ["ALIGNMENT_BYTES", "aligned", "check_dtype", "check_same", "dense_rows", "dtype_name"]

ALIGNMENT_BYTES = 64
"""Alignment of base addresses: torch's allocators provide it, and it suffices for AVX-512 and 16-byte loads."""
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def dtype_name(x: Tensor) -> str:
    """Return the dtype as plans spell it: `bfloat16`."""
    return str(x.dtype).removeprefix("torch.")


def dense_rows(x: Tensor) -> Tensor:
    """Return x as contiguous, aligned rows (M, width), copied only if necessary."""
    return aligned(x.reshape(-1, x.shape[-1]).contiguous())


def aligned(x: Tensor) -> Tensor:
    """Return the same values at an aligned address; strides are kept if they are dense."""
    return x if x.data_ptr() % ALIGNMENT_BYTES == 0 else x.clone()


def check_dtype(op: str, *tensors: Tensor) -> None:
    """Check the tensors. Raises: UnsupportedInput unless all are bf16, all fp16 or all fp32, and on one device."""
    first = tensors[0]
    if first.dtype not in FLOATS:
        raise UnsupportedInput(op, "this dtype has no plan", first, hint="use bfloat16, float16 or float32")
    check_same(op, *tensors)


def check_same(op: str, *tensors: Tensor) -> None:
    """Check the tensors. Raises: UnsupportedInput unless all have the same dtype and device."""
    first = tensors[0]
    if any(t.dtype != first.dtype or t.device != first.device for t in tensors[1:]):
        raise UnsupportedInput(op, "the tensors differ in dtype or device", *tensors, hint="bring them to one of each")
