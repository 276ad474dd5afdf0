"""Turns padded batches with a mask into packed sequences, so that keys are counted from their own sequence's start.

A mask says for every query which keys it may see. Left padding shifts each sequence by as much as it is shorter than
the longest. The mask tells which keys belong to a query's sequence and where that starts. Masks that don't describe
sequences (causal or not, with or without a window) are refused.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.attention import attention

__all__ = ["Span", "masked_attention", "spans_of"]

_HINT = "pad on the left, and pass causal masks or none"


class Span(NamedTuple):
    """A row's sequence: its keys are `first` up to `end` (exclusive); its last queries are the last tokens."""

    first: int
    end: int
    queries: int


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool, scale: float | None = None,
    window: int | None = None,
) -> Tensor:  # fmt: skip
    """Compute attention of a padded batch; bitwise batch-invariant, whatever the padding.

    Shapes: q (B, Hq, Q, D), k, v (B, Hkv, S, D), mask (B or 1, Hq or 1, Q, S) or None, result (B, Hq, Q, D); without
        a mask, all S keys belong to the sequence and the queries are its last. Padding queries give zeros.
    causal: used only without a mask, which says so itself.
    Dtypes: bf16, fp16, fp32; mask bool (true where a query sees a key) or float (0 where it does).
    Invariance: as `attention`; the amount of padding changes nothing.
    Raises: UnsupportedInput if the mask adds values, differs between heads or doesn't describe sequences; else as
        `attention`.
    """
    B, Hq, Q, D = q.shape
    S = k.shape[2]
    if mask is None:
        spans = [Span(0, S, Q)] * B
    else:
        mask = mask[(None,) * (4 - mask.dim())].expand(-1, -1, Q, S)
        spans, causal = spans_of(mask, batch=B, window=window)
    if B == 0 or Q == 0:
        return torch.empty_like(q)
    rows = [q[b, :, Q - span.queries :].transpose(0, 1) for b, span in enumerate(spans)]
    keys, values = (
        torch.cat([x[b, :, span.first : span.end].transpose(0, 1) for b, span in enumerate(spans)]) for x in (k, v)
    )
    packed = attention(
        torch.cat(rows), keys, values,
        cu_seqlens_q=_ends([span.queries for span in spans], q.device),
        cu_seqlens_k=_ends([span.end - span.first for span in spans], q.device),
        scale=scale, causal=causal, window=window, max_len_k=max(span.end - span.first for span in spans),
    )  # fmt: skip
    out = q.new_zeros((B, Q, Hq, D))
    for b, part in enumerate(packed.split([span.queries for span in spans])):
        out[b, Q - spans[b].queries :] = part
    return out.transpose(1, 2)


def spans_of(mask: Tensor, *, batch: int, window: int | None = None) -> tuple[list[Span], bool]:
    """Return each row's sequence, and whether the mask is causal; read on the CPU, so a GPU is synchronised.

    Raises: UnsupportedInput if the mask doesn't describe sequences.
    """
    if mask.dim() != 4 or (mask.shape[1] != 1 and mask.stride(1) != 0 and not bool((mask == mask[:, :1]).all())):
        raise UnsupportedInput("attention", "the mask differs between heads", mask, hint=_HINT)
    seen = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
    if mask.dtype != torch.bool and not bool((seen | (mask[:, 0] <= torch.finfo(mask.dtype).min / 2)).all()):
        raise UnsupportedInput("attention", "the mask adds values to scores", mask, hint=_HINT)
    seen = seen.cpu().expand(batch, -1, -1)
    spans = [_span(rows, window) for rows in seen]
    pairs = list(zip(seen, spans, strict=True))
    for is_causal in (True, False):
        if all(torch.equal(_expected(rows, s, window, is_causal), rows[-s.queries :]) for rows, s in pairs):
            return spans, is_causal
    raise UnsupportedInput("attention", "the mask does not mean sequences", mask, hint=_HINT)


def _span(seen: Tensor, window: int | None) -> Span:
    """Find a row's sequence from its last query and, if a window hides early keys, from all queries."""
    Q = seen.shape[0]
    visible = seen[-1].nonzero()[:, 0]
    if not len(visible):
        raise UnsupportedInput("attention", "the last query sees no key", seen, hint=_HINT)
    end = int(visible[-1]) + 1
    first = int(visible[0]) if window is None else int(seen.any(0).nonzero()[0, 0])
    return Span(first, end, min(Q, end - first))


def _expected(seen: Tensor, span: Span, window: int | None, is_causal: bool) -> Tensor:
    """Return the mask that the last queries of a sequence should have."""
    at = torch.arange(span.end - span.queries, span.end)[:, None]
    keys = torch.arange(seen.shape[1])[None]
    visible = (keys >= span.first) & (keys < span.end)
    if is_causal:
        visible = visible & (keys <= at)
    return visible.expand(span.queries, -1) if window is None else visible & (keys > at - window)


def _ends(lengths: list[int], device: torch.device) -> Tensor:
    total, ends = 0, [0]
    for length in lengths:
        total += length
        ends.append(total)
    return torch.tensor(ends, dtype=torch.int32, device=device)
