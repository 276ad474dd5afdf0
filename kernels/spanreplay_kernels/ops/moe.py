"""A mixture of experts: each token goes through a few of many feed-forward networks, and their results are weighted.

Dropless: an expert takes every token that is routed to it. If full experts dropped tokens, a token's fate would depend
on its neighbours, and no kernel could make that invariant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.activation import silu_mul
from spanreplay_kernels.ops.grouped import grouped_mm
from spanreplay_kernels.ops.matmul import matmul
from spanreplay_kernels.ops.permute import combine, permute
from spanreplay_kernels.ops.route import route
from spanreplay_kernels.plans.operands import check_dtype, check_same

__all__ = ["experts", "moe", "moe_ref"]


def moe_ref(
    x: Tensor, router_w: Tensor, gate_up_w: Tensor, down_w: Tensor, top_k: int, *, normalise: bool = True
) -> Tensor:
    """Compute the mixture token by token in fp64, in plain PyTorch: the mathematical definition."""
    rows = []
    for row in x.double():
        scores = (router_w.double() @ row).softmax(0)
        chosen = sorted(range(scores.numel()), key=lambda e: (-float(scores[e]), e))[:top_k]
        total = sum(float(scores[e]) for e in chosen) if normalise else 1.0
        out = torch.zeros_like(row)
        for e in chosen:
            gate, up = (gate_up_w[e].double() @ row).chunk(2)
            out += float(scores[e]) / total * (down_w[e].double() @ (gate * torch.sigmoid(gate) * up))
        rows.append(out)
    return torch.stack(rows).to(x.dtype)


def moe(
    x: Tensor, router_w: Tensor, gate_up_w: Tensor, down_w: Tensor, top_k: int, *, normalise: bool = True
) -> Tensor:
    """Return the weighted sum of each token's `top_k` experts; bitwise batch-invariant.

    y = Σ over chosen e of weight[e] · down_w[e] · (silu(gate) · up), with (gate, up) = gate_up_w[e] · x.
    The router's product is always in fp32: logits in bf16 often tie.

    Shapes: x (T, H) any T, router_w (E, H), gate_up_w (E, 2·I, H), down_w (E, H, I), result (T, H); E ≤ 4095.
    Dtypes: bf16, fp16, fp32, one for all; sums in fp32; each product and the activation are rounded to x's dtype.
    Invariance: row t depends only on x[t] and the weights, not on its experts' other tokens.
    Raises: UnsupportedInput if shapes, dtypes or devices do not fit.
    Source: Shazeer et al. 2017, arXiv:1701.06538; dropless as Gale et al. 2022, arXiv:2211.15841.
    """
    if x.dim() != 2 or router_w.dim() != 2 or x.shape[1] != router_w.shape[1]:
        raise UnsupportedInput("moe", "the router does not fit", x, router_w, hint="pass (T, H) and (E, H)")
    check_dtype("moe", x, router_w)
    logits = matmul(x.float(), router_w.float().t())
    weights, ids = route(logits, top_k, normalise=normalise)
    return experts(x, ids, weights, gate_up_w, down_w)


def experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up_w: Tensor, down_w: Tensor) -> Tensor:
    """Return the weighted sum of the experts that a router chose; bitwise batch-invariant.

    Shapes: x (T, H) any T, ids and weights (T, top_k), gate_up_w (E, 2·I, H), down_w (E, H, I), result (T, H).
    Dtypes: x, gate_up_w, down_w one of bf16, fp16, fp32; weights any of these; ids int64.
    Invariance, Raises: as `moe`. An id outside 0 … E − 1 names no expert and adds nothing.
    """
    _check(x, ids, gate_up_w, down_w)
    E, H, _ = down_w.shape
    if x.shape[0] == 0:
        return x.new_empty((0, H))
    permutation = permute(ids, E)
    rows = x[permutation.order // ids.shape[1]]
    gate, up = grouped_mm(rows, gate_up_w.transpose(1, 2), permutation.offsets).chunk(2, 1)
    out = grouped_mm(silu_mul(gate, up), down_w.transpose(1, 2), permutation.offsets)
    return combine(out, permutation.inverse, weights)


def _check(x: Tensor, ids: Tensor, gate_up_w: Tensor, down_w: Tensor) -> None:
    hint = "pass (T, H), int64 (T, top_k), (E, 2·I, H) and (E, H, I)"
    if x.dim() != 2 or gate_up_w.dim() != 3 or down_w.dim() != 3:
        raise UnsupportedInput("moe", "the operands are not matrices of experts", x, gate_up_w, down_w, hint=hint)
    E, H, width = down_w.shape
    if x.shape[1] != H or gate_up_w.shape != (E, 2 * width, H) or ids.shape[:1] != x.shape[:1]:
        raise UnsupportedInput("moe", "the shapes do not fit", x, ids, gate_up_w, down_w, hint=hint)
    check_same("moe", x, gate_up_w, down_w)
