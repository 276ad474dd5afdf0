"""Building blocks of the matrix product kernels: sums of tiles, the order of tiles, and the tile of a launch."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from spanreplay_kernels.ops._tile import dot, rounded, smallest_rows
from spanreplay_kernels.plans.arch import ARCHS, Mma
from spanreplay_kernels.plans.plan import MatmulPlan

__all__ = [
    "GROUP_TILES",
    "SPLIT_ROWS_MAX",
    "Tile",
    "finish",
    "place",
    "registers_for",
    "store_sums",
    "sum_segment",
    "sum_tile",
    "tile_for",
]

SPLIT_ROWS_MAX = 64
"""Up to this many rows each segment gets its own program (split-K): there are too few tiles to fill a GPU."""
GROUP_TILES = 8
"""Tiles of w that are visited before the next tile of x, so that both stay in the L2 cache."""
_PIPELINE_BYTES = 80_000
"""Bytes in flight per program with few rows: enough to hide memory latency with two programs per multiprocessor."""
_PIPELINE_BYTES_NARROW = 40_000

_GRID_Z_MAX = 65_535


class Tile(NamedTuple):
    """The launch parameters that may be tuned freely: they don't change the order of additions."""

    m: int
    n: int
    warps: int
    stages: int
    is_split: bool = False
    """Each segment gets its own program, and a second kernel adds them in the same order (split-K)."""
    is_persistent: bool = False
    """One program per multiprocessor; otherwise one per tile."""
    is_specialized: bool = False
    """Warp specialization: the warps of a program divide loading, multiplying and storing among themselves."""


def tile_for(rows: int, plan: MatmulPlan, *, batch: int = 1, by_tma: bool = False, is_k_major: bool = True) -> Tile:
    """Return the tile for `batch` products of `rows` rows; register and warp counts were found by compiling.

    is_k_major: w is contiguous along K, as in a linear layer.
    """
    arch = ARCHS[plan.arch]
    is_ragged = _is_ragged(plan)
    if plan.mma is Mma.FMA:
        is_small = rows <= SPLIT_ROWS_MAX
        is_split = is_small and _may_split(rows, 16 if rows <= 16 else 64, plan, batch)
        wide = (64, 4, 2) if is_ragged else (64, 4, 3) if is_split else (64, 8, 3)
        m, warps, stages = (16, 8, 3) if rows <= 16 else wide
        return Tile(m, 64, warps, stages, is_split, not is_small)
    if by_tma and plan.mma is Mma.WGMMA:
        return _tile_on_hopper(rows, plan, batch, 6 if is_k_major else 5)
    small = smallest_rows(rows)
    tiles = batch * triton.cdiv(rows, 128) * triton.cdiv(plan.n, 128)
    if small or tiles < arch.multiprocessors * 3 // 4:
        m = small or 128
        is_wide = not by_tma and (is_ragged or plan.mma is Mma.TCGEN05)
        warps = 8 if is_wide or (m == 128 and (not by_tma or plan.mma is Mma.TCGEN05)) else 4
        is_split = _pays_to_split(rows, m, plan, batch)
        if m == 128 and plan.mma is Mma.TCGEN05 and plan.segments > 1 and not is_split:
            # Two accumulators of 128 rows would not fit into registers
            return _tile_of_many(plan, rows, by_tma=by_tma)
        return Tile(m, plan.tile_n_min, warps, _stages(m, plan), is_split)
    return _tile_of_many(plan, rows, by_tma=by_tma)


def _tile_on_hopper(rows: int, plan: MatmulPlan, batch: int, stages_max: int) -> Tile:
    """Like `tile_for`, measured on an H200 (`bench/NOTES.md`). stages_max: the most without spills in Triton 3.6."""
    small = smallest_rows(rows)
    if small:
        stages = {16: 8, 32: 8, 64: 6 if plan.segments > 1 else 5}[small]
        return Tile(small, 64, 4, stages, _may_split(rows, small, plan, batch))
    multiprocessors = ARCHS[plan.arch].multiprocessors
    tiles = batch * triton.cdiv(rows, 128) * triton.cdiv(plan.n, 64)
    if tiles > multiprocessors:
        if plan.segments > 1 or rows < 256:
            # The sum of the earlier segments is kept beside the accumulator of this one
            return Tile(128, 128, 8, stages_max, is_persistent=True)
        # If each program has many tiles, fewer stages are faster, by up to a tenth
        return Tile(256, 128, 8, 4 if tiles < 64 * multiprocessors else 3, is_persistent=True)
    is_one_wave = tiles * plan.segments <= multiprocessors
    if _may_split(rows, 128, plan, batch) and (is_one_wave or tiles * 5 < multiprocessors * 2):
        # One program per multiprocessor, or several that share its memory
        return Tile(128, 64, 4, 7 if is_one_wave else 4, is_split=True)
    return Tile(128, 64, 4, 7) if tiles * 2 > multiprocessors else Tile(64, 64, 4, 6)


def _is_ragged(plan: MatmulPlan) -> bool:
    """Whether rows have no known alignment: elements are then loaded one by one, each with its own address."""
    return plan.k % 16 != 0 or plan.n % 16 != 0


def registers_for(plan: MatmulPlan) -> dict[str, int]:
    """Return the option that lets the assembler use all the registers it needs instead of spilling a few.

    It spills to fit more programs, which would all be waiting for addresses anyway.
    """
    return {"maxnreg": 255} if _is_ragged(plan) else {}


def _may_split(rows: int, m: int, plan: MatmulPlan, batch: int) -> bool:
    """Whether there is more than one segment, and the grid has room for every tile of rows."""
    return plan.segments > 1 and batch * triton.cdiv(rows, m) <= _GRID_Z_MAX


def _pays_to_split(rows: int, m: int, plan: MatmulPlan, batch: int) -> bool:
    """Whether split-K is faster: always with few rows, and with more if most of the GPU would otherwise be idle.

    Sums are written and read in fp32: at 1,024 rows and columns, K = 4096, 67 MB on top of 19 MB of operands.
    """
    tiles = batch * triton.cdiv(rows, m) * triton.cdiv(plan.n, plan.tile_n_min)
    is_idle = tiles * 5 < ARCHS[plan.arch].multiprocessors * 2
    return (rows <= SPLIT_ROWS_MAX or is_idle) and _may_split(rows, m, plan, batch)


def _stages(m: int, plan: MatmulPlan) -> int:
    is_narrow = ARCHS[plan.arch].shared_bytes_max < 110_000
    step_bytes = (m + plan.tile_n_min) * plan.block_k * 2
    return max(2, min(8, (_PIPELINE_BYTES_NARROW if is_narrow else _PIPELINE_BYTES) // step_bytes))


def _tile_of_many(plan: MatmulPlan, rows: int, *, by_tma: bool) -> Tile:
    """Return the tile if there are enough tiles for every multiprocessor; register use was found by compiling."""
    is_narrow = ARCHS[plan.arch].shared_bytes_max < 110_000
    if plan.segments > 1:
        # The sum of the earlier segments is kept beside the accumulator of this one
        if by_tma and plan.mma is Mma.TCGEN05:
            return Tile(64, 128, 4, 5, is_persistent=True)
        if by_tma:
            return Tile(128, 128, 8, 2 if is_narrow else 5, is_persistent=True)
        return Tile(64 if plan.tile_n_min == 128 else 128, plan.tile_n_min, 8, 3, is_persistent=True)
    if by_tma and plan.mma is Mma.TCGEN05:
        return Tile(128, 128, 4, 4, is_persistent=True, is_specialized=True)
    return Tile(128, 128, 8, 3 if is_narrow or not by_tma else 5, is_persistent=True)


@triton.jit
def sum_segment(
    x_ptr, w_ptr, rows, columns, start,
    M, N, K, stride_xm, stride_xk, stride_wk, stride_wn,
    SEGMENT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Return the fp32 sum of the segment at `start`, transposed: (BLOCK_N, BLOCK_M)."""
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
def sum_tile(
    x_ptr, w_ptr, rows_left, columns_left, start, K, stride_xm, stride_wk, stride_wn,
    SEGMENT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    IS_EVEN: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Like `sum_segment`, from pointers to a tile's first row and column: offsets within the tile fit into 32 bits.

    Every segment takes the same number of steps, so that the outer loops can be fused; elements past K are zero.
    """
    ks = tl.arange(0, BLOCK_K)
    rows, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    x_at = ks[:, None] + rows[None, :] * stride_xm
    w_at = columns[:, None] * stride_wn + ks[None, :] * stride_wk
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for step in range(SEGMENT_K // BLOCK_K):
        k = start + step * BLOCK_K
        x_from = x_ptr + k
        w_from = w_ptr + k.to(tl.int64) * stride_wk
        # Computed in each step, though always the same: a mask carried around the loop would prevent prefetching
        is_row = (rows < tl.where(k < K, rows_left, 0))[None, :]
        if IS_EVEN:
            w = tl.load(w_from + w_at)
            x = tl.load(x_from + x_at, mask=is_row, other=0.0)
        else:
            is_column = (columns < tl.where(k < K, columns_left, 0))[:, None]
            w = tl.load(w_from + w_at, mask=is_column & (k + ks < K)[None, :], other=0.0)
            x = tl.load(x_from + x_at, mask=is_row & (k + ks < K)[:, None], other=0.0)
        acc = dot(w, x, acc, INTERPRET)
    return acc


@triton.jit
def place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return (row, column) of a tile; groups of GROUP columns are traversed together, row by row."""
    group = tile // (GROUP * tiles_m)
    first = group * GROUP
    width = tl.minimum(tiles_n - first, GROUP)
    inside = tile % (GROUP * tiles_m)
    return inside // width, first + inside % width


@triton.jit
def finish(
    total, out_ptr, bias_ptr, rows, columns, M, N, stride_om, stride_on, stride_bm, stride_bn, alpha, beta,
    BIAS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Store alpha · total + beta · bias, rounded once; total is (rows, columns).

    BIAS: 0 for none, 1 for one shared by all rows, 2 for one per row.
    """
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    if BIAS == 0:
        total = total * alpha
    else:
        if BIAS == 1:
            bias = tl.load(bias_ptr + columns * stride_bn, mask=columns < N, other=0.0).to(tl.float32)[None, :]
        else:
            at = bias_ptr + rows[:, None] * stride_bm + columns[None, :] * stride_bn
            bias = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        # An explicit fma: otherwise a compiler might contract it in one kernel and not in the other
        total = tl.fma(total, tl.full(total.shape, alpha, tl.float32), (bias * beta).broadcast_to(total.shape))
    out_at = out_ptr + rows[:, None] * stride_om + columns[None, :] * stride_on
    tl.store(out_at, rounded(total, out_ptr.dtype.element_ty, INTERPRET), mask=mask)


@triton.jit
def store_sums(acc, sums_ptr, segment, row, column, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store a tile's transposed sum at its place in sums (·, M, N)."""
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    at = sums_ptr + (segment * M + rows[:, None]) * N + columns[None, :]
    tl.store(at, tl.trans(acc), mask=(rows[:, None] < M) & (columns[None, :] < N))
