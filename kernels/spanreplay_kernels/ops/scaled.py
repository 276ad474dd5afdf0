"""Scaled fp8 matrix products, with one scale per token or per 128 of its elements.

A scale is computed from a row's own elements or from the weight: one scale for a whole batch would make a row depend
on its neighbours. The tensor core sums each block of 128 products from zero; the block is then scaled and added to its
segment in fp32, so the tensor core's lower precision (on Hopper, fewer bits than fp32) doesn't accumulate. Segments are
those of `matmul`.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._matmul_tiles import GROUP_TILES, SPLIT_ROWS_MAX, Tile, finish, place, store_sums
from spanreplay_kernels.ops._tile import IS_INTERPRETED, dot, smallest_rows
from spanreplay_kernels.ops.matmul import add_segments_kernel, matmul_cpu
from spanreplay_kernels.plans.arch import ARCHS, CPU, Mma, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import FLOATS, aligned, dtype_name
from spanreplay_kernels.plans.plan import FP8_GROUP, MatmulPlan, plan_matmul, plan_scaled

__all__ = ["quantize", "quantize_weight", "scaled_mm", "scaled_mm_ref", "scaled_mm_triton"]

_DTYPE: Final = torch.float8_e4m3fn
_MAX: Final = 448.0
"""The largest number of e4m3fn. Source: Micikevicius et al. 2022, arXiv:2209.05433, table 1."""
_MULTIPLE: Final = 16
"""K and N must be multiples of this: rows of whole 16 bytes, as aten's own product requires."""


def quantize(x: Tensor, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Return x (…, K) as fp8 with the scales (…, 1) of its rows or, if group = 128, (…, ⌈K / 128⌉) of its groups.

    Invariance: an element depends only on its own row; a maximum doesn't depend on the order.
    """
    wide = x.float()
    if group is None:
        scale = _scale_of(wide.abs().amax(-1, keepdim=True))
        return (wide / scale).to(_DTYPE), scale
    K = x.shape[-1]
    groups = torch.nn.functional.pad(wide, (0, -K % group)).unflatten(-1, (-1, group))
    scale = _scale_of(groups.abs().amax(-1))
    return (groups / scale[..., None]).flatten(-2)[..., :K].to(_DTYPE), scale


def quantize_weight(w: Tensor, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Return w (K, N) as fp8 with the scales (1, N) of its columns or, if group = 128, (⌈K / 128⌉, ⌈N / 128⌉).

    With a group, each scale covers a block of 128 × 128. Columns are contiguous, as the product reads them.
    """
    wide = w.t().float()
    if group is None:
        scale = _scale_of(wide.abs().amax(-1, keepdim=True))
        return (wide / scale).to(_DTYPE).contiguous().t(), scale.t()
    N, K = wide.shape
    blocks = torch.nn.functional.pad(wide, (0, -K % group, 0, -N % group))
    blocks = blocks.unflatten(1, (-1, group)).unflatten(0, (-1, group))
    scale = _scale_of(blocks.abs().amax((1, 3)))
    result = (blocks / scale[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:N, :K]
    return result.to(_DTYPE).contiguous().t(), scale.t().contiguous()


def _scale_of(highest: Tensor) -> Tensor:
    return highest.clamp(min=1e-30) / _MAX


def scaled_mm_ref(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, plan: MatmulPlan, bias: Tensor | None = None
) -> Tensor:
    """Return the product (M, N) of x (M, K) and w (K, N) in a plan's order, in fp32: the definition.

    x_scale is (M, ⌈K / 128⌉) and w_scale (⌈K / 128⌉, N), both already expanded.
    """
    total: Tensor | None = None
    for start in range(0, plan.k, plan.segment_k):
        segment = torch.zeros(x.shape[0], plan.n, device=x.device)
        for k in range(start, min(start + plan.segment_k, plan.k), plan.block_k):
            end, group = min(k + plan.block_k, plan.k), k // FP8_GROUP
            scale = x_scale[:, group, None] * w_scale[group]
            segment += (x[:, k:end].float() @ w[k:end].float()) * scale
        total = segment if total is None else total + segment
    assert total is not None
    return total if bias is None else total + bias.float()


def scaled_mm(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
    *, out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """Compute (x · x_scale) · (w · w_scale) + bias; bitwise batch-invariant where its certificate says so.

    Shapes: x (M, K) any M, w (K, N), K and N multiples of 16; x_scale (M, 1) or (M, ⌈K / 128⌉), w_scale (1, 1),
        (1, N) or (⌈K / 128⌉, ⌈N / 128⌉); bias (N,); result (M, N).
    Dtypes: x, w float8_e4m3fn; scales fp32; result bf16, fp16 or fp32, rounded once.
    Invariance: row i depends only on x[i], its scales and w; its K terms are added in plan_scaled(N, K, …)'s order.
    Raises: UnsupportedInput for other shapes, dtypes or devices, for one scale over all rows, and below sm_89.
    """
    _check(x, w, x_scale, w_scale, bias, out_dtype)
    arch = arch_of(x.device)
    plan = plan_scaled(w.shape[1], w.shape[0], dtype_name(x), arch)
    if x.shape[0] == 0:
        return torch.empty((0, plan.n), dtype=out_dtype, device=x.device)
    if arch is CPU:
        return _scaled_cpu(x, w, x_scale, w_scale, bias, out_dtype)
    return scaled_mm_triton(x, w, x_scale, w_scale, bias, plan, out_dtype)


def _check(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype) -> None:
    def refuse(problem: str, hint: str, *tensors: Tensor) -> None:
        raise UnsupportedInput("scaled_mm", problem, *tensors, hint=hint)

    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[0] or 0 in w.shape:
        refuse("these shapes do not multiply", "pass (M, K) and (K, N)", x, w)
    (M, K), N = x.shape, w.shape[1]
    if x.dtype != _DTYPE or w.dtype != _DTYPE or out_dtype not in FLOATS:
        refuse("these dtypes have no plan", "pass float8_e4m3fn, and out_dtype bfloat16, float16 or float32", x, w)
    if K % _MULTIPLE or N % _MULTIPLE:
        refuse("K or N is not a multiple of 16", "pad the weight", x, w)
    groups = -(-K // FP8_GROUP)
    if x_scale.numel() == 1 and M != 1:
        hint = "pass one a row (M, 1): one of all rows may have been taken from all of them"
        refuse("x has one scale for its whole batch", hint, x, x_scale)
    if tuple(x_scale.shape) not in ((M, 1), (M, groups)):
        refuse("the scales of x do not fit", f"pass ({M}, 1) or ({M}, {groups})", x, x_scale)
    if tuple(w_scale.shape) not in ((1, 1), (1, N), (groups, -(-N // FP8_GROUP))):
        refuse("the scales of w do not fit", f"pass (1, {N}) or ({groups}, {-(-N // FP8_GROUP)})", w, w_scale)
    if bias is not None and bias.shape != (N,):
        refuse("the bias does not fit", f"pass ({N},)", w, bias)
    if x_scale.dtype != torch.float32 or w_scale.dtype != torch.float32:
        refuse("scales are fp32", "pass float32", x_scale, w_scale)
    if any(each is not None and each.device != x.device for each in (w, x_scale, w_scale, bias)):
        refuse("the tensors differ in device", "bring them to one", x, w, x_scale, w_scale)


def _is_of_blocks(w: Tensor, w_scale: Tensor) -> bool:
    """Whether a scale covers 128 columns rather than one or all."""
    return w_scale.shape[1] not in (1, w.shape[1])


def _scaled_cpu(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """Multiply the quantised operands in fp32, with the CPU library called in its one fixed shape."""
    K, N = w.shape
    x_spread = x_scale.repeat_interleave(FP8_GROUP, 1)[:, :K] if x_scale.shape[1] > 1 else x_scale
    w_spread = w_scale.repeat_interleave(FP8_GROUP, 0)[:K] if w_scale.shape[0] > 1 else w_scale
    if _is_of_blocks(w, w_scale):
        w_spread = w_spread.repeat_interleave(FP8_GROUP, 1)[:, :N]
    plan = plan_matmul(N, K, "float32", CPU)
    wide = matmul_cpu(x.float() * x_spread, w.float() * w_spread, bias, 1.0, 1.0, plan)
    return wide.to(out_dtype)


@triton.jit
def _sum_scaled(
    x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, row, column, start, M, N, K, stride_xs, stride_xg, stride_wg, stride_ws,
    SEGMENT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    COLUMNS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Return the fp32 sum of the segment at `start`, transposed: (BLOCK_N, BLOCK_M).

    Rows of x and columns of w are contiguous. COLUMNS: how many columns of w share a scale.
    """
    ks, rows, columns = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    x_from, w_from = x_ptr + row.to(tl.int64) * K, w_ptr + column.to(tl.int64) * K
    x_at, w_at = ks[:, None] + rows[None, :] * K, columns[:, None] * K + ks[None, :]
    x_scale_at = x_scale_ptr + (row + rows).to(tl.int64) * stride_xs
    w_scale_at = w_scale_ptr + (column + columns) // COLUMNS * stride_ws
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for step in range(SEGMENT_K // BLOCK_K):
        k = start + step * BLOCK_K
        # Computed in each step, as in `sum_tile`, so that tiles can be prefetched
        is_row = rows < tl.where(k < K, M - row, 0)
        is_column = columns < tl.where(k < K, N - column, 0)
        w = tl.load(w_from + k + w_at, mask=is_column[:, None] & (k + ks < K)[None, :], other=0.0)
        x = tl.load(x_from + k + x_at, mask=is_row[None, :] & (k + ks < K)[:, None], other=0.0)
        x_scale = tl.load(x_scale_at + k // BLOCK_K * stride_xg, mask=is_row, other=0.0)
        w_scale = tl.load(w_scale_at + k // BLOCK_K * stride_wg, mask=is_column, other=0.0)
        block = dot(w, x, tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32), INTERPRET)
        # An explicit fma: otherwise a compiler might contract it in one kernel and not in the other
        acc = tl.fma(block, w_scale[:, None] * x_scale[None, :], acc)
    return acc


@triton.jit(do_not_specialize=["M"])
def scaled_kernel(
    x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, out_ptr, bias_ptr, M, N, K, stride_xs, stride_xg, stride_wg, stride_ws,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr,
    GROUP: tl.constexpr, BIAS: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Compute one tile of the product: all segments, in order."""
    tile_m, tile_n = place(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for segment in range(SEGMENTS):
        acc = _sum_scaled(
            x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, row, column, segment * SEGMENT_K, M, N, K,
            stride_xs, stride_xg, stride_wg, stride_ws,
            SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, COLUMNS, INTERPRET,
        )  # fmt: skip
        total = acc if SEGMENTS == 1 else tl.where(segment == 0, acc, total + acc)
    finish(
        tl.trans(total), out_ptr, bias_ptr, (row + tl.arange(0, BLOCK_M)).to(tl.int64), column + tl.arange(0, BLOCK_N),
        M, N, N, 1, 0, 1, 1.0, 1.0, BIAS, INTERPRET,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def scaled_split_kernel(
    x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, sums_ptr, M, N, K, stride_xs, stride_xg, stride_wg, stride_ws,
    SEGMENT_K: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Store the fp32 sum of one segment of one tile in sums (SEGMENTS, M, N)."""
    segment, row, column = tl.program_id(1), tl.program_id(2) * BLOCK_M, tl.program_id(0) * BLOCK_N
    acc = _sum_scaled(
        x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, row, column, segment * SEGMENT_K, M, N, K,
        stride_xs, stride_xg, stride_wg, stride_ws,
        SEGMENT_K, BLOCK_M, BLOCK_N, BLOCK_K, COLUMNS, INTERPRET,
    )  # fmt: skip
    store_sums(acc, sums_ptr, segment.to(tl.int64), row, column, M, N, BLOCK_M, BLOCK_N)


def tile_for(rows: int, plan: MatmulPlan) -> Tile:
    """Return the tile for a launch over `rows` rows; register and warp counts were found by compiling."""
    is_narrow = ARCHS[plan.arch].shared_bytes_max < 110_000
    small = smallest_rows(rows)
    is_split = rows <= SPLIT_ROWS_MAX and plan.segments > 1
    warps = 8 if plan.mma is Mma.TCGEN05 or (small or 128) * plan.tile_n_min > 4096 else 4
    # Three accumulators are live: of the earlier segments, of this segment and of this block
    many = 32 if plan.mma is Mma.TCGEN05 and plan.segments > 1 else 64
    return Tile(small or many, plan.tile_n_min, warps, 3 if is_narrow else 4, is_split)


def scaled_mm_triton(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, plan: MatmulPlan,
    out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Run `scaled_mm` with the kernels; the caller has checked the operands and made a plan."""
    M = x.shape[0]
    x, w = aligned(x.contiguous()), aligned(w.t().contiguous())
    x_scale, w_scale = aligned(x_scale.contiguous()), aligned(w_scale.contiguous())
    out = torch.empty((M, plan.n), dtype=out_dtype, device=x.device)
    tile = tile_for(M, plan)
    # A dimension of size 1 is broadcast: stride 0
    strides = (
        x_scale.shape[1], int(x_scale.shape[1] > 1),
        w_scale.shape[1] if w_scale.shape[0] > 1 else 0, int(w_scale.shape[1] > 1),
    )  # fmt: skip
    columns = FP8_GROUP if w_scale.shape[1] not in (1, plan.n) else 1
    shape: dict[str, Any] = {
        "SEGMENT_K": plan.segment_k, "SEGMENTS": plan.segments, "BLOCK_M": tile.m, "BLOCK_N": tile.n,
        "BLOCK_K": plan.block_k, "COLUMNS": columns, "INTERPRET": IS_INTERPRETED,
        "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip
    if plan.mma is Mma.TCGEN05 and tile.m <= 32:
        shape["maxnreg"] = 160  # as in `grouped_mm_triton`
    operands = (x, w, x_scale, w_scale)
    sizes = (M, plan.n, plan.k, *strides)
    tiles_m, tiles_n = triton.cdiv(M, tile.m), triton.cdiv(plan.n, tile.n)
    kind, added = (0, out) if bias is None else (1, aligned(bias.contiguous()))
    if not tile.is_split:
        grid = (tiles_m * tiles_n,)
        launch(scaled_kernel, grid, *operands, out, added, *sizes, GROUP=GROUP_TILES, BIAS=kind, **shape)
        return out
    sums = torch.empty((plan.segments, M, plan.n), dtype=torch.float32, device=x.device)
    launch(scaled_split_kernel, (tiles_n, plan.segments, tiles_m), *operands, sums, *sizes, **shape)
    launch(
        add_segments_kernel, (M, triton.cdiv(plan.n, 1024), 1), sums, out, added, M, plan.n, 0, plan.n, 1, 0, 1,
        1.0, 1.0, SEGMENTS=plan.segments, BLOCK_N=1024, BIAS=kind, INTERPRET=IS_INTERPRETED, num_warps=4,
    )  # fmt: skip
    return out
