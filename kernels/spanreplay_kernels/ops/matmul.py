"""Matrix products: mm, addmm, linear and bmm.

Every product is computed as (wᵀ · xᵀ)ᵀ: w is the left operand of the matrix instruction, so that one instruction class
serves one row and a thousand (wgmma takes at least 64 rows on its left, and as few as 8 columns on its right).
With few rows each segment of K gets its own program and a second kernel adds the segments' sums in order (split-K).
With many rows one program adds all segments, in the same order, each from a fresh accumulator.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops import _matmul_tma as tma
from spanreplay_kernels.ops._matmul_tiles import (
    GROUP_TILES,
    SPLIT_ROWS_MAX,
    Tile,
    finish,
    place,
    registers_for,
    store_sums,
    sum_segment,
    sum_tile,
    tile_for,
)
from spanreplay_kernels.ops._tile import IS_INTERPRETED, may_overlap
from spanreplay_kernels.plans.arch import CPU, Mma, arch_of
from spanreplay_kernels.plans.launch import launch, programs
from spanreplay_kernels.plans.operands import aligned, check_dtype, check_same, dtype_name
from spanreplay_kernels.plans.plan import MatmulPlan, plan_matmul
from spanreplay_kernels.plans.vendor import vendor_mm

__all__ = [
    "GROUP_TILES",
    "SPLIT_ROWS_MAX",
    "Tile",
    "add_segments_kernel",
    "bmm",
    "finish",
    "is_even",
    "linear",
    "matmul",
    "matmul_cpu",
    "matmul_ref",
    "matmul_triton",
    "place",
    "sum_segment",
    "tile_for",
    "within_32_bits",
]


def matmul_ref(x: Tensor, w: Tensor, plan: MatmulPlan, bias: Tensor | None = None) -> Tensor:
    """Multiply x (M, K) by w (K, N) in a plan's order, in plain PyTorch: the definition."""
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
    """Return alpha · x · w + beta · bias; bitwise batch-invariant.

    Shapes: x (M, K) any M, w (K, N) of any strides, bias broadcast to (M, N), result (M, N); K, N ≥ 1.
    Dtypes: bf16, fp16, fp32 (never TF32); sums in fp32, rounded once; result has x's dtype.
    Invariance: row i depends only on x[i] and w; its K terms are added in plan_matmul(N, K, dtype, arch)'s order.
    Raises: UnsupportedInput if shapes, dtypes or devices don't fit, or no plan exists for the device.
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
    """Return x · weightᵀ + bias; bitwise batch-invariant. Shapes: x (…, K), weight (N, K), bias (N,), result (…, N)."""
    result = matmul(x.reshape(-1, x.shape[-1]), weight.t(), bias)
    return result.reshape(*x.shape[:-1], weight.shape[0])


def bmm(x: Tensor, w: Tensor) -> Tensor:
    """Return x[b] · w[b] for every b; bitwise batch-invariant, over b too.

    Shapes: x (B, M, K), w (B, K, N), result (B, M, N). Otherwise like `matmul`.
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
    """Multiply with the CPU library, always called with one shape and layout: `cpu_rows` rows, padded with zeros.

    The weight's columns must be contiguous, as in a linear layer; other weights are copied in each call. For some
    dtypes and processors (fp16 on Zen 4) the library would use another order if the rows were contiguous.
    """
    rows = plan.cpu_rows
    w = aligned(_dense_columns(w))
    x = aligned(x.contiguous())
    out = x.new_empty((x.shape[0], plan.n))
    for start in range(0, x.shape[0], rows):
        count = min(rows, x.shape[0] - start)
        # A full block of rows is aligned if x is: rows × element size is a multiple of a cache line in fp32
        block = x.new_zeros((rows, plan.k))
        block[:count] = x[start : start + count]
        out[start : start + count] = vendor_mm(block, w)[:count]
    if bias is None and alpha == 1.0:
        return out
    total = out.float() * alpha
    return (total if bias is None else total + bias.float() * beta).to(x.dtype)


@triton.jit(do_not_specialize=["M", "B", "stride_ob"])
def matmul_kernel(
    x_ptr, w_ptr, out_ptr, bias_ptr, B, M, N, K, stride_xm, stride_wb, stride_wk, stride_wn,
    stride_ob, stride_om, stride_on, stride_bm, stride_bn, alpha, beta,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IS_EVEN: tl.constexpr,
    GROUP: tl.constexpr, BIAS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Compute tiles of the product: every program adds all segments, in order. Persistent over tiles and batch.

    The compiler flattens the loop over (tile, segment) with the loop over K, so loads are prefetched across both.
    """
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    first, programs = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for each in tl.range(0, tl.cdiv(tiles * B - first, programs) * SEGMENTS, flatten=True):
        tile, segment = first + each // SEGMENTS * programs, each % SEGMENTS
        b = (tile // tiles).to(tl.int64)
        tile_m, tile_n = place(tile % tiles, tiles_m, tiles_n, GROUP)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = sum_tile(
            x_ptr + (b * M + row) * stride_xm,
            w_ptr + b * stride_wb + column.to(tl.int64) * stride_wn,
            M - row, N - column, segment * SEGMENT_K, K, stride_xm, stride_wk, stride_wn,
            SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, IS_EVEN, INTERPRET,
        )  # fmt: skip
        total = acc if SEGMENTS == 1 else tl.where(segment == 0, acc, total + acc)
        if segment == SEGMENTS - 1:
            finish(
                tl.trans(total), out_ptr + b * stride_ob, bias_ptr,
                (row + tl.arange(0, BLOCK_M)).to(tl.int64), column + tl.arange(0, BLOCK_N), M, N,
                stride_om, stride_on, stride_bm, stride_bn, alpha, beta, BIAS, INTERPRET,
            )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def split_kernel(
    x_ptr, w_ptr, sums_ptr, M, N, K, stride_xm, stride_wb, stride_wk, stride_wn,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IS_EVEN: tl.constexpr,
    OVERLAPS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Store the fp32 sum of one segment of one tile in sums (B, SEGMENTS, M, N)."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    tiles_m = tl.cdiv(M, BLOCK_M)
    segment, b = tl.program_id(1), (tl.program_id(2) // tiles_m).to(tl.int64)
    row, column = tl.program_id(2) % tiles_m * BLOCK_M, tl.program_id(0) * BLOCK_N
    acc = sum_tile(
        x_ptr + (b * M + row) * stride_xm, w_ptr + b * stride_wb + column.to(tl.int64) * stride_wn,
        M - row, N - column, segment * SEGMENT_K, K, stride_xm, stride_wk, stride_wn,
        SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, IS_EVEN, INTERPRET,
    )  # fmt: skip
    store_sums(acc, sums_ptr, b * SEGMENTS + segment, row, column, M, N, BLOCK_M, BLOCK_N)


@triton.jit(do_not_specialize=["M", "stride_ob"])
def add_segments_kernel(
    sums_ptr, out_ptr, bias_ptr, M, N, stride_ob, stride_om, stride_on, stride_bm, stride_bn, alpha, beta,
    SEGMENTS: tl.constexpr, BLOCK_N: tl.constexpr, BIAS: tl.constexpr, INTERPRET: tl.constexpr,
    OVERLAPS: tl.constexpr = False,
):  # fmt: skip
    """Add the sums (B, SEGMENTS, M, N) of one row over segments, from the first to the last.

    OVERLAPS: this kernel is launched while the previous one still runs, and waits on the device until it has ended.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
    row, b = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    columns = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    at = sums_ptr + (b * SEGMENTS * M + row) * N + columns
    total = tl.load(at, mask=columns < N, other=0.0)
    for segment in range(1, SEGMENTS):
        total += tl.load(at + segment * M.to(tl.int64) * N, mask=columns < N, other=0.0)
    rows = row + tl.arange(0, 1)
    finish(
        total[None, :], out_ptr + b * stride_ob, bias_ptr, rows, columns, M, N, stride_om, stride_on,
        stride_bm, stride_bn, alpha, beta, BIAS, INTERPRET,
    )  # fmt: skip


def matmul_triton(
    x: Tensor, w: Tensor, bias: Tensor | None, plan: MatmulPlan, *, alpha: float = 1.0, beta: float = 1.0,
    may_use_tma: bool = True,
) -> Tensor:  # fmt: skip
    """Multiply x (B, M, K) by w (B, K, N) with the kernels; the caller has checked the operands and made a plan.

    may_use_tma: False loads by pointers even where TMA would work; the bits are the same.
    """
    B, M, _ = x.shape
    x, w = _dense(x), within_32_bits(aligned(w))
    out = torch.empty((B, M, plan.n), dtype=x.dtype, device=x.device)
    by_tma = may_use_tma and tma.is_readable(w, plan)
    tile = tile_for(M, plan, batch=B, by_tma=by_tma, is_k_major=w.stride(1) == 1)
    shape: dict[str, Any] = {
        "SEGMENT_K": plan.segment_k, "SEGMENTS": plan.segments, "BLOCK_M": tile.m, "BLOCK_N": tile.n,
        "BLOCK_K": plan.block_k, "INTERPRET": IS_INTERPRETED, "num_warps": tile.warps, "num_stages": tile.stages,
        **registers_for(plan),
    }  # fmt: skip
    if tile.is_split:
        _launch_split(x, w, out, bias, plan, tile, alpha, beta, shape, by_tma=by_tma)
        return out
    tiles = B * triton.cdiv(M, tile.m) * triton.cdiv(plan.n, tile.n)
    grid = (min(tiles, programs(x)) if tile.is_persistent else tiles,)
    sizes = (B, M, plan.n, plan.k)
    ends = (*out.stride(), *_of_bias(bias, out), float(alpha), float(beta))
    options = {"GROUP": GROUP_TILES, "BIAS": _kind(bias), **shape}
    if by_tma:
        reads = tma.descriptors(x, w, plan, tile)
        launch(
            tma.matmul_tma_kernel, grid, *reads, out, _or(bias, out), *sizes, *ends,
            IS_K_MAJOR=w.stride(1) == 1, WARP_SPECIALIZE=tile.is_specialized, **options,
        )  # fmt: skip
    else:
        launch(
            matmul_kernel, grid, x, w, out, _or(bias, out), *sizes, plan.k, *_of_batch(w), *ends,
            IS_EVEN=is_even(plan, tile), **options,
        )  # fmt: skip
    return out


def _launch_split(
    x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None, plan: MatmulPlan, tile: Tile, alpha: float, beta: float,
    shape: dict[str, Any], *, by_tma: bool,
) -> None:  # fmt: skip
    """Launch one program per segment of each tile, then the kernel that adds them (split-K)."""
    B, M, _ = x.shape
    sums = torch.empty((B, plan.segments, M, plan.n), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(plan.n, tile.n), plan.segments, B * triton.cdiv(M, tile.m))
    overlaps = may_overlap(plan.arch)
    if by_tma and plan.mma is Mma.TCGEN05:
        # Otherwise the assembler spills a few registers to fit more programs than shared memory has room for
        shape = {**shape, "maxnreg": 160}
    if by_tma:
        reads = tma.descriptors(x, w, plan, tile)
        is_k_major = w.stride(1) == 1
        launch(
            tma.split_tma_kernel, grid, *reads, sums, M, plan.n, plan.k,
            IS_K_MAJOR=is_k_major, OVERLAPS=overlaps, **shape,
        )  # fmt: skip
    else:
        launch(
            split_kernel, grid, x, w, sums, M, plan.n, plan.k, plan.k, *_of_batch(w),
            IS_EVEN=is_even(plan, tile), OVERLAPS=overlaps, **shape,
        )  # fmt: skip
    launch(
        add_segments_kernel, (M, triton.cdiv(plan.n, 1024), B), sums, out, _or(bias, out), M, plan.n, *out.stride(),
        *_of_bias(bias, out), float(alpha), float(beta), SEGMENTS=plan.segments, BLOCK_N=1024, BIAS=_kind(bias),
        INTERPRET=IS_INTERPRETED, OVERLAPS=overlaps, num_warps=4, **({"launch_pdl": True} if overlaps else {}),
    )  # fmt: skip


def _dense_columns(w: Tensor) -> Tensor:
    """Return w (K, N) with the strides (1, K), copied only if it has another layout."""
    return w.t().contiguous().as_strided(w.shape, (1, w.shape[0]))


def _dense(x: Tensor) -> Tensor:
    """Return x contiguous at an aligned address, copied only if necessary."""
    return aligned(x.contiguous())


def within_32_bits(w: Tensor) -> Tensor:
    """Return w, copied if its rows are so far apart that offsets within a tile need more than 32 bits."""
    return w if max(w.stride()[1:]) * 256 < 2**31 else w.contiguous()


def is_even(plan: MatmulPlan, tile: Tile) -> bool:
    """Whether no tile reaches past the weight; depends on the weight alone."""
    return plan.k == plan.segment_k * plan.segments and plan.n % tile.n == 0


def _of_batch(w: Tensor) -> tuple[int, ...]:
    """Return the strides of (B, K, N); 0 for a batch of one, whose stride must not trigger a recompilation."""
    return (0 if w.shape[0] == 1 else w.stride(0), w.stride(1), w.stride(2))


def _kind(bias: Tensor | None) -> int:
    """Return BIAS as `finish` takes it."""
    return 0 if bias is None else 1 if bias.dim() < 2 else 2


def _or(bias: Tensor | None, out: Tensor) -> Tensor:
    return out if bias is None else bias


def _of_bias(bias: Tensor | None, out: Tensor) -> tuple[int, int]:
    """Return the strides of a bias over (M, N)."""
    if bias is None:
        return (0, 0)
    spread = bias.expand(out.shape[1:])
    return (0 if bias.dim() < 2 else spread.stride(0), spread.stride(1))
