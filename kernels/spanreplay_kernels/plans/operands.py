"""What every launcher does with its tensors before it looks at them.

A compiler that knows an address to be a multiple of 16 loads wider, lays a row out over its threads in another way, and
so adds it up in another order. `x[1:]` must therefore not look different from `x`: operands of reductions have an
aligned base and dense rows, or are copied once. What is left (whether the *rows* are aligned) follows from the width,
which is the same in every batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput

__all__ = ["ALIGNMENT_BYTES", "aligned", "check_dtype", "check_same", "dense_rows", "dtype_name"]

ALIGNMENT_BYTES = 64
"""Of a base address: what torch's allocators give, and wide enough for AVX-512 and for 16-byte loads."""
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def dtype_name(x: Tensor) -> str:
    """As plans spell it: `bfloat16`."""
    return str(x.dtype).removeprefix("torch.")


def dense_rows(x: Tensor) -> Tensor:
    """x as rows (M, width), dense and aligned; copied only where it is neither."""
    return aligned(x.reshape(-1, x.shape[-1]).contiguous())


def aligned(x: Tensor) -> Tensor:
    """The same values at an aligned address, with the same strides where they are dense."""
    return x if x.data_ptr() % ALIGNMENT_BYTES == 0 else x.clone()


def check_dtype(op: str, *tensors: Tensor) -> None:
    """Raises: UnsupportedInput unless all are bf16, all fp16 or all fp32, and on one device."""
    first = tensors[0]
    if first.dtype not in FLOATS:
        raise UnsupportedInput(op, "this dtype has no plan", first, hint="use bfloat16, float16 or float32")
    check_same(op, *tensors)


def check_same(op: str, *tensors: Tensor) -> None:
    """Raises: UnsupportedInput unless all tensors have one dtype and one device."""
    first = tensors[0]
    if any(t.dtype != first.dtype or t.device != first.device for t in tensors[1:]):
        raise UnsupportedInput(op, "the tensors differ in dtype or device", *tensors, hint="bring them to one of each")
