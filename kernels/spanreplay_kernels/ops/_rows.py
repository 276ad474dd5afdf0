"""Helpers of operations over rows: turning a tensor into rows, sums and exponentials on the CPU, loading tiles.

On the CPU every step is one that IEEE 754 defines to the last bit (add, multiply, divide, compare, round), so the
thread and vector lane that execute it don't matter. torch's own `sum` and `exp` take different code paths at different
shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.plans.operands import FLOATS

__all__ = ["exp_cpu", "in_chunks", "load_rows", "normal_dim", "read_as", "store_rows", "sum_cpu"]

CHUNK: Final = 1 << 14
"""Elements that the CPU processes at a time: the output of a step is still in the cache for the next step. From twice
as many on, torch splits the work over threads, which then wait for each other after every step."""
_LOG2_E: Final = math.log2(math.e)
_LN2_HIGH: Final = float.fromhex("0x1.62e42feep-1")
"""ln 2 to 32 bits: its product with an exponent is exact."""
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_WHOLE: Final = 1.5 * 2**52
"""Adding and subtracting it rounds a number to an integer; torch's `round` would wake threads to do so."""
_EXP_TERMS: Final = 9
_EXP_RANGE: Final = 200.0
"""Outside ± this, exp is 0 or infinite in fp32 but still finite in fp64."""


def normal_dim(op: str, x: Tensor, dim: int) -> int:
    """Return a dimension as a non-negative index.

    Raises: UnsupportedInput if x has no such dimension.
    """
    if not -x.dim() <= dim < x.dim():
        raise UnsupportedInput(op, f"no dimension {dim}", x, hint=f"dim is from {-x.dim()} to {x.dim() - 1}")
    return dim % x.dim()


def read_as(x: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, torch.dtype]:
    """Return (x, dtype of the result) for an operation that is asked to read x as another dtype."""
    if dtype is None or (dtype == torch.float32 and x.dtype in FLOATS):
        # Widening to fp32 is exact, and every operation here does it first
        return x, dtype or x.dtype
    return x.to(dtype), dtype


def in_chunks(step: Callable[..., Tensor], *operands: Tensor, out: Tensor) -> Tensor:
    """Fill `out` by applying `step` to a few rows or elements at a time; `step` must treat them all alike."""
    count = max(1, CHUNK * operands[0].shape[0] // operands[0].numel())
    for start in range(0, out.shape[0], count):
        out[start : start + count] = step(*(each[start : start + count] for each in operands))
    return out


def sum_cpu(x: Tensor) -> Tensor:
    """Sum each row (M, width): the upper half is added to the lower until one element is left."""
    width = x.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        folded = x[..., :half].clone()
        folded[..., : width - half] += x[..., half:width]
        x, width = folded, half
    return x[..., 0]


def exp_cpu(x: Tensor) -> Tensor:
    """Return exp of fp32 elements, as fp32: computed in fp64, so all but one in thousands are rounded to nearest.

    exp(x) = 2ᵏ · exp(r) with x = k · ln 2 + r and |r| ≤ ln 2 / 2; exp(r) is its Taylor series up to r⁹.
    """
    flat = x.reshape(-1)
    return in_chunks(_exp_step, flat, out=torch.empty_like(flat)).reshape(x.shape)


def _exp_step(x: Tensor) -> Tensor:
    wide = x.double().clamp_(-_EXP_RANGE, _EXP_RANGE)
    k = (wide * _LOG2_E).add_(_WHOLE).sub_(_WHOLE)
    r = wide.sub_(k * _LN2_HIGH).sub_(k * _LN2_LOW)
    series = torch.full_like(r, 1.0 / math.factorial(_EXP_TERMS))
    for n in range(_EXP_TERMS - 1, -1, -1):
        series.mul_(r).add_(1.0 / math.factorial(n))
    # 2ᵏ built from its bits; for a NaN the bits don't matter
    power = k.nan_to_num_(0.0).to(torch.int64).add_(1023).bitwise_left_shift_(52).view(torch.float64)
    return series.mul_(power)


@triton.jit
def load_rows(x_ptr, rows, start, M, N, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    """Load BLOCK elements from `start` of rows of N, as (rows, BLOCK) in their own dtype; OTHER past the end."""
    columns = start + tl.arange(0, BLOCK)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    return tl.load(x_ptr + rows[:, None] * N + columns[None, :], mask=mask, other=OTHER)


@triton.jit
def store_rows(out_ptr, value, rows, start, M, N, BLOCK: tl.constexpr):
    """Store what `load_rows` would load; `value` has the dtype of `out`."""
    columns = start + tl.arange(0, BLOCK)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], value, mask=mask)
