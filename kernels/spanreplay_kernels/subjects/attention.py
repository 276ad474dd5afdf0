"""The subject for attention: each row is a query of its own sequence, whose keys are a prefix of the shared keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.attention import attention, paged_attention
from spanreplay_kernels.plans.arch import Arch
from spanreplay_kernels.plans.plan import Plan, plan_attention
from spanreplay_kernels.subjects._subject import Subject, chosen_by_value, in_parts

__all__ = ["attention_subject"]

_PAGE = 16
_PREFILL = 40
_SPREAD = 63_352
"""Spreads rows over all lengths: similar values see different numbers of keys."""


def attention_subject(heads: int, kv_heads: int, head_dim: int, length: int) -> Subject:
    """Return the subject of attention: one query per row, whose own value says how many of `length` keys it sees.

    The other form computes the same query as the last one of a prefill.
    """
    if heads % kv_heads or length % _PAGE:
        problem = f"{heads} heads over {kv_heads}, {length} keys in pages of {_PAGE}, do not fit"
        raise UnsupportedInput("attention", problem, hint="write Hq x Hkv x D x L as 32x8x128x4096")

    def queries(x: Tensor) -> Tensor:
        return x.reshape(-1, heads, head_dim)

    def seen(x: Tensor) -> Tensor:
        return chosen_by_value(x, length, _SPREAD) + 1

    def ours(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pages = torch.arange(length // _PAGE, dtype=torch.int32, device=x.device).expand(x.shape[0], -1)
        keys, values = (each.view(-1, _PAGE, kv_heads, head_dim) for each in (k, v))
        return paged_attention(queries(x), keys, values, pages.contiguous(), seen(x).int()).reshape(x.shape)

    def in_a_prefill(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute each row after other queries of its own sequence, with packed instead of paged keys."""
        rows = []
        for at, keys in enumerate(seen(x).tolist()):
            before = x.roll(-at - 1, 0)[: min(_PREFILL, keys) - 1]
            q = queries(torch.cat((before, x[at : at + 1])))
            ends = (torch.tensor([0, n], dtype=torch.int32, device=x.device) for n in (q.shape[0], keys))
            cu_q, cu_k = ends
            out = attention(q, k[:keys], v[:keys], cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
            rows.append(out[-1].reshape(-1))
        return torch.stack(rows)

    def scores_of(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return (scores (Hq, rows, L), mask of the keys that a row sees)."""
        allowed = torch.arange(length, device=x.device) < seen(x)[:, None]
        keys = k.repeat_interleave(heads // kv_heads, 1).transpose(0, 1)
        scores = queries(x).transpose(0, 1) @ keys.transpose(1, 2) * head_dim**-0.5
        return scores.masked_fill(~allowed, -torch.inf), allowed

    def stock(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = torch.arange(length, device=x.device) < seen(x)[:, None]
        q, keys, values = (each.transpose(0, 1)[None] for each in (queries(x), k, v))
        out = functional.scaled_dot_product_attention(q, keys, values, allowed[None, None], enable_gqa=True)
        return out[0].transpose(0, 1).reshape(x.shape)

    def exact(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = scores_of(x, k)[0].softmax(-1)
        values = v.repeat_interleave(heads // kv_heads, 1).transpose(0, 1)
        return (weights @ values).transpose(0, 1).reshape(x.shape)

    def varies(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with the denominator split into as many parts as few queries need to fill a device."""
        scores, _ = scores_of(x.float(), k.float())
        powers = torch.exp(scores - scores.amax(-1, keepdim=True))
        values = v.float().repeat_interleave(heads // kv_heads, 1).transpose(0, 1)
        sums = in_parts(powers.transpose(0, 1))
        return ((powers @ values).transpose(0, 1) / sums[..., None]).to(x.dtype).reshape(x.shape)

    def plans(dtype: str, arch: Arch) -> tuple[Plan, ...]:
        return (plan_attention(head_dim, dtype, arch),)

    shape = (length, kv_heads, head_dim)
    forms = (("as the last query of a prefill", in_a_prefill),)
    return Subject(heads * head_dim, (shape, shape), ours, stock, plans, 1.0, exact, varies, forms)
