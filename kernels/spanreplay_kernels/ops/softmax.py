"""softmax, log_softmax, and the log-probability of chosen tokens.

Each block of a row gives a pair: its maximum, and the sum of the exponentials relative to it. The pairs are merged from
the first block to the last (online softmax). A row that fits into registers is one block and is read once; any other is
read twice. With few long rows each block gets its own program, and a second kernel merges the same pairs in the same
order. All operations compute and merge pairs with the same functions and plan.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._rows import exp_cpu, in_chunks, load_rows, normal_dim, read_as, store_rows, sum_cpu
from spanreplay_kernels.ops._tile import IS_INTERPRETED, rounded
from spanreplay_kernels.plans.arch import CPU, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import aligned, check_dtype, dense_rows, dtype_name
from spanreplay_kernels.plans.plan import RowPlan, plan_rows

__all__ = [
    "gather_logprob",
    "gather_logprob_ref",
    "gather_logprob_triton",
    "log_softmax",
    "softmax",
    "softmax_ref",
    "softmax_triton",
]


SPLIT_ROWS_MAX = 64
"""Up to this many long rows each block of a row gets its own program."""


def softmax_ref(x: Tensor, plan: RowPlan, out_dtype: torch.dtype) -> Tensor:
    """Return softmax of rows (M, N), or its logarithm if plan.op is `log_softmax`, in plan order: the definition."""
    high = torch.full((x.shape[0], 1), -math.inf, device=x.device)
    total = torch.zeros_like(high)
    for start in range(0, plan.width, plan.block):
        block = x[:, start : start + plan.block].float()
        block_high = block.amax(-1, keepdim=True)
        block_total = torch.exp(block - _base(block_high)).sum(-1, keepdim=True)
        higher = torch.maximum(high, block_high)
        base = _base(higher)
        total = total * torch.exp(high - base) + block_total * torch.exp(block_high - base)
        high = higher
    apart = x.float() - high
    return (apart - total.log() if plan.op == "log_softmax" else apart.exp() * (1.0 / total)).to(out_dtype)


def _base(high: Tensor) -> Tensor:
    """Return the value to subtract before exp: 0 if all values are -inf, so that their sum is 0 and not NaN."""
    return high.masked_fill(high == -math.inf, 0.0)


def gather_logprob_ref(x: Tensor, token_ids: Tensor, plan: RowPlan) -> Tensor:
    """Return log_softmax of rows (M, V) at token_ids (M, T), in fp32: the definition."""
    inside = (token_ids >= 0) & (token_ids < plan.width)
    chosen = softmax_ref(x, plan, torch.float32).gather(1, token_ids.where(inside, 0))
    return chosen.masked_fill(~inside, math.nan)


def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """Compute softmax along a dimension; bitwise batch-invariant.

    exp(x) divided by its sum along the dimension.

    Shapes: x of any shape, result as x, contiguous.
    Dtypes: bf16, fp16, fp32; x is converted to `dtype`, which the result has too (fp32 from bf16 in one step); steps in
    fp32, rounded once. A row of only -inf, or containing NaN or +inf, gives NaN, as in torch.
    Invariance: a row depends only on itself; its N terms are added in plan_rows("softmax", N)'s order.
    Raises: UnsupportedInput if the dimension does not exist or no plan exists.
    Source: Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3, over blocks.
    """
    return _along("softmax", x, dim, dtype)


def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """Compute the logarithm of softmax along a dimension; bitwise batch-invariant.

    x minus the logarithm of the sum of its exponentials along the dimension. Otherwise like `softmax`.
    """
    return _along("log_softmax", x, dim, dtype)


def gather_logprob(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Return the log-probabilities of chosen tokens in fp32; bitwise batch-invariant.

    log_softmax and gather in one: no tensor of (…, V) is written.

    Shapes: logits (…, V), token_ids (…) for one token per row or (…, T) for several, result as token_ids.
    Dtypes: logits bf16, fp16, fp32; token_ids int32, int64. An id outside 0 … V - 1 gives NaN, since raising would
    require a GPU sync.
    Invariance: as `log_softmax`. Raises: UnsupportedInput if the shapes don't fit or no plan exists.
    Source: as `softmax`.
    """
    if logits.dim() == 0 or token_ids.dtype not in (torch.int32, torch.int64) or token_ids.device != logits.device:
        hint = "pass logits (…, V) and integer ids on the same device"
        raise UnsupportedInput("gather_logprob", "these are not logits and tokens", logits, token_ids, hint=hint)
    leading, V = logits.shape[:-1], logits.shape[-1]
    if token_ids.shape[: len(leading)] != leading or token_ids.dim() > logits.dim():
        hint = "pass ids (…) or (…, T) for logits (…, V)"
        raise UnsupportedInput("gather_logprob", "these shapes do not fit", logits, token_ids, hint=hint)
    check_dtype("gather_logprob", logits)
    arch = arch_of(logits.device)
    plan = plan_rows("log_softmax", V, dtype_name(logits), arch)
    if token_ids.numel() == 0:
        return logits.new_empty(token_ids.shape, dtype=torch.float32)
    rows, ids = dense_rows(logits), token_ids.reshape(math.prod(leading), -1)
    chosen = _gather_cpu(rows, ids, plan) if arch is CPU else gather_logprob_triton(rows, ids, plan)
    return chosen.reshape(token_ids.shape)


def _along(op: str, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    if x.dim() == 0:
        return _along(op, x[None], dim, dtype)[0]
    x, out_dtype = read_as(x, dtype)
    dim = normal_dim(op, x, dim)
    check_dtype(op, x)
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=out_dtype, device=x.device)
    arch = arch_of(x.device)
    moved = x.movedim(dim, -1)
    plan = plan_rows(op, moved.shape[-1], dtype_name(x), arch)
    rows = dense_rows(moved)
    result = _softmax_cpu(rows, plan, out_dtype) if arch is CPU else softmax_triton(rows, plan, out_dtype)
    return result.reshape(moved.shape).movedim(-1, dim).contiguous()


def _softmax_cpu(x: Tensor, plan: RowPlan, out_dtype: torch.dtype) -> Tensor:
    def step(rows: Tensor) -> Tensor:
        apart, total = _apart_cpu(rows)
        if plan.op == "log_softmax":
            return apart.sub_(_log_cpu(total))
        return exp_cpu(apart).div_(total[:, None])

    return in_chunks(step, x, out=torch.empty(x.shape, dtype=out_dtype, device=x.device))


def _gather_cpu(x: Tensor, token_ids: Tensor, plan: RowPlan) -> Tensor:
    def step(rows: Tensor, ids: Tensor) -> Tensor:
        apart, total = _apart_cpu(rows)
        inside = (ids >= 0) & (ids < plan.width)
        chosen = apart.gather(1, ids.long().where(inside, 0)) - _log_cpu(total)
        return chosen.masked_fill_(~inside, math.nan)

    return in_chunks(step, x, token_ids, out=torch.empty(token_ids.shape, dtype=torch.float32))


def _apart_cpu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x minus its row's maximum, the sums of their exponentials (M,)); a maximum doesn't depend on order."""
    wide = x.float()
    # The maximum of 0.0 and -0.0 may be either; + 0.0 turns -0.0 into 0.0
    apart = wide - (wide.amax(-1, keepdim=True) + 0.0)
    return apart, sum_cpu(exp_cpu(apart))


def _log_cpu(total: Tensor) -> Tensor:
    """Return the logarithms of sums (M,) as (M, 1): one C library call per element, so all take the same code path."""
    logs = [math.log(each) if each > 0 else each for each in total.double().tolist()]
    return torch.tensor(logs, dtype=torch.float64).float()[:, None]


@triton.jit
def _pair(x):
    """Return (maximum, sum of the exponentials relative to it) for each row of a block."""
    high = tl.max(x, axis=1)
    # If all values are -inf, the sum must be 0 and not NaN
    base = tl.where(high == float("-inf"), 0.0, high)
    return high, tl.sum(tl.exp(x - base[:, None]), axis=1)


@triton.jit
def _merged(high, total, block_high, block_total):
    """Merge the pair of all blocks so far with that of one more.

    Merging into (-inf, 0) leaves a pair unchanged: exp(-inf) is exactly 0, exp(0) is 1 (PTX ISA 9.7.3, ex2.approx).
    """
    higher = tl.maximum(high, block_high)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, total * tl.exp(high - base) + block_total * tl.exp(block_high - base)


@triton.jit
def _read_pair(x_ptr, rows, M, N, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the pair of whole rows, computed block by block; a single block's pair stays unchanged."""
    high = tl.full((BLOCK_ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        x = load_rows(x_ptr, rows, start, M, N, float("-inf"), BLOCK)
        block_high, block_total = _pair(x.to(tl.float32))
        high, total = _merged(high, total, block_high, block_total)
    return high, total


@triton.jit
def _merge_pairs(highs_ptr, totals_ptr, rows, M, BLOCKS, BLOCK_ROWS: tl.constexpr):
    """Return the pair of whole rows, merged from the pairs (M, BLOCKS) that `pairs_kernel` stored."""
    high = tl.full((BLOCK_ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    for block in range(BLOCKS):
        block_high = tl.load(highs_ptr + rows * BLOCKS + block, mask=rows < M, other=float("-inf"))
        block_total = tl.load(totals_ptr + rows * BLOCKS + block, mask=rows < M, other=0.0)
        high, total = _merged(high, total, block_high, block_total)
    return high, total


@triton.jit
def _finish(x, high, total, IS_LOG: tl.constexpr):
    apart = x.to(tl.float32) - high[:, None]
    if IS_LOG:
        return apart - tl.log(total)[:, None]
    return tl.exp(apart) * tl.math.div_rn(1.0, total)[:, None]


@triton.jit(do_not_specialize=["M"])
def softmax_kernel(
    x_ptr, out_ptr, M, N,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE_READ: tl.constexpr, IS_LOG: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Compute softmax, or its logarithm, of BLOCK_ROWS rows of N elements."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    dtype = out_ptr.dtype.element_ty
    if ONE_READ:
        x = load_rows(x_ptr, rows, 0, M, N, float("-inf"), BLOCK)
        high, total = _pair(x.to(tl.float32))
        store_rows(out_ptr, rounded(_finish(x, high, total, IS_LOG), dtype, INTERPRET), rows, 0, M, N, BLOCK)
    else:
        high, total = _read_pair(x_ptr, rows, M, N, BLOCK_ROWS, BLOCK)
        # Backwards: the elements read last are still in the cache
        blocks = tl.cdiv(N, BLOCK)
        for done in range(blocks):
            start = (blocks - 1 - done) * BLOCK
            x = load_rows(x_ptr, rows, start, M, N, float("-inf"), BLOCK)
            store_rows(out_ptr, rounded(_finish(x, high, total, IS_LOG), dtype, INTERPRET), rows, start, M, N, BLOCK)


@triton.jit(do_not_specialize=["M"])
def pairs_kernel(
    x_ptr, highs_ptr, totals_ptr, M, N, BLOCKS,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the pair of one block of BLOCK_ROWS rows of N elements in highs and totals (M, BLOCKS)."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    x = load_rows(x_ptr, rows, tl.program_id(1) * BLOCK, M, N, float("-inf"), BLOCK)
    high, total = _pair(x.to(tl.float32))
    at = rows * BLOCKS + tl.program_id(1)
    tl.store(highs_ptr + at, high, mask=rows < M)
    tl.store(totals_ptr + at, total, mask=rows < M)


@triton.jit(do_not_specialize=["M"])
def finish_kernel(
    x_ptr, out_ptr, highs_ptr, totals_ptr, M, N, BLOCKS,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_LOG: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Compute one block of softmax, or its logarithm, of BLOCK_ROWS rows of N elements from the stored pairs."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    high, total = _merge_pairs(highs_ptr, totals_ptr, rows, M, BLOCKS, BLOCK_ROWS)
    start = tl.program_id(1) * BLOCK
    x = load_rows(x_ptr, rows, start, M, N, float("-inf"), BLOCK)
    y = rounded(_finish(x, high, total, IS_LOG), out_ptr.dtype.element_ty, INTERPRET)
    store_rows(out_ptr, y, rows, start, M, N, BLOCK)


@triton.jit(do_not_specialize=["M", "T"])
def gather_logprob_kernel(
    x_ptr, ids_ptr, out_ptr, highs_ptr, totals_ptr, M, N, T, BLOCKS,
    BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, HAS_PAIRS: tl.constexpr,
):  # fmt: skip
    """Compute log_softmax of BLOCK_ROWS rows at T tokens each; with HAS_PAIRS only those tokens' logits are read."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    if HAS_PAIRS:
        high, total = _merge_pairs(highs_ptr, totals_ptr, rows, M, BLOCKS, BLOCK_ROWS)
    else:
        high, total = _read_pair(x_ptr, rows, M, N, BLOCK_ROWS, BLOCK)
    log_total = tl.log(total)
    for t in range(T):
        token = tl.load(ids_ptr + rows * T + t, mask=rows < M, other=-1).to(tl.int64)
        is_inside = (token >= 0) & (token < N)
        x = tl.load(x_ptr + rows * N + token, mask=is_inside, other=float("nan")).to(tl.float32)
        tl.store(out_ptr + rows * T + t, x - high - log_total, mask=rows < M)


def softmax_triton(x: Tensor, plan: RowPlan, out_dtype: torch.dtype) -> Tensor:
    """Compute softmax or log_softmax of rows (M, N) with the kernels; the caller has checked and made a plan."""
    x = dense_rows(x)
    M = x.shape[0]
    out = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    tiles, is_log = triton.cdiv(M, plan.block_rows), plan.op == "log_softmax"
    if _is_split(M, plan):
        highs, totals, blocks = _launch_pairs(x, plan)
        launch(
            finish_kernel, (tiles, blocks), x, out, highs, totals, M, plan.width, blocks,
            IS_LOG=is_log, INTERPRET=IS_INTERPRETED, **_shape(plan),
        )  # fmt: skip
    else:
        launch(
            softmax_kernel, (tiles,), x, out, M, plan.width,
            ONE_READ=plan.passes == 1, IS_LOG=is_log, INTERPRET=IS_INTERPRETED, **_shape(plan),
        )  # fmt: skip
    return out


def gather_logprob_triton(x: Tensor, token_ids: Tensor, plan: RowPlan) -> Tensor:
    """Compute log_softmax of rows (M, V) at token_ids (M, T) with the kernels; the caller has made a plan."""
    x, token_ids = dense_rows(x), aligned(token_ids.contiguous())
    M, T = token_ids.shape
    out = torch.empty((M, T), dtype=torch.float32, device=x.device)
    is_split = _is_split(M, plan)
    highs, totals, blocks = _launch_pairs(x, plan) if is_split else (out, out, 0)
    launch(
        gather_logprob_kernel, (triton.cdiv(M, plan.block_rows),),
        x, token_ids, out, highs, totals, M, plan.width, T, blocks,
        HAS_PAIRS=is_split, **_shape(plan),
    )  # fmt: skip
    return out


def _is_split(rows: int, plan: RowPlan) -> bool:
    """Whether each block gets its own program: rows are long, and too few to fill a GPU."""
    return plan.passes > 1 and rows <= SPLIT_ROWS_MAX


def _launch_pairs(x: Tensor, plan: RowPlan) -> tuple[Tensor, Tensor, int]:
    """Compute the pairs of all blocks; return (highs (M, blocks), totals (M, blocks), blocks)."""
    M, blocks = x.shape[0], triton.cdiv(plan.width, plan.block)
    # Not two halves of one tensor: the alignment of the second would depend on M
    highs, totals = (torch.empty((M, blocks), dtype=torch.float32, device=x.device) for _ in range(2))
    grid = (triton.cdiv(M, plan.block_rows), blocks)
    launch(pairs_kernel, grid, x, highs, totals, M, plan.width, blocks, **_shape(plan))
    return highs, totals, blocks


def _shape(plan: RowPlan) -> dict[str, Any]:
    """Return the options that decide the order of a block's sum, the same for every kernel."""
    return {
        "BLOCK_ROWS": plan.block_rows, "BLOCK": plan.block, "num_warps": plan.warps, "enable_fp_fusion": False,
    }  # fmt: skip
