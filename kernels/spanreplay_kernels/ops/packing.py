"""From padded batches with a mask to packed sequences, so that keys are counted from their own sequence's first.

A mask says, for every query, which keys it may see; a batch padded on the left shifts each sequence by as much as its
neighbours are longer. What a query's sequence is, and where it starts, is read off the mask; a mask that means anything
else than sequences, causal or not, within a window or not, is refused.
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
    """A row's sequence: its keys from `first` to before `end`; its last queries are the sequence's last tokens."""

    first: int
    end: int
    queries: int


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool, scale: float | None = None,
    window: int | None = None,
) -> Tensor:  # fmt: skip
    """Attention of a padded batch; bitwise batch-invariant, over padding too.

    Shapes: q (B, Hq, Q, D), k, v (B, Hkv, S, D), mask (B or 1, Hq or 1, Q, S) or None, result (B, Hq, Q, D); where
        there is no mask, all S keys are the sequence's and the queries its last. Queries that are padding give zeros.
    causal: where there is no mask; a mask tells.
    Dtypes: bf16, fp16, fp32; mask bool (true where a query sees a key) or float (0 where it does).
    Invariance: as `attention`; how far a row is padded changes nothing.
    Raises: UnsupportedInput if the mask adds values, differs between heads, or means no sequences; else as `attention`.
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
    """Each row's sequence, and whether queries see no later keys; read on the CPU, so that a GPU is waited for.

    Raises: UnsupportedInput if the mask says anything else.
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
    """By the last query and, where a window hides its first keys from it, by the first query that sees any."""
    Q = seen.shape[0]
    visible = seen[-1].nonzero()[:, 0]
    if not len(visible):
        raise UnsupportedInput("attention", "the last query sees no key", seen, hint=_HINT)
    end = int(visible[-1]) + 1
    first = int(visible[0]) if window is None else int(seen.any(0).nonzero()[0, 0])
    return Span(first, end, min(Q, end - first))


def _expected(seen: Tensor, span: Span, window: int | None, is_causal: bool) -> Tensor:
    """What the last queries of a sequence see."""
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
