"""Matrix products that load with the copy engine (TMA): the sums of `matmul.py`'s kernels, in the same order.

The engine fills a tile of shared memory with one instruction from one thread, and with zeros past the tensor's end, so
loops need neither addresses nor masks. Rows must be multiples of 16 bytes, so the weight's layout and K alone decide
whether TMA is used.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from spanreplay_kernels.ops._matmul_tiles import Tile, finish, place, store_sums
from spanreplay_kernels.ops._tile import dot
from spanreplay_kernels.plans.arch import ARCHS, Mma
from spanreplay_kernels.plans.plan import MatmulPlan

__all__ = ["descriptors", "is_readable", "matmul_tma_kernel", "split_tma_kernel"]

_ROW_BYTES = 16


def is_readable(w: Tensor, plan: MatmulPlan) -> bool:
    """Whether the copy engine can read this weight (B, K, N) and rows of K elements."""
    if not ARCHS[plan.arch].has_tma or plan.mma is Mma.FMA or plan.k * w.element_size() % _ROW_BYTES:
        return False
    along, across = (1, 2) if w.stride(1) == 1 else (2, 1)
    row_stride = w.stride(across)
    if w.stride(along) != 1 or row_stride * w.element_size() % _ROW_BYTES or row_stride < w.shape[along]:
        return False
    if w.shape[0] == 1:
        return True
    # Weights stored one after another are read as one matrix: past the end of one comes the next, not zeros
    is_one = w.stride(0) == row_stride * w.shape[across]
    return is_one and (across == 2 or plan.k == plan.segment_k * plan.segments)


def descriptors(x: Tensor, w: Tensor, plan: MatmulPlan, tile: Tile) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Return descriptors of contiguous x (·, M, K) and w (B, K, N), each as one matrix; w must be readable by TMA."""
    B, M, K = x.shape
    x_read = TensorDescriptor(x, [B * M, K], [K, 1], [tile.m, plan.block_k])
    if w.stride(1) == 1:
        return x_read, TensorDescriptor(w, [w.shape[0] * plan.n, K], [w.stride(2), 1], [tile.n, plan.block_k])
    return x_read, TensorDescriptor(w, [w.shape[0] * K, plan.n], [w.stride(1), 1], [plan.block_k, tile.n])


@triton.jit
def sum_read(
    x_read, w_read, x_row, w_row, column, start,
    SEGMENT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    IS_K_MAJOR: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Return the fp32 sum of the segment at `start`, transposed: (BLOCK_N, BLOCK_M).

    w_row: the row at which the weight begins in the matrix of all weights.
    """
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for step in range(SEGMENT_K // BLOCK_K):
        k = start + step * BLOCK_K
        x = x_read.load([x_row, k])
        w = w_read.load([w_row + column, k]) if IS_K_MAJOR else w_read.load([w_row + k, column]).T
        acc = dot(w, x.T, acc, INTERPRET)
    return acc


@triton.jit(do_not_specialize=["M", "B", "stride_ob"])
def matmul_tma_kernel(
    x_read, w_read, out_ptr, bias_ptr, B, M, N, K, stride_ob, stride_om, stride_on, stride_bm, stride_bn, alpha, beta,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, BIAS: tl.constexpr, IS_K_MAJOR: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Like `matmul_kernel`, loading with TMA."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    first, programs = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for each in tl.range(
        0, tl.cdiv(tiles * B - first, programs) * SEGMENTS, flatten=True, warp_specialize=WARP_SPECIALIZE
    ):
        tile, segment = first + each // SEGMENTS * programs, each % SEGMENTS
        b = tile // tiles
        tile_m, tile_n = place(tile % tiles, tiles_m, tiles_n, GROUP)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = sum_read(
            x_read, w_read, b * M + row, b * (N if IS_K_MAJOR else K), column, segment * SEGMENT_K,
            SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, IS_K_MAJOR, INTERPRET,
        )  # fmt: skip
        total = acc if SEGMENTS == 1 else tl.where(segment == 0, acc, total + acc)
        if segment == SEGMENTS - 1:
            finish(
                tl.trans(total), out_ptr + b.to(tl.int64) * stride_ob, bias_ptr,
                (row + tl.arange(0, BLOCK_M)).to(tl.int64), column + tl.arange(0, BLOCK_N), M, N,
                stride_om, stride_on, stride_bm, stride_bn, alpha, beta, BIAS, INTERPRET,
            )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def split_tma_kernel(
    x_read, w_read, sums_ptr, M, N, K,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    IS_K_MAJOR: tl.constexpr, OVERLAPS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Like `split_kernel`, loading with TMA."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    tiles_m = tl.cdiv(M, BLOCK_M)
    segment, b = tl.program_id(1), tl.program_id(2) // tiles_m
    row, column = tl.program_id(2) % tiles_m * BLOCK_M, tl.program_id(0) * BLOCK_N
    acc = sum_read(
        x_read, w_read, b * M + row, b * (N if IS_K_MAJOR else K), column, segment * SEGMENT_K,
        SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, IS_K_MAJOR, INTERPRET,
    )  # fmt: skip
    store_sums(acc, sums_ptr, b.to(tl.int64) * SEGMENTS + segment, row, column, M, N, BLOCK_M, BLOCK_N)
