"""Attention on the CPU: tiles of `block_q` rows times blocks of `block_kv` keys, every product a call of one shape.

In calls of one shape, the library computes a row with the same bits at every position. All else is elementwise in fp32
or a maximum, which doesn't depend on the order. A column of ones in the values yields the sum of weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from spanreplay_kernels.plans.plan import AttentionPlan
from spanreplay_kernels.plans.vendor import vendor_bmm

__all__ = ["attention_cpu"]

_HEADS_MAX = 8
"""Key heads in one call: few enough that torch doesn't split an elementwise call over its threads."""
_LANES = 16
"""Columns are padded to a multiple of this, so that they fill whole vectors."""


class _Sequence(NamedTuple):
    """The queries and keys of one sequence, tiled as the plan says and padded with zeros at the end."""

    queries: Tensor
    """(tiles, Hkv, block_q, D) in fp32; row r is query r // group, head r % group."""
    keys: Tensor
    """(blocks, Hkv, D, block_kv) in fp32, times the scale, so that scores are exponents of 2."""
    values: Tensor
    """(blocks, Hkv, block_kv, D + some) in fp32; column D holds ones."""
    first_position: int
    length: int


class _Mask(NamedTuple):
    """Which keys a query may see."""

    causal: bool
    window: int | None


def attention_cpu(
    q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, *, cu_seqlens_q: Tensor | None, lengths: Tensor,
    block_table: Tensor | None = None, scale: float, causal: bool = True, window: int | None = None,
    max_len_k: int | None = None,
) -> Tensor:  # fmt: skip
    """Compute attention with fixed-shape calls of the CPU's library; arguments as in `attention_triton`."""
    group = q.shape[1] // k.shape[-2]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    heads = range(0, k.shape[-2], _HEADS_MAX)
    for rows, keys, values in _sequences(q, k, v, cu_seqlens_q, lengths, block_table):
        for head in heads:
            some = slice(head, head + _HEADS_MAX)
            queries = q[rows].unflatten(1, (-1, group))[:, some]
            sequence = _cut(queries, keys[:, some], values[:, some], plan, scale * math.log2(math.e))
            result = _attend(sequence, plan, _Mask(causal, window), group)
            out[rows].unflatten(1, (-1, group))[:, some] = result[: queries.shape[0]]
    return out


def _sequences(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, lengths: Tensor, block_table: Tensor | None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows of q, keys, values) for each sequence that has queries."""
    count = lengths.shape[0] - (block_table is None)
    starts = list(range(count + 1)) if cu_seqlens_q is None else cu_seqlens_q.tolist()
    sizes = lengths.tolist()
    for i in range(count):
        rows = slice(starts[i], starts[i + 1])
        if rows.start == rows.stop:
            continue
        if block_table is None:
            yield rows, k[sizes[i] : sizes[i + 1]], v[sizes[i] : sizes[i + 1]]
        else:
            pages = block_table[i, : -(-sizes[i] // k.shape[1])]
            yield rows, k[pages].flatten(0, 1)[: sizes[i]], v[pages].flatten(0, 1)[: sizes[i]]


def _cut(queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float) -> _Sequence:
    """Cut queries (Lq, Hkv, group, D) into tiles, keys and values (Lk, Hkv, D) into blocks."""
    count, heads, group, head_dim = queries.shape
    length = keys.shape[0]
    tiles, blocks = -(-count * group // plan.block_q), -(-length // plan.block_kv)
    tiled = queries.new_zeros((heads, tiles * plan.block_q, head_dim), dtype=torch.float32)
    tiled[:, : count * group] = queries.transpose(0, 1).flatten(1, 2)
    blocked = keys.new_zeros((blocks * plan.block_kv, heads, head_dim), dtype=torch.float32)
    blocked[:length] = keys.float() * scale
    width = (head_dim // _LANES + 1) * _LANES
    summed = values.new_zeros((blocks * plan.block_kv, heads, width), dtype=torch.float32)
    summed[:length, :, :head_dim] = values
    summed[:length, :, head_dim] = 1.0
    return _Sequence(
        tiled.unflatten(1, (tiles, plan.block_q)).transpose(0, 1).contiguous(),
        blocked.unflatten(0, (blocks, plan.block_kv)).permute(0, 2, 3, 1).contiguous(),
        summed.unflatten(0, (blocks, plan.block_kv)).transpose(1, 2).contiguous(),
        length - count,
        length,
    )


def _attend(sequence: _Sequence, plan: AttentionPlan, mask: _Mask, group: int) -> Tensor:
    """Return the result (queries, Hkv, group, D), with extra padding rows at the end."""
    tiles, heads, rows, head_dim = sequence.queries.shape
    results = sequence.queries.new_empty((heads, tiles, rows, head_dim))
    for tile in range(tiles):
        first = tile * rows
        last = sequence.first_position + torch.arange(first, first + rows) // group
        last = last.clamp(max=sequence.length - 1) if mask.causal else torch.full_like(last, sequence.length - 1)
        sums = _attend_tile(sequence, sequence.queries[tile], last[:, None], plan, mask)
        w = sums[..., head_dim : head_dim + 1]
        # + 0.0 turns -0.0 into 0.0
        results[:, tile] = sums[..., :head_dim] / torch.where(w == 0, 1.0, w) + 0.0
    whole = tiles * rows // group
    return results.flatten(1, 2)[:, : whole * group].unflatten(1, (whole, group)).transpose(0, 1)


def _attend_tile(sequence: _Sequence, q: Tensor, last: Tensor, plan: AttentionPlan, mask: _Mask) -> Tensor:
    """Return a tile's weighted sums (Hkv, rows, D + some) over all splits; `last` (rows, 1) is each row's last key."""
    lowest, highest = int(last[0]), int(last[-1])
    start = 0 if mask.window is None else max(0, lowest - mask.window + 1) // plan.block_kv * plan.block_kv
    m, sums = q.new_full((*q.shape[:2], 1), -math.inf), q.new_zeros((*q.shape[:2], sequence.values.shape[-1]))
    for first in range(start // plan.split_kv * plan.split_kv, highest + 1, plan.split_kv):
        blocks = range(max(first, start), min(first + plan.split_kv, highest + 1), plan.block_kv)
        m_split, split = _attend_split(sequence, q, last, lowest, blocks, plan, mask)
        top, old, new = _weights(m, m_split)
        m, sums = top, sums * old + split * new
    return sums


def _attend_split(
    sequence: _Sequence, q: Tensor, last: Tensor, lowest: int, blocks: range, plan: AttentionPlan, mask: _Mask
) -> tuple[Tensor, Tensor]:
    """Return the largest score and the weighted sums of one split, started from zero."""
    m, sums = q.new_full((*q.shape[:2], 1), -math.inf), q.new_zeros((*q.shape[:2], sequence.values.shape[-1]))
    for at in blocks:
        s = vendor_bmm(q, sequence.keys[at // plan.block_kv])
        # Skip a mask that would hide nothing
        if at + plan.block_kv - 1 > lowest or mask.window is not None:
            keys = torch.arange(at, at + plan.block_kv)
            allowed = keys <= last if mask.window is None else (keys <= last) & (keys > last - mask.window)
            s = s.where(allowed, -math.inf)
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        finite = torch.where(top == -math.inf, 0.0, top)
        p = s.sub_(finite).exp2_()
        sums = sums * torch.exp2(m - finite) + vendor_bmm(p, sequence.values[at // plan.block_kv])
        m = top
    return m, sums


def _weights(m: Tensor, m_new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (largest score, weight of the sums so far, weight of the new split's sums) for each row."""
    top = torch.maximum(m, m_new)
    finite = torch.where(top == -math.inf, 0.0, top)
    return top, torch.exp2(m - finite), torch.exp2(m_new - finite)
