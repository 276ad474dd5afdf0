"""Matrix products: mm, addmm, linear and bmm.

Every product is computed as (wᵀ · xᵀ)ᵀ: w is the left operand of the matrix instruction, so that one instruction class
serves one row and a thousand (wgmma takes at least 64 rows on its left, and as few as 8 columns on its right).
With few rows each segment of K is a block of its own, and a second kernel adds the segments' sums in order; with many
rows a block adds all segments itself, in the same order, each from a fresh accumulator.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.arch import ARCHS, CPU, Mma, arch_of
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.launch import launch, programs
from spanreplay_kernels.operands import aligned, check_dtype, check_same, dtype_name
from spanreplay_kernels.ops._tile import IS_INTERPRETED, dot, rounded
from spanreplay_kernels.plan import MatmulPlan, plan_matmul
from spanreplay_kernels.vendor import vendor_mm

__all__ = [
    "bmm",
    "finish",
    "linear",
    "matmul",
    "matmul_cpu",
    "matmul_ref",
    "matmul_triton",
    "place",
    "sum_segment",
    "tile_for",
]

SPLIT_ROWS_MAX = 64
"""Up to so many rows each segment is a block of its own: there are too few tiles to fill a GPU."""
GROUP_TILES = 8
"""Tiles of w that are visited before the next of x, so that both stay in the L2 cache."""


def matmul_ref(x: Tensor, w: Tensor, plan: MatmulPlan, bias: Tensor | None = None) -> Tensor:
    """x (M, K) times w (K, N) in the order of a plan, in plain PyTorch: the definition."""
    total: Tensor | None = None
    for start in range(0, plan.k, plan.segment_k):
        segment = torch.zeros(x.shape[0], plan.n, dtype=torch.float32, device=x.device)
        for k in range(start, min(start + plan.segment_k, plan.k), plan.block_k):
            end = min(k + plan.block_k, start + plan.segment_k, plan.k)
            segment += x[:, k:end].float() @ w[k:end].float()
        total = segment if total is None else total + segment
    assert total is not None
    return (total if bias is None else total + bias.float()).to(x.dtype)


def matmul(x: Tensor, w: Tensor, bias: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """alpha · x · w + beta · bias; bitwise batch-invariant.

    Shapes: x (M, K) any M, w (K, N) of any strides, bias broadcast to (M, N), result (M, N); K, N ≥ 1.
    Dtypes: bf16, fp16, fp32 (never TF32); sums in fp32, rounded once; result has x's dtype.
    Invariance: row i depends only on x[i] and w; the order of its K terms is plan_matmul(N, K, dtype, arch)'s.
    Raises: UnsupportedInput if shapes, dtypes or devices do not fit, or no plan exists for the device.
    """
    _check(x, w, bias)
    arch = arch_of(x.device)
    plan = plan_matmul(w.shape[1], x.shape[1], dtype_name(x), arch)
    if x.shape[0] == 0:
        return x.new_empty((0, plan.n))
    if arch is CPU:
        return matmul_cpu(x, w, bias, alpha, beta, plan)
    return matmul_triton(x[None], w[None], bias, plan, alpha=alpha, beta=beta)[0]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias; bitwise batch-invariant. Shapes: x (…, K), weight (N, K), bias (N,), result (…, N)."""
    result = matmul(x.reshape(-1, x.shape[-1]), weight.t(), bias)
    return result.reshape(*x.shape[:-1], weight.shape[0])


def bmm(x: Tensor, w: Tensor) -> Tensor:
    """x[b] · w[b] for every b; bitwise batch-invariant, over b too.

    Shapes: x (B, M, K), w (B, K, N), result (B, M, N). Else as `matmul`.
    """
    if x.dim() != 3 or w.dim() != 3 or x.shape[0] != w.shape[0] or x.shape[2] != w.shape[1] or 0 in w.shape[1:]:
        raise UnsupportedInput("bmm", "these shapes do not multiply", x, w, hint="pass (B, M, K) and (B, K, N)")
    check_dtype("bmm", x, w)
    arch = arch_of(x.device)
    plan = plan_matmul(w.shape[2], x.shape[2], dtype_name(x), arch)
    if x.shape[0] == 0 or x.shape[1] == 0:
        return x.new_empty((x.shape[0], x.shape[1], plan.n))
    if arch is CPU:
        return torch.stack([matmul_cpu(x[b], w[b], None, 1.0, 1.0, plan) for b in range(x.shape[0])])
    return matmul_triton(x, w, None, plan)


def _check(x: Tensor, w: Tensor, bias: Tensor | None) -> None:
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[0] or 0 in w.shape:
        raise UnsupportedInput("matmul", "these shapes do not multiply", x, w, hint="pass (M, K) and (K, N)")
    check_dtype("matmul", x, w)
    if bias is not None:
        check_same("matmul", x, bias)
        if bias.dim() > 2 or bias.shape[-1:] not in ((1,), (w.shape[1],), ()):
            raise UnsupportedInput("matmul", "the bias does not fit", w, bias, hint="pass (N,) or (M, N)")


def matmul_cpu(x: Tensor, w: Tensor, bias: Tensor | None, alpha: float, beta: float, plan: MatmulPlan) -> Tensor:
    """The library's product, called with one shape: `cpu_rows` rows, the last ones zero where x has fewer."""
    rows = plan.cpu_rows
    w = aligned(w)
    x = aligned(x.contiguous())
    out = x.new_empty((x.shape[0], plan.n))
    for start in range(0, x.shape[0], rows):
        count = min(rows, x.shape[0] - start)
        # A full block of rows is aligned where x is: rows × bytes of an element is a multiple of a cache line in fp32
        block = x.new_zeros((rows, plan.k))
        block[:count] = x[start : start + count]
        out[start : start + count] = vendor_mm(block, w)[:count]
    if bias is None and alpha == 1.0:
        return out
    total = out.float() * alpha
    return (total if bias is None else total + bias.float() * beta).to(x.dtype)


@triton.jit
def sum_segment(
    x_ptr, w_ptr, rows, columns, start,
    M, N, K, stride_xm, stride_xk, stride_wk, stride_wn,
    SEGMENT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """The fp32 sum of the segment at `start`, transposed: (BLOCK_N, BLOCK_M)."""
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for k in range(start, tl.minimum(start + SEGMENT_K, K), BLOCK_K):
        ks = k + tl.arange(0, BLOCK_K)
        w_at = w_ptr + columns[:, None] * stride_wn + ks[None, :].to(tl.int64) * stride_wk
        x_at = x_ptr + ks[:, None].to(tl.int64) * stride_xk + rows[None, :] * stride_xm
        w = tl.load(w_at, mask=(columns[:, None] < N) & (ks[None, :] < K), other=0.0)
        x = tl.load(x_at, mask=(ks[:, None] < K) & (rows[None, :] < M), other=0.0)
        acc = dot(w, x, acc, INTERPRET)
    return acc


@triton.jit
def place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """(row, column) of a tile: GROUP columns are walked down together."""
    group = tile // (GROUP * tiles_m)
    first = group * GROUP
    width = tl.minimum(tiles_n - first, GROUP)
    inside = tile % (GROUP * tiles_m)
    return inside // width, first + inside % width


@triton.jit
def finish(
    total, out_ptr, bias_ptr, rows, columns, M, N, stride_om, stride_on, stride_bm, stride_bn, alpha, beta,
    HAS_BIAS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Store alpha · total + beta · bias, rounded once; total is (rows, columns)."""
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    if HAS_BIAS:
        at = bias_ptr + rows[:, None] * stride_bm + columns[None, :] * stride_bn
        bias = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        # Written out, so that no compiler contracts it in one kernel and not in the other
        total = tl.fma(total, alpha, bias * beta)
    else:
        total = total * alpha
    out_at = out_ptr + rows[:, None] * stride_om + columns[None, :] * stride_on
    tl.store(out_at, rounded(total, out_ptr.dtype.element_ty, INTERPRET), mask=mask)


@triton.jit(do_not_specialize=["M", "B", "stride_xb", "stride_ob"])
def matmul_kernel(
    x_ptr, w_ptr, out_ptr, bias_ptr, B, M, N, K,
    stride_xb, stride_xm, stride_xk, stride_wb, stride_wk, stride_wn, stride_ob, stride_om, stride_on,
    stride_bm, stride_bn, alpha, beta,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, HAS_BIAS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Tiles of the whole product: every block adds all segments, in order. Persistent over tiles and batch."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    for each in tl.range(tl.program_id(0), tiles * B, tl.num_programs(0)):
        b = (each // tiles).to(tl.int64)
        tile_m, tile_n = place(each % tiles, tiles_m, tiles_n, GROUP)
        rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        total = sum_segment(
            x_ptr + b * stride_xb, w_ptr + b * stride_wb, rows, columns, 0, M, N, K,
            stride_xm, stride_xk, stride_wk, stride_wn, SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRET,
        )  # fmt: skip
        for segment in range(1, SEGMENTS):
            total += sum_segment(
                x_ptr + b * stride_xb, w_ptr + b * stride_wb, rows, columns, segment * SEGMENT_K, M, N, K,
                stride_xm, stride_xk, stride_wk, stride_wn, SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRET,
            )  # fmt: skip
        finish(
            tl.trans(total), out_ptr + b * stride_ob, bias_ptr, rows, columns, M, N, stride_om, stride_on,
            stride_bm, stride_bn, alpha, beta, HAS_BIAS, INTERPRET,
        )  # fmt: skip


@triton.jit(do_not_specialize=["M", "stride_xb"])
def split_kernel(
    x_ptr, w_ptr, sums_ptr, M, N, K,
    stride_xb, stride_xm, stride_xk, stride_wb, stride_wk, stride_wn,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """One segment of one tile: its fp32 sum into sums (B, SEGMENTS, M, N)."""
    tile_n, segment, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    for tile_m in range(tl.cdiv(M, BLOCK_M)):
        rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        acc = sum_segment(
            x_ptr + b * stride_xb, w_ptr + b * stride_wb, rows, columns, segment * SEGMENT_K, M, N, K,
            stride_xm, stride_xk, stride_wk, stride_wn, SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRET,
        )  # fmt: skip
        at = sums_ptr + ((b * SEGMENTS + segment) * M + rows[:, None]) * N + columns[None, :]
        tl.store(at, tl.trans(acc), mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit(do_not_specialize=["M", "stride_ob"])
def add_segments_kernel(
    sums_ptr, out_ptr, bias_ptr, M, N, stride_ob, stride_om, stride_on, stride_bm, stride_bn, alpha, beta,
    SEGMENTS: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BIAS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Add the sums (B, SEGMENTS, M, N) of one row over segments, from the first to the last."""
    row, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    columns = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    at = sums_ptr + (b * SEGMENTS * M + row) * N + columns
    total = tl.load(at, mask=columns < N, other=0.0)
    for segment in range(1, SEGMENTS):
        total += tl.load(at + segment * M.to(tl.int64) * N, mask=columns < N, other=0.0)
    rows = row + tl.arange(0, 1)
    finish(
        total[None, :], out_ptr + b * stride_ob, bias_ptr, rows, columns, M, N, stride_om, stride_on,
        stride_bm, stride_bn, alpha, beta, HAS_BIAS, INTERPRET,
    )  # fmt: skip


class Tile(NamedTuple):
    """What may be tuned freely: no addition changes its place by it."""

    m: int
    n: int
    warps: int
    stages: int


def tile_for(rows: int, plan: MatmulPlan) -> Tile:
    """The tile of a launch over so many rows."""
    if plan.mma is Mma.FMA:
        return Tile(16 if rows <= 16 else 64, 64, 4, 2)
    small = next((m for m in (16, 32, 64) if rows <= m), 0)
    is_narrow = ARCHS[plan.arch].shared_bytes_max < 110_000
    if small:
        return Tile(small, plan.tile_n_min, 4, 3 if is_narrow else 5)
    return Tile(128, 128, 8, 2 if is_narrow else 3)


def _of_batch(x: Tensor) -> tuple[int, ...]:
    """The strides of (B, rows, columns); a dimension of one element says nothing, and must not compile anew."""
    return (0 if x.shape[0] == 1 else x.stride(0), x.stride(1), x.stride(2))


def matmul_triton(
    x: Tensor, w: Tensor, bias: Tensor | None, plan: MatmulPlan, *, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    """x (B, M, K) times w (B, K, N) by the kernels; for callers that have checked their operands and made a plan."""
    B, M, _ = x.shape
    x, w = aligned(x), aligned(w)
    out = torch.empty((B, M, plan.n), dtype=x.dtype, device=x.device)
    spread = out if bias is None else bias.expand(M, plan.n)
    strides = (spread.stride(-2), spread.stride(-1), float(alpha), float(beta))
    has_bias = bias is not None
    tile = tile_for(M, plan)
    shape: dict[str, Any] = {
        "SEGMENT_K": plan.segment_k, "SEGMENTS": plan.segments, "BLOCK_M": tile.m, "BLOCK_N": tile.n,
        "BLOCK_K": plan.block_k, "INTERPRET": IS_INTERPRETED, "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip
    tiles_n = triton.cdiv(plan.n, tile.n)
    if M > SPLIT_ROWS_MAX or plan.segments == 1:
        tiles = B * triton.cdiv(M, tile.m) * tiles_n
        launch(
            matmul_kernel, (min(tiles, programs(x)),), x, w, out, spread, B, M, plan.n, plan.k,
            *_of_batch(x), *_of_batch(w), *out.stride(), *strides,
            GROUP=GROUP_TILES, HAS_BIAS=has_bias, **shape,
        )  # fmt: skip
        return out
    sums = torch.empty((B, plan.segments, M, plan.n), dtype=torch.float32, device=x.device)
    grid = (tiles_n, plan.segments, B)
    launch(split_kernel, grid, x, w, sums, M, plan.n, plan.k, *_of_batch(x), *_of_batch(w), **shape)
    launch(
        add_segments_kernel, (M, triton.cdiv(plan.n, 1024), B), sums, out, spread, M, plan.n, *out.stride(), *strides,
        SEGMENTS=plan.segments, BLOCK_N=1024, HAS_BIAS=has_bias, INTERPRET=IS_INTERPRETED, num_warps=4,
    )  # fmt: skip
    return out
