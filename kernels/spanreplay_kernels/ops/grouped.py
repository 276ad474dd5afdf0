"""Grouped matrix products: each group of rows is multiplied by its own weight, as a mixture of experts needs.

A row has the bits that `matmul` gives it with its group's weight: plan, segments and instruction are the same, and
don't depend on the size of the group or on the row's place in it. Only the device knows which rows form a group; the
kernel looks up each tile's group, so no launch has to wait for it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._matmul_tiles import (
    GROUP_TILES,
    SPLIT_ROWS_MAX,
    Tile,
    finish,
    place,
    registers_for,
    sum_tile,
)
from spanreplay_kernels.ops._matmul_tma import descriptors, is_readable, sum_read
from spanreplay_kernels.ops._tile import IS_INTERPRETED, may_overlap, smallest_rows
from spanreplay_kernels.ops.matmul import add_segments_kernel, is_even, matmul_cpu, matmul_ref, within_32_bits
from spanreplay_kernels.plans.arch import ARCHS, CPU, Mma, arch_of
from spanreplay_kernels.plans.launch import launch, programs
from spanreplay_kernels.plans.operands import aligned, check_dtype, dense_rows, dtype_name
from spanreplay_kernels.plans.plan import MatmulPlan, plan_matmul

__all__ = ["GROUPS_MAX", "grouped_mm", "grouped_mm_ref", "grouped_mm_triton"]

GROUPS_MAX = 4095
"""Every program holds the ends of all groups, and of the rows after the last group."""
_HINT = "pass (T, K), (E, K, N) and int32 (E,)"


def grouped_mm_ref(x: Tensor, w: Tensor, offsets: Tensor, plan: MatmulPlan) -> Tensor:
    """Multiply each group's rows by its weight in a plan's order, in plain PyTorch: the definition."""
    out = x.new_zeros((x.shape[0], plan.n))
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        out[start:end] = matmul_ref(x[start:end], w[expert], plan)
        start = end
    return out


def grouped_mm(x: Tensor, w: Tensor, offsets: Tensor) -> Tensor:
    """Multiply the rows of group e by w[e], like `torch._grouped_mm`; bitwise batch-invariant.

    Group e is x[offsets[e − 1] : offsets[e]]; it may be empty. Rows after the last group are zero in the result.

    Shapes: x (T, K) any T, w (E, K, N) of any strides, offsets (E,), result (T, N); E ≤ 4095, K, N ≥ 1.
    Dtypes: x, w bf16, fp16, fp32 (never TF32); offsets int32; sums in fp32, rounded once; result has x's dtype.
    Invariance: a row depends only on itself and its group's weight, and has the bits of `matmul(row, w[e])`.
    Raises: UnsupportedInput if shapes, dtypes or devices don't fit, e.g. for the other forms of `_grouped_mm`; on a
        CPU also if offsets decrease or exceed T. A GPU doesn't check this: such offsets give wrong rows, but access
        no memory outside the operands.
    """
    _check(x, w, offsets)
    arch = arch_of(x.device)
    plan = plan_matmul(w.shape[2], w.shape[1], dtype_name(x), arch)
    if x.shape[0] == 0:
        return x.new_empty((0, plan.n))
    if arch is CPU:
        return _grouped_mm_cpu(x, w, offsets, plan)
    return grouped_mm_triton(x, w, offsets, plan)


def _check(x: Tensor, w: Tensor, offsets: Tensor) -> None:
    if x.dim() != 2 or w.dim() != 3 or x.shape[1] != w.shape[1] or 0 in w.shape:
        raise UnsupportedInput("grouped_mm", "these shapes do not multiply", x, w, offsets, hint=_HINT)
    check_dtype("grouped_mm", x, w)
    if offsets.shape != w.shape[:1] or offsets.dtype != torch.int32 or offsets.device != x.device:
        raise UnsupportedInput("grouped_mm", "offsets are not one int32 a group", w, offsets, hint=_HINT)
    if w.shape[0] > GROUPS_MAX:
        raise UnsupportedInput("grouped_mm", "too many groups", w, hint=f"pass at most {GROUPS_MAX}")


def _grouped_mm_cpu(x: Tensor, w: Tensor, offsets: Tensor, plan: MatmulPlan) -> Tensor:
    out = x.new_zeros((x.shape[0], plan.n))
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        if not start <= end <= x.shape[0]:
            problem = f"offset {expert} is {end} after {start}, of {x.shape[0]} rows"
            raise UnsupportedInput("grouped_mm", problem, x, offsets, hint="pass the ends of groups in order")
        if end > start:
            out[start:end] = matmul_cpu(x[start:end], w[expert], None, 1.0, 1.0, plan)
        start = end
    return out


@triton.jit
def _load_end(offsets_ptr, group, is_group, T, other):
    """Load the ends of groups, clamped to the rows."""
    return tl.minimum(tl.maximum(tl.load(offsets_ptr + group, mask=is_group, other=other), 0), T)


@triton.jit
def _count_tiles(offsets_ptr, groups, T, E, BLOCK_M: tl.constexpr):
    """Return for every e how many tiles of rows groups 0 … e have; group E is the rows after the last group."""
    ends = _load_end(offsets_ptr, groups, groups < E, T, T)
    starts = _load_end(offsets_ptr, groups - 1, (groups > 0) & (groups <= E), T, 0)
    rows = tl.where(groups <= E, tl.maximum(ends - starts, 0), 0)
    return tl.cumsum(tl.cdiv(rows, BLOCK_M), 0)


@triton.jit
def _find_tile(
    tile, tiles_until, groups, offsets_ptr, T, E, tiles_m, tiles_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Return (group, its end, the tile's first row, its first column) for a tile."""
    tile_m, tile_n = place(tile, tiles_m, tiles_n, GROUP)
    group = tl.sum((tiles_until <= tile_m).to(tl.int32), 0)
    first = tl.sum(tl.where(groups == group - 1, tiles_until, 0), 0)
    start = _load_end(offsets_ptr, group - 1, group > 0, T, 0)
    end = _load_end(offsets_ptr, group, group < E, T, T)
    return group, end, start + (tile_m - first) * BLOCK_M, tile_n * BLOCK_N


@triton.jit(do_not_specialize=["T"])
def grouped_kernel(
    x_ptr, w_ptr, out_ptr, offsets_ptr, T, E, N, K, stride_xm, stride_we, stride_wk, stride_wn, stride_om, stride_on,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr,
    IS_EVEN: tl.constexpr, GROUP: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Compute tiles of all groups: every program adds all segments in order, like `matmul_kernel`. Persistent."""
    groups = tl.arange(0, BLOCK_E)
    tiles_until = _count_tiles(offsets_ptr, groups, T, E, BLOCK_M)
    tiles_m, tiles_n = tl.max(tiles_until, 0), tl.cdiv(N, BLOCK_N)
    first, programs = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for each in tl.range(0, tl.cdiv(tiles_m * tiles_n - first, programs) * SEGMENTS):
        tile, segment = first + each // SEGMENTS * programs, each % SEGMENTS
        group, end, row, column = _find_tile(
            tile, tiles_until, groups, offsets_ptr, T, E, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP
        )
        # Rows after the last group are multiplied too, by some weight, and discarded: no branch, no second loop
        w_at = w_ptr + tl.minimum(group, E - 1).to(tl.int64) * stride_we
        acc = sum_tile(
            x_ptr + row.to(tl.int64) * stride_xm, w_at + column.to(tl.int64) * stride_wn,
            end - row, N - column, segment * SEGMENT_K, K, stride_xm, stride_wk, stride_wn,
            SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, IS_EVEN, INTERPRET,
        )  # fmt: skip
        total = acc if SEGMENTS == 1 else tl.where(segment == 0, acc, total + acc)
        if segment == SEGMENTS - 1:
            finish(
                tl.trans(tl.where(group < E, total, 0.0)), out_ptr, out_ptr,
                (row + tl.arange(0, BLOCK_M)).to(tl.int64), column + tl.arange(0, BLOCK_N), end, N,
                stride_om, stride_on, 0, 0, 1.0, 0.0, 0, INTERPRET,
            )  # fmt: skip


@triton.jit(do_not_specialize=["T"])
def grouped_split_kernel(
    x_ptr, w_ptr, sums_ptr, offsets_ptr, T, E, N, K, stride_xm, stride_we, stride_wk, stride_wn,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr,
    IS_EVEN: tl.constexpr, OVERLAPS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Store the fp32 sum of one segment of one tile in sums (SEGMENTS, T, N)."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    groups = tl.arange(0, BLOCK_E)
    tiles_until = _count_tiles(offsets_ptr, groups, T, E, BLOCK_M)
    tiles_m = tl.max(tiles_until, 0)
    if tl.program_id(2) < tiles_m:
        tile, segment = tl.program_id(0) + tl.program_id(2) * tl.num_programs(0), tl.program_id(1)
        group, end, row, column = _find_tile(
            tile, tiles_until, groups, offsets_ptr, T, E, tiles_m, tl.num_programs(0), BLOCK_M, BLOCK_N, 1
        )
        w_at = w_ptr + tl.minimum(group, E - 1).to(tl.int64) * stride_we
        acc = sum_tile(
            x_ptr + row.to(tl.int64) * stride_xm, w_at + column.to(tl.int64) * stride_wn,
            end - row, N - column, segment * SEGMENT_K, K, stride_xm, stride_wk, stride_wn,
            SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, IS_EVEN, INTERPRET,
        )  # fmt: skip
        rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
        at = sums_ptr + (segment.to(tl.int64) * T + rows[:, None]) * N + columns[None, :]
        acc = tl.trans(tl.where(group < E, acc, 0.0))
        tl.store(at, acc, mask=(rows[:, None] < end) & (columns[None, :] < N))


@triton.jit(do_not_specialize=["T"])
def grouped_tma_kernel(
    x_read, w_read, out_ptr, offsets_ptr, T, E, N, K, stride_om, stride_on,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_E: tl.constexpr,
    IS_K_MAJOR: tl.constexpr, GROUP: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Like `grouped_kernel`, with TMA; a tile may also read rows of the next group, whose sums are discarded."""
    groups = tl.arange(0, BLOCK_E)
    tiles_until = _count_tiles(offsets_ptr, groups, T, E, BLOCK_M)
    tiles_m, tiles_n = tl.max(tiles_until, 0), tl.cdiv(N, BLOCK_N)
    first, programs = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for each in tl.range(0, tl.cdiv(tiles_m * tiles_n - first, programs) * SEGMENTS):
        tile, segment = first + each // SEGMENTS * programs, each % SEGMENTS
        group, end, row, column = _find_tile(
            tile, tiles_until, groups, offsets_ptr, T, E, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP
        )
        acc = sum_read(
            x_read, w_read, row, tl.minimum(group, E - 1) * (N if IS_K_MAJOR else K), column, segment * SEGMENT_K,
            SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, IS_K_MAJOR, INTERPRET,
        )  # fmt: skip
        total = acc if SEGMENTS == 1 else tl.where(segment == 0, acc, total + acc)
        if segment == SEGMENTS - 1:
            finish(
                tl.trans(tl.where(group < E, total, 0.0)), out_ptr, out_ptr,
                (row + tl.arange(0, BLOCK_M)).to(tl.int64), column + tl.arange(0, BLOCK_N), end, N,
                stride_om, stride_on, 0, 0, 1.0, 0.0, 0, INTERPRET,
            )  # fmt: skip


def tile_for(rows: int, plan: MatmulPlan, *, by_tma: bool = False) -> Tile:
    """Return the tile for groups of `rows` rows; register and warp counts were found by compiling."""
    if by_tma and plan.mma is Mma.WGMMA:
        # Measured on an H200: bench/NOTES.md
        small = smallest_rows(rows)
        return Tile(small, 128, 4, 5) if small else Tile(128, 128, 8, 5)
    if plan.k % 16 or plan.n % 16:
        # Elements are loaded one by one: their addresses fill the registers
        few = rows <= 16 or plan.mma is Mma.TCGEN05
        return Tile(16 if few else 32, plan.tile_n_min, 8, 3 if plan.mma is Mma.FMA else 2)
    if plan.mma is Mma.FMA:
        # With 4 warps and 32 rows, Triton 3.6 spills
        return Tile(16, 64, 4, 2) if rows <= 16 else Tile(32, 64, 8, 2)
    is_narrow = ARCHS[plan.arch].shared_bytes_max < 110_000
    small = smallest_rows(rows)
    if small:
        return Tile(small, plan.tile_n_min, 8 if small * plan.tile_n_min > 4096 else 4, 3 if is_narrow else 5)
    return Tile(64 if is_narrow else 128, 128, 8, 3)


def grouped_mm_triton(x: Tensor, w: Tensor, offsets: Tensor, plan: MatmulPlan, *, may_use_tma: bool = True) -> Tensor:
    """Run `grouped_mm` with the kernels; the caller has checked the operands and made a plan.

    may_use_tma: False loads by pointers even where TMA would work; the bits are the same.
    """
    T, E = x.shape[0], w.shape[0]
    x, w, offsets = dense_rows(x), within_32_bits(aligned(w)), aligned(offsets.contiguous())
    out = torch.empty((T, plan.n), dtype=x.dtype, device=x.device)
    is_split = T <= SPLIT_ROWS_MAX and plan.segments > 1
    by_tma = may_use_tma and not is_split and is_readable(w, plan)
    # The average size of a group affects only the choice of tile, not the sums
    tile = tile_for(triton.cdiv(T, E), plan, by_tma=by_tma)
    tiles_n = triton.cdiv(plan.n, tile.n)
    tiles_m_max = T // tile.m + min(E + 1, T)
    sizes = (T, E, plan.n, plan.k)
    shape: dict[str, Any] = {
        "SEGMENT_K": plan.segment_k, "SEGMENTS": plan.segments, "BLOCK_M": tile.m, "BLOCK_N": tile.n,
        "BLOCK_K": plan.block_k, "BLOCK_E": triton.next_power_of_2(E + 1), "INTERPRET": IS_INTERPRETED,
        "num_warps": tile.warps, "num_stages": tile.stages, **registers_for(plan),
    }  # fmt: skip
    if plan.mma is Mma.FMA:
        shape.setdefault("maxnreg", 160)  # as with few rows below
    # Several small tiles fit on a multiprocessor and hide each other's latency when loading weights
    blocks = min(tiles_m_max * tiles_n, programs(x) * (4 if tile.m <= 32 else 1))
    if by_tma:
        if plan.mma is Mma.TCGEN05 and tile.m <= 32:
            # Otherwise the assembler spills a few registers to fit more programs than shared memory has room for
            shape["maxnreg"] = 160
        reads = descriptors(x[None], w, plan, tile)
        launch(
            grouped_tma_kernel, (blocks,), *reads, out, offsets, *sizes, *out.stride(),
            IS_K_MAJOR=w.stride(1) == 1, GROUP=GROUP_TILES, **shape,
        )  # fmt: skip
        return out
    operands = (x, w, out, offsets, *sizes, plan.k, *w.stride())
    even = is_even(plan, tile)
    if not is_split:
        launch(grouped_kernel, (blocks,), *operands, *out.stride(), IS_EVEN=even, GROUP=GROUP_TILES, **shape)
        return out
    sums = torch.empty((plan.segments, T, plan.n), dtype=torch.float32, device=x.device)
    overlaps = may_overlap(plan.arch)
    grid = (tiles_n, plan.segments, tiles_m_max)
    operands = (x, w, sums, *operands[3:])
    launch(grouped_split_kernel, grid, *operands, IS_EVEN=even, OVERLAPS=overlaps, **shape)
    launch(
        add_segments_kernel, (T, triton.cdiv(plan.n, 1024), 1), sums, out, out, T, plan.n, 0, *out.stride(), 0, 0,
        1.0, 0.0, SEGMENTS=plan.segments, BLOCK_N=1024, BIAS=0, INTERPRET=IS_INTERPRETED, OVERLAPS=overlaps,
        num_warps=4, **({"launch_pdl": True} if overlaps else {}),
    )  # fmt: skip
    return out
