"""Root-mean-square normalisation, alone or with the residual sum before it, in one kernel.

The residual sum is rounded to the dtype once and stored, and the norm uses that rounded value, so later layers add to
exactly the value that was normalised. A row is read once if it fits into registers, otherwise twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._rows import load_rows, store_rows, sum_cpu
from spanreplay_kernels.ops._tile import IS_INTERPRETED, rounded
from spanreplay_kernels.plans.arch import CPU, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import aligned, check_dtype, check_same, dense_rows, dtype_name
from spanreplay_kernels.plans.plan import RowPlan, plan_rows

__all__ = ["fused_rms_norm", "rms_norm", "rms_norm_ref", "rms_norm_residual", "rms_norm_triton"]


def rms_norm_ref(
    x: Tensor, weight: Tensor | None, eps: float, plan: RowPlan, residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (normalised, x + residual, 1 / root mean square) of rows (M, N) in a plan's order: the definition."""
    if residual is not None:
        x = (x.float() + residual.float()).to(x.dtype)
    squares = torch.zeros(x.shape[0], 1, dtype=torch.float32, device=x.device)
    for start in range(0, plan.width, plan.block):
        squares += x[:, start : start + plan.block].float().square().sum(-1, keepdim=True)
    rstd = 1.0 / torch.sqrt(squares / plan.width + eps)
    y = x.float() * rstd
    return (y if weight is None else y * weight.float()).to(x.dtype), x, rstd


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Normalise each row by its root mean square; bitwise batch-invariant.

    y = x / sqrt(mean(x²) + eps) · weight

    Shapes: x (…, N), weight (N,) or None, result as x; N ≥ 1.
    Dtypes: bf16, fp16, fp32, the weight's the same or fp32; all steps in fp32, rounded once; result has x's dtype.
    Invariance: row i depends only on x[i] and weight; its N squares are added in plan_rows("rms_norm", N)'s order.
    Raises: UnsupportedInput if the last dimensions, dtypes or devices differ, or no plan exists for the device.
    Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
    """
    return _normalise(x, weight, eps, None)[0]


def rms_norm_residual(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm of x + residual, x + residual); bitwise batch-invariant.

    One kernel; if a row fits into registers, each operand is read once and each result written once.

    Shapes: residual and both results as x. Dtypes: the sum is rounded to x's dtype and then normalised, so the first
    result has the bits of `rms_norm` of the second. Otherwise like `rms_norm`.
    """
    y, total, _ = _normalise(x, weight, eps, residual)
    return y, total


def fused_rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm, 1 / root mean square), like `aten::_fused_rms_norm`.

    Shapes: normalized_shape is that of x's last dimensions and of the weight; rstd has x's shape with these as ones.
    Dtypes: rstd in fp32. eps None means 2⁻²³, whatever x's dtype, as in torch. Otherwise like `rms_norm`.
    """
    shape = tuple(normalized_shape)
    if not shape or tuple(x.shape[-len(shape) :]) != shape or (weight is not None and tuple(weight.shape) != shape):
        hint = "pass the last dimensions of x, and a weight of that shape"
        raise UnsupportedInput("rms_norm", f"normalized_shape {list(shape)} does not fit", x, weight, hint=hint)
    rows = x.reshape(*x.shape[: -len(shape)], math.prod(shape))
    flat = None if weight is None else weight.reshape(-1)
    y, _, rstd = _normalise(rows, flat, torch.finfo(torch.float32).eps if eps is None else eps, None)
    return y.reshape(x.shape), rstd.reshape(*x.shape[: -len(shape)], *(1 for _ in shape))


def _normalise(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return (normalised, sum, rstd (M,))."""
    _check(x, weight, residual)
    arch = arch_of(x.device)
    plan = plan_rows("rms_norm", x.shape[-1], dtype_name(x), arch)
    rows = dense_rows(x)
    other = None if residual is None else dense_rows(residual)
    weight = None if weight is None else aligned(weight.contiguous())
    if rows.shape[0] == 0:
        return torch.empty_like(x), torch.empty_like(x), x.new_empty((0,), dtype=torch.float32)
    compute = _rms_norm_cpu if arch is CPU else rms_norm_triton
    y, total, rstd = compute(rows, weight, eps, plan, other)
    return y.reshape(x.shape), total.reshape(x.shape), rstd


def _check(x: Tensor, weight: Tensor | None, residual: Tensor | None) -> None:
    if x.dim() == 0 or (weight is not None and weight.shape != x.shape[-1:]):
        raise UnsupportedInput("rms_norm", "the weight does not fit", x, weight, hint="pass x (…, N) and weight (N,)")
    if residual is not None and residual.shape != x.shape:
        raise UnsupportedInput("rms_norm", "the residual does not fit", x, residual, hint="pass two of one shape")
    check_dtype("rms_norm", x)
    if residual is not None:
        check_same("rms_norm", x, residual)
    if weight is not None and (weight.dtype not in (x.dtype, torch.float32) or weight.device != x.device):
        hint = "bring the weight to x's device, and to its dtype or fp32"
        raise UnsupportedInput("rms_norm", "the weight differs in dtype or device", x, weight, hint=hint)


def _rms_norm_cpu(
    x: Tensor, weight: Tensor | None, eps: float, plan: RowPlan, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if residual is not None:
        x = (x.float() + residual.float()).to(x.dtype)
    wide = x.float()
    squares = sum_cpu(wide * wide)
    # Not rsqrt: IEEE 754 defines the rounding of a root and of a quotient, but not of the two combined
    rstd = torch.ones_like(squares).div_(squares.div_(float(plan.width)).add_(eps).sqrt_())
    y = wide * rstd[:, None]
    return (y if weight is None else y.mul_(weight.float())).to(x.dtype), x, rstd


@triton.jit
def _read(
    x_ptr, residual_ptr, rows, start, M, N, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr, INTERPRET: tl.constexpr
):
    """Load x, or x + residual rounded to their dtype."""
    x = load_rows(x_ptr, rows, start, M, N, 0.0, BLOCK)
    if HAS_RESIDUAL:
        total = x.to(tl.float32) + load_rows(residual_ptr, rows, start, M, N, 0.0, BLOCK).to(tl.float32)
        x = rounded(total, x_ptr.dtype.element_ty, INTERPRET)
    return x


@triton.jit
def _write(
    x, rstd, weight_ptr, out_ptr, sum_ptr, rows, start, M, N,
    BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    if HAS_RESIDUAL:
        store_rows(sum_ptr, x, rows, start, M, N, BLOCK)
    y = x.to(tl.float32) * rstd[:, None]
    if HAS_WEIGHT:
        columns = start + tl.arange(0, BLOCK)
        y *= tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    store_rows(out_ptr, rounded(y, out_ptr.dtype.element_ty, INTERPRET), rows, start, M, N, BLOCK)


@triton.jit
def _rstd(squares, count, eps):
    """Return 1 / sqrt(mean square + eps), each step rounded as on the CPU."""
    return tl.math.div_rn(1.0, tl.math.sqrt_rn(tl.math.div_rn(squares, count) + eps))


@triton.jit(do_not_specialize=["M"])
def rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, rstd_ptr, M, N, count, eps,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE_READ: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Normalise BLOCK_ROWS rows of N elements; squares are added up block by block."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    if ONE_READ:
        x = _read(x_ptr, residual_ptr, rows, 0, M, N, BLOCK, HAS_RESIDUAL, INTERPRET)
        wide = x.to(tl.float32)
        rstd = _rstd(tl.sum(wide * wide, axis=1), count, eps)
        _write(x, rstd, weight_ptr, out_ptr, sum_ptr, rows, 0, M, N, BLOCK, HAS_RESIDUAL, HAS_WEIGHT, INTERPRET)
    else:
        squares = tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
        for start in range(0, N, BLOCK):
            x = _read(x_ptr, residual_ptr, rows, start, M, N, BLOCK, HAS_RESIDUAL, INTERPRET)
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, axis=1)
        rstd = _rstd(squares, count, eps)
        # Backwards: the elements read last are still in the cache
        blocks = tl.cdiv(N, BLOCK)
        for done in range(blocks):
            start = (blocks - 1 - done) * BLOCK
            # Recomputed, not read back: the value may have been stored by another thread
            x = _read(x_ptr, residual_ptr, rows, start, M, N, BLOCK, HAS_RESIDUAL, INTERPRET)
            _write(
                x, rstd, weight_ptr, out_ptr, sum_ptr, rows, start, M, N, BLOCK, HAS_RESIDUAL, HAS_WEIGHT, INTERPRET,
            )  # fmt: skip
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


def rms_norm_triton(
    x: Tensor, weight: Tensor | None, eps: float, plan: RowPlan, residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (normalised, sum, rstd) of rows (M, N) with the kernel; the caller has checked and made a plan."""
    x = dense_rows(x)
    M = x.shape[0]
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    rstd = torch.empty((M,), dtype=torch.float32, device=x.device)
    launch(
        rms_norm_kernel, (triton.cdiv(M, plan.block_rows),),
        x, x if residual is None else dense_rows(residual), x if weight is None else aligned(weight),
        out, total, rstd, M, plan.width, float(plan.width), float(eps),
        BLOCK_ROWS=plan.block_rows, BLOCK=plan.block, ONE_READ=plan.passes == 1,
        HAS_RESIDUAL=residual is not None, HAS_WEIGHT=weight is not None, INTERPRET=IS_INTERPRETED,
        num_warps=plan.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out, total, rstd
