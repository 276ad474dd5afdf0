"""Means and sums over dimensions.

The summed dimensions are moved to the end and flattened into one row, which is added up block by block. The number of
rows affects nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._rows import load_rows, normal_dim, read_as, sum_cpu
from spanreplay_kernels.ops._tile import IS_INTERPRETED, rounded
from spanreplay_kernels.plans.arch import CPU, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import check_dtype, dense_rows, dtype_name
from spanreplay_kernels.plans.plan import RowPlan, plan_rows

__all__ = ["mean", "mean_ref", "sum_rows", "sum_triton"]

Dims = int | Sequence[int] | None


def mean_ref(x: Tensor, plan: RowPlan) -> Tensor:
    """Return the mean of each row (M, N), or its sum if plan.op is `sum`, in the plan's order: the definition."""
    total = torch.zeros(x.shape[0], dtype=torch.float32, device=x.device)
    for start in range(0, plan.width, plan.block):
        total += x[:, start : start + plan.block].float().sum(-1)
    return (total / _count(plan)).to(x.dtype)


def mean(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the mean over one, several or all dimensions; bitwise batch-invariant.

    Shapes: x of any shape, dim one or several of its dimensions (None or empty: all), result as `torch.mean`'s.
    Dtypes: bf16, fp16, fp32; x is converted to `dtype`, which the result has too; sums in fp32, divided and rounded
        once.
    Invariance: a result depends only on the elements it averages, in the order of plan_rows("mean", count).
    Raises: UnsupportedInput if a dimension does not exist, is named twice or is empty, or no plan exists.
    Source: the sum is divided by the count, which is exact up to 2²⁴ elements.
    """
    return _reduce("mean", x, dim, keepdim, dtype)


def sum_rows(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the sum over one, several or all dimensions; bitwise batch-invariant.

    Otherwise like `mean`.
    """
    return _reduce("sum", x, dim, keepdim, dtype)


def _reduce(op: str, x: Tensor, dim: Dims, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    if x.dim() == 0:
        return _reduce(op, x[None], dim, False, dtype)
    dims = _dims(op, x, dim)
    kept = [d for d in range(x.dim()) if d not in dims]
    width = math.prod(x.shape[d] for d in dims)
    x, out_dtype = read_as(x, dtype)
    check_dtype(op, x)
    arch = arch_of(x.device)
    plan = plan_rows(op, width, dtype_name(x), arch)
    shape = [1 if d in dims else x.shape[d] for d in range(x.dim())] if keepdim else [x.shape[d] for d in kept]
    if math.prod(shape) == 0:
        return x.new_empty(shape, dtype=out_dtype)
    rows = dense_rows(x.permute(*kept, *dims).reshape(-1, width))
    result = _sum_cpu(rows, plan, out_dtype) if arch is CPU else sum_triton(rows, plan, out_dtype)
    return result.reshape(shape)


def _dims(op: str, x: Tensor, dim: Dims) -> list[int]:
    """Return the dimensions to sum over, in ascending order; the order in which they are named doesn't matter."""
    named = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    dims = sorted(normal_dim(op, x, d) for d in named)
    if len(set(dims)) < len(dims):
        raise UnsupportedInput(op, f"dim {tuple(named)} names a dimension twice", x, hint="name each once")
    return dims


def _count(plan: RowPlan) -> float:
    """Return the divisor of the sum."""
    return float(plan.width) if plan.op == "mean" else 1.0


def _sum_cpu(x: Tensor, plan: RowPlan, out_dtype: torch.dtype) -> Tensor:
    return sum_cpu(x.float()).div_(_count(plan)).to(out_dtype)


@triton.jit(do_not_specialize=["M"])
def sum_kernel(
    x_ptr, out_ptr, M, N, count,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Sum BLOCK_ROWS rows of N elements, block by block, and divide by `count`."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    total = tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        total += tl.sum(load_rows(x_ptr, rows, start, M, N, 0.0, BLOCK).to(tl.float32), axis=1)
    result = tl.math.div_rn(total, count)
    tl.store(out_ptr + rows, rounded(result, out_ptr.dtype.element_ty, INTERPRET), mask=rows < M)


def sum_triton(x: Tensor, plan: RowPlan, out_dtype: torch.dtype) -> Tensor:
    """Compute the sum or mean of rows (M, N) with the kernel; the caller has checked the operands and made a plan."""
    x = dense_rows(x)
    M = x.shape[0]
    out = torch.empty((M,), dtype=out_dtype, device=x.device)
    launch(
        sum_kernel, (triton.cdiv(M, plan.block_rows),), x, out, M, plan.width, _count(plan),
        BLOCK_ROWS=plan.block_rows, BLOCK=plan.block, INTERPRET=IS_INTERPRETED,
        num_warps=plan.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out
