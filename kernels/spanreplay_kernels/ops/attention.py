"""Attention over packed sequences or a paged cache; prefill, chunked prefill, prefix hits and decode give equal bits.

A query at position i of its sequence adds up keys 0 … i in blocks, and blocks in splits, both counted from the first
token of its *sequence*: never from the start of a batch, of a chunk or of a packed tensor. Each split starts from zero
and splits are merged in order. If there is enough work, one program loops over all splits of its queries; if there is
little (decode), each split gets its own program and a second kernel merges. Both use `_split`, `_weights` and `_merge`
with the same tile, instruction class and number of warps, and without contraction of products and sums, so they can't
differ in a bit. A key that a query may not see changes none of its sums.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._attention_cpu import attention_cpu
from spanreplay_kernels.ops._attention_kernels import MERGED_ROWS, attention_kernel, merge_kernel, split_kernel
from spanreplay_kernels.ops._tile import IS_INTERPRETED, may_overlap
from spanreplay_kernels.plans.arch import CPU, Mma, arch_of
from spanreplay_kernels.plans.launch import launch, programs
from spanreplay_kernels.plans.operands import aligned, check_dtype, dtype_name
from spanreplay_kernels.plans.plan import AttentionPlan, plan_attention

__all__ = ["attention", "attention_ref", "attention_triton", "paged_attention"]

_LOG2_E = math.log2(math.e)
_LENGTH_MAX = (1 << 31) - 1
_SUMS_BYTES_MAX = 1 << 28
"""Memory for partial sums; if those of all splits need more, the splits don't get programs of their own."""


def attention_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
) -> Tensor:
    """Attend one sequence, q (Lq, Hq, D) and k, v (Lk, Hkv, D), in a plan's order, in plain PyTorch: the definition."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    last = torch.arange(q.shape[0], device=q.device)[:, None] + k.shape[0] - q.shape[0]
    last = last if causal else torch.full_like(last, k.shape[0] - 1)
    j = torch.arange(k.shape[0], device=q.device)
    allowed = (j <= last) if window is None else (j <= last) & (j > last - window)
    scores = (q.float().transpose(0, 1) @ keys.transpose(1, 2) * (scale * _LOG2_E)).where(allowed, -math.inf)
    total = _nothing(scores, plan)
    for first in range(0, k.shape[0], plan.split_kv):
        split = _nothing(scores, plan)
        for at in range(first, min(first + plan.split_kv, k.shape[0]), plan.block_kv):
            block = slice(at, min(at + plan.block_kv, first + plan.split_kv))
            top = torch.maximum(split.m, scores[..., block].amax(-1, keepdim=True))
            p = torch.exp2(scores[..., block] - _finite(top))
            old = torch.exp2(split.m - _finite(top))
            seen = torch.where(allowed.any(0)[block, None], values[:, block], 0.0)
            acc = split.acc * old + p.to(q.dtype).float() @ seen
            split = _Sums(top, split.w * old + p.sum(-1, keepdim=True), acc)
        top = torch.maximum(total.m, split.m)
        old, new = torch.exp2(total.m - _finite(top)), torch.exp2(split.m - _finite(top))
        total = _Sums(top, total.w * old + split.w * new, total.acc * old + split.acc * new)
    return torch.where(total.w == 0, 0.0, total.acc / total.w).transpose(0, 1).to(q.dtype)


class _Sums(NamedTuple):
    """The rows' largest score, sum of weights and weighted sum of values so far."""

    m: Tensor
    w: Tensor
    acc: Tensor


def _nothing(scores: Tensor, plan: AttentionPlan) -> _Sums:
    heads, rows, _ = scores.shape
    zeros = scores.new_zeros((heads, rows, 1))
    return _Sums(zeros - math.inf, zeros, scores.new_zeros((heads, rows, plan.head_dim)))


def _finite(top: Tensor) -> Tensor:
    """Return the value to subtract from scores: 0 for a row without keys, because -inf would give NaN."""
    return torch.where(top == -math.inf, 0.0, top)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, scale: float | None = None,
    causal: bool = True, window: int | None = None, max_len_k: int | None = None,
) -> Tensor:  # fmt: skip
    """Attend packed sequences; bitwise batch-invariant, and the same however a sequence is cut into calls.

    softmax(scale · q · kᵀ) · v for each sequence and head. Query i of a sequence is at position len_k - len_q + i, so
    this call serves a prefill, a chunk of a prefill, the tokens after a cached prefix and a decoded token.

    Shapes: q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_seqlens (B + 1,) integers from 0 up to Tq, Tk; result (Tq, Hq, D).
        Hq a multiple of Hkv; D ≤ 256. A query that sees no key gives zeros.
    causal: a query sees keys up to its own position; window: only the last `window` of these.
    max_len_k: the longest sequence of keys, if known without asking the GPU; lets few queries use the whole GPU. On a
        GPU the queries of a longer sequence give NaN.
    Dtypes: bf16, fp16, fp32 (never TF32); sums in fp32, weights rounded to v's dtype; result has q's dtype.
    Invariance: a query's result depends on itself and on the keys it may see, not on how its sequence is packed, cut or
        cached; the order is that of plan_attention(D, dtype, arch). NaN or infinity in the value of a later key of its
        *own* sequence may reach it; one of another sequence never does. On a CPU, several key heads share one call of
        the library.
    Raises: UnsupportedInput if shapes, dtypes or devices don't fit, or no plan exists for the device.
    Source: Dao et al. 2022, arXiv:2205.14135, algorithm 1; Dao et al. 2023, Flash-Decoding, for the splits.
    """
    _check("attention", q, k, v, dims=3, scale=scale, window=window, causal=causal)
    for name, cu, tokens in (("cu_seqlens_q", cu_seqlens_q, q.shape[0]), ("cu_seqlens_k", cu_seqlens_k, k.shape[0])):
        _check_integers("attention", name, cu, q, dims=1)
        if cu.shape != cu_seqlens_q.shape or cu.shape[0] < 1:
            raise UnsupportedInput(
                "attention", f"{name} does not fit", cu, hint="both hold one number a sequence, and 0"
            )
        if cu.device.type == "cpu" and (cu[0] != 0 or cu[-1] != tokens or (cu.diff() < 0).any()):
            raise UnsupportedInput(
                "attention", f"{name} does not rise from 0 to {tokens}", cu, hint="sum up the lengths"
            )
    _check_longest("attention", cu_seqlens_k.diff(), max_len_k)
    return _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, None, scale, causal, window, max_len_k)


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *,
    cu_seqlens_q: Tensor | None = None, scale: float | None = None, causal: bool = True, window: int | None = None,
    max_len_k: int | None = None,
) -> Tensor:  # fmt: skip
    """Attend sequences whose keys are in pages of a cache; the same bits as `attention` on the same keys.

    Shapes: q (Tq, Hq, D); k_cache, v_cache (pages, page_size, Hkv, D), page_size a power of two;
        block_table (B, pages of the longest), seq_lens (B,) the keys of each sequence including those of its queries;
        cu_seqlens_q (B + 1,), or None for one query per sequence (decode); result (Tq, Hq, D).
    max_len_k: as for `attention`; by default, as many keys as block_table has room for.
    Dtypes, Invariance, Raises, Source: as for `attention`. The part of a page after its sequence's end is never read.
    """
    _check("paged_attention", q, k_cache, v_cache, dims=4, scale=scale, window=window, causal=causal)
    _check_integers("paged_attention", "block_table", block_table, q, dims=2)
    _check_integers("paged_attention", "seq_lens", seq_lens, q, dims=1)
    size, sequences = k_cache.shape[1], seq_lens.shape[0]
    if size & (size - 1) or size == 0:
        raise UnsupportedInput("paged_attention", f"page_size {size} is not a power of two", k_cache, hint="use 16")
    if k_cache.stride() != v_cache.stride() or k_cache.stride(-1) != 1 or _is_unaligned(k_cache, v_cache):
        hint = "keep keys and values alike, dense in D, from a 16-byte boundary; a cache is not copied"
        raise UnsupportedInput("paged_attention", "the cache's layout has no kernel", k_cache, v_cache, hint=hint)
    queries = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if cu_seqlens_q is not None:
        _check_integers("paged_attention", "cu_seqlens_q", cu_seqlens_q, q, dims=1)
    if not block_table.shape[0] == sequences == queries:
        tensors = (q, block_table, seq_lens) if cu_seqlens_q is None else (cu_seqlens_q, block_table, seq_lens)
        raise UnsupportedInput("paged_attention", "the numbers of sequences differ", *tensors, hint="pass one row each")
    room = block_table.shape[1] * size
    longest = room if max_len_k is None else min(room, max_len_k)
    _check_longest("paged_attention", seq_lens, longest)
    return _attention(q, k_cache, v_cache, cu_seqlens_q, seq_lens, block_table, scale, causal, window, longest)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, lengths: Tensor, block_table: Tensor | None,
    scale: float | None, causal: bool, window: int | None, max_len_k: int | None,
) -> Tensor:  # fmt: skip
    arch = arch_of(q.device)
    plan = plan_attention(q.shape[2], dtype_name(q), arch)
    if q.shape[0] == 0:
        return torch.empty_like(q)
    scale = 1.0 / math.sqrt(q.shape[2]) if scale is None else scale
    run = attention_cpu if arch is CPU else attention_triton
    return run(
        q, k, v, plan, cu_seqlens_q=cu_seqlens_q, lengths=lengths, block_table=block_table, scale=scale, causal=causal,
        window=window, max_len_k=max_len_k,
    )  # fmt: skip


def _check(
    op: str, q: Tensor, k: Tensor, v: Tensor, *, dims: int, scale: float | None, window: int | None, causal: bool
) -> None:
    if q.dim() != 3 or k.dim() != dims or k.shape != v.shape or q.shape[-1] != k.shape[-1]:
        hint = "pass q (Tq, Hq, D), and k and v alike, " + ("(Tk, Hkv, D)" if dims == 3 else "(pages, size, Hkv, D)")
        raise UnsupportedInput(op, "these shapes do not fit", q, k, v, hint=hint)
    check_dtype(op, q, k, v)
    if not k.shape[-2] or not q.shape[1] or q.shape[1] % k.shape[-2]:
        problem = f"{q.shape[1]} heads of queries over {k.shape[-2]} of keys"
        raise UnsupportedInput(op, problem, q, k, hint="a head of keys serves a whole number of heads of queries")
    if scale is not None and not 0.0 < scale < math.inf:
        raise UnsupportedInput(op, f"scale is {scale}", q, hint="it must be positive and finite")
    if window is not None and (window < 1 or not causal):
        raise UnsupportedInput(op, f"window {window} with causal={causal}", q, hint="a window is causal, of 1 or more")


def _check_integers(op: str, name: str, x: Tensor, q: Tensor, *, dims: int) -> None:
    if x.dim() != dims or x.dtype not in (torch.int32, torch.int64) or x.device != q.device:
        raise UnsupportedInput(
            op, f"{name} does not fit", x, q, hint=f"pass {dims} dimension(s) of int32 on q's device"
        )


def _check_longest(op: str, lengths: Tensor, longest: int | None) -> None:
    """Refuse sequences longer than `longest`, on a CPU only; GPU kernels return NaN instead, without a sync."""
    if longest is not None and lengths.device.type == "cpu" and (lengths > longest).any():
        problem = f"a sequence is longer than max_len_k or its pages, {longest} keys"
        raise UnsupportedInput(op, problem, lengths, hint="pass the longest, and a column of block_table for each page")


def _is_unaligned(*tensors: Tensor) -> bool:
    return any(x.data_ptr() % 16 for x in tensors)


def attention_triton(
    q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, *, cu_seqlens_q: Tensor | None, lengths: Tensor,
    block_table: Tensor | None = None, scale: float, causal: bool = True, window: int | None = None,
    max_len_k: int | None = None, by_splits: bool | None = None,
) -> Tensor:  # fmt: skip
    """Run attention with the kernels; the caller has checked the operands and made a plan.

    k, v: packed (Tk, Hkv, D) with lengths (B + 1,) their cu_seqlens_k; with a block_table, pages (pages, size, Hkv, D)
    with lengths (B,) of the sequences. cu_seqlens_q: None if every sequence has one query.
    by_splits: whether each split gets its own program; None decides by size. It changes no bit.
    """
    tokens, heads, head_dim = q.shape
    is_paged, kv_heads = block_table is not None, k.shape[-2]
    q = aligned(q.contiguous())
    if not is_paged:
        k, v = aligned(k.contiguous()), aligned(v.contiguous())
    group = heads // kv_heads
    sequences = lengths.shape[0] - (not is_paged)
    # Enough for all rows plus a partial tile at the end of each sequence; for single queries, what their heads need
    is_decode = cu_seqlens_q is None
    tiles = tokens * triton.cdiv(group, plan.block_q)
    if not is_decode:
        tiles = triton.cdiv(tokens * group, plan.block_q) + sequences
    options: dict[str, Any] = {
        "HEADS": heads, "GROUP": group, "D": head_dim, "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "BLOCK_Q": plan.block_q, "BLOCK_KV": plan.block_kv, "SPLIT_KV": plan.split_kv,
        "PAGE": k.shape[1] if is_paged else 0, "IS_DECODE": is_decode, "IS_CAUSAL": causal,
        "HAS_WINDOW": window is not None, "INTERPRET": IS_INTERPRETED,
        "num_warps": plan.warps, "enable_fp_fusion": False, **_tuning(plan),
    }  # fmt: skip
    lengths = _integers(lengths)
    table = lengths if block_table is None else _integers(block_table)
    call = _Call(
        (q, k, v),
        (lengths if cu_seqlens_q is None else _integers(cu_seqlens_q), lengths),
        (sequences, -1 if window is None else window, max_len_k or _LENGTH_MAX),
        (table, scale * _LOG2_E, table.stride(0), k.stride(0) if is_paged else 0, k.stride(-3), k.stride(-2)),
        tiles,
        options,
    )
    splits = triton.cdiv(max_len_k, plan.split_kv) if max_len_k else 1
    if by_splits is None:
        sums_bytes = tokens * heads * splits * options["BLOCK_D"] * 4
        # A single query fills few rows of a tile: programs that each read one split hide each other's memory latency
        is_idle = is_decode or tiles * kv_heads < 2 * programs(q)
        by_splits = splits > 1 and is_idle and sums_bytes <= _SUMS_BYTES_MAX
    if not by_splits:
        return _launch_tiles(call, _held(plan))
    return _launch_splits(call, splits, overlaps=may_overlap(plan.arch))


class _Call(NamedTuple):
    """The arguments that the kernels share."""

    tensors: tuple[Tensor, Tensor, Tensor]
    lengths: tuple[Tensor, Tensor]
    sizes: tuple[int, int, int]
    """The number of sequences, the window, and the longest sequence of keys."""
    keys: tuple[Any, ...]
    """The page table, the scale, and the strides of the keys."""
    tiles: int
    options: dict[str, Any]

    def empty(self, *shape: int) -> Tensor:
        """Return an empty fp32 tensor on the queries' device."""
        return torch.empty(shape, dtype=torch.float32, device=self.tensors[0].device)


def _tuning(plan: AttentionPlan) -> dict[str, int]:
    """Return options that don't affect the order of additions: pipeline stages, and registers so ptxas won't spill."""
    if plan.mma is Mma.WGMMA:
        return {"num_stages": 3 if plan.head_dim <= 128 else 2}
    is_wide = plan.head_dim > 128 and plan.mma in (Mma.FMA, Mma.TCGEN05)
    return {"num_stages": 1 if is_wide else 2, "maxnreg": 255}


def _held(plan: AttentionPlan) -> dict[str, int | bool]:
    """Return how much of its sums `attention_kernel` keeps in registers: as much as fits, found by compiling."""
    is_hopper, half = plan.mma is Mma.WGMMA, max(16, triton.next_power_of_2(plan.head_dim)) // 2
    return {"COLUMNS_MAX": min(half, 64 if is_hopper and half <= 64 else 32), "HOLDS_LAST": is_hopper}


def _integers(x: Tensor) -> Tensor:
    return aligned(x.to(torch.int32).contiguous())


def _launch_tiles(call: _Call, held: dict[str, int | bool]) -> Tensor:
    """Launch one program per tile; each launch has as many tiles as there is memory for their sums."""
    q, k, _ = call.tensors
    block_q, block_d = call.options["BLOCK_Q"], call.options["BLOCK_D"]
    out = torch.empty_like(q)
    kv_heads = k.shape[-2]
    room = max(1, _SUMS_BYTES_MAX // (kv_heads * block_q * block_d * 4))
    sums = call.empty(min(room, call.tiles), kv_heads, block_q, block_d)
    # From the last tiles, which see most keys, to the first
    for behind in range(call.tiles, 0, -room):
        launch(
            attention_kernel, (min(room, behind), kv_heads), *call.tensors, sums, out, *call.lengths,
            *call.sizes, *call.keys, behind, **call.options, **held,
        )  # fmt: skip
    return out


def _launch_splits(call: _Call, splits: int, *, overlaps: bool) -> Tensor:
    """Launch one program per split of each tile, then the kernel that merges them."""
    q, k, _ = call.tensors
    out = torch.empty_like(q)
    rows, kv_heads = q.shape[0] * q.shape[1], k.shape[-2]
    sums = call.empty(rows, splits), call.empty(rows, splits), call.empty(rows, splits, call.options["BLOCK_D"])
    # A split has few blocks of keys: more stages would only leave room for fewer programs
    options = {**call.options, "OVERLAPS": overlaps, "num_stages": min(2, call.options["num_stages"])}
    launch(
        split_kernel, (splits, kv_heads, call.tiles), *call.tensors, *sums, *call.lengths, *call.sizes, *call.keys,
        splits, **options,
    )  # fmt: skip
    launch(
        merge_kernel, (call.tiles, kv_heads, call.options["BLOCK_Q"] // MERGED_ROWS), *sums, out, *call.lengths,
        *call.sizes, splits, **options, **({"launch_pdl": True} if overlaps else {}),
    )  # fmt: skip
    return out
