"""Subjects for products: with one weight, with a weight per group of rows, and experts' networks."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.grouped import grouped_mm
from spanreplay_kernels.ops.matmul import matmul
from spanreplay_kernels.ops.moe import experts
from spanreplay_kernels.ops.scaled import quantize, quantize_weight, scaled_mm
from spanreplay_kernels.plans.arch import Arch
from spanreplay_kernels.plans.plan import FP8, FP8_GROUP, Plan, plan_matmul, plan_scaled
from spanreplay_kernels.subjects._subject import Function, Subject, chosen_by_value, count_parts

__all__ = ["experts_subject", "grouped_subject", "matmul_subject", "scaled_blocks_subject", "scaled_subject"]

_FP32_ULPS = 4.0
"""Plus the root of the number of terms: five standard deviations of a chain of roundings, and far below the error of
TF32, which is 7,000 ulps over that root."""
_FP8_ULPS = 2.0
"""Hopper's tensor core keeps about 14 bits of a block's sum, which is visible in bf16's 8 bits."""
_EXPERTS_ULPS = 4.0
"""Roundings: gate, up, activation, each expert's product and the sum."""


def matmul_subject(n: int, k: int) -> Subject:
    """Return the subject of x · wᵀ, w (N, K) as `linear` passes it."""

    def plans(dtype: str, arch: Arch) -> tuple[Plan, ...]:
        return (plan_matmul(n, k, dtype, arch),)

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return matmul(x, w.t())

    def stock(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w.t())

    ulps_max_fp32 = _FP32_ULPS + math.sqrt(k)
    return Subject(k, ((n, k),), ours, stock, plans, 1.0, varies=_product_in_parts, ulps_max_fp32=ulps_max_fp32)


def scaled_subject(n: int, k: int) -> Subject:
    """Like `matmul_subject`, quantised to fp8 with one scale per row of x and per column of w."""
    return _scaled_subject(n, k, None)


def scaled_blocks_subject(n: int, k: int) -> Subject:
    """Like `scaled_subject`, with one scale per 128 elements of a row and per 128 × 128 block of w."""
    return _scaled_subject(n, k, FP8_GROUP)


def _scaled_subject(n: int, k: int, group: int | None) -> Subject:
    def wide(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantised values of x and w, in fp64."""
        (q, q_scale), (v, v_scale) = quantize(x, group), quantize_weight(w.t(), group)
        if group is not None:
            q_scale = q_scale.repeat_interleave(group, 1)[:, :k]
            v_scale = v_scale.repeat_interleave(group, 0)[:k].repeat_interleave(group, 1)[:, :n]
        return q.double() * q_scale, v.double() * v_scale

    def ours(x: Tensor, w: Tensor) -> Tensor:
        (q, q_scale), (v, v_scale) = quantize(x, group), quantize_weight(w.t(), group)
        return scaled_mm(q, v, q_scale, v_scale, out_dtype=x.dtype)

    def stock(x: Tensor, w: Tensor) -> Tensor:
        q, v = wide(x, w)
        return torch.mm(q.to(x.dtype), v.to(x.dtype))

    def exact(x: Tensor, w: Tensor) -> Tensor:
        q, v = wide(x, w)
        return q @ v

    def varies(x: Tensor, w: Tensor) -> Tensor:
        q, v = wide(x, w)
        return _product_in_parts(q.float(), v.float().t()).to(x.dtype)

    def plans(_dtype: str, arch: Arch) -> tuple[Plan, ...]:
        return (plan_scaled(n, k, FP8, arch),)

    return Subject(k, ((n, k),), ours, stock, plans, _FP8_ULPS, exact, varies)


def _product_in_parts(x: Tensor, w: Tensor) -> Tensor:
    """Return x · wᵀ, summed in as many parts as a fast kernel would use to fill a device."""
    parts = count_parts(x.shape[0])
    pairs = zip(x.float().chunk(parts, 1), w.float().chunk(parts, 1), strict=True)
    return torch.stack([a @ b.t() for a, b in pairs]).sum(0).to(x.dtype)


def grouped_subject(count: int, n: int, k: int) -> Subject:
    """Return the subject of grouped products; a row's own value chooses its weight, so groups differ in every batch."""

    def grouped(product: Function) -> Function:
        def call(x: Tensor, w: Tensor) -> Tensor:
            chosen = chosen_by_value(x, count)
            order = torch.argsort(chosen, stable=True)
            ends = torch.bincount(chosen, minlength=count).cumsum(0).to(torch.int32)
            return product(x[order], w.transpose(1, 2), ends)[torch.argsort(order)]

        return call

    def exact(x: Tensor, w: Tensor) -> Tensor:
        chosen = chosen_by_value(x, count).tolist()
        return torch.stack([row @ w[e].t() for row, e in zip(x, chosen, strict=True)])

    def varying(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        starts = [0, *ends.tolist()]
        groups = [x[start:end] for start, end in itertools.pairwise(starts)]
        return torch.cat([_product_in_parts(rows, each.t()) for rows, each in zip(groups, w, strict=True)])

    def plans(dtype: str, arch: Arch) -> tuple[Plan, ...]:
        return (plan_matmul(n, k, dtype, arch),)

    stock = grouped(torch._grouped_mm)
    ulps_max_fp32 = _FP32_ULPS + math.sqrt(k)
    return Subject(
        k, ((count, n, k),), grouped(grouped_mm), stock, plans, 1.0, exact, grouped(varying),
        ulps_max_fp32=ulps_max_fp32,
    )  # fmt: skip


def experts_subject(count: int, inner: int, hidden: int, top_k: int) -> Subject:
    """Return the subject of the weighted sum of `top_k` gated experts, chosen by a row's own value."""
    if top_k > count:
        raise UnsupportedInput("experts", f"top_k {top_k} is above {count} experts", hint="choose fewer")
    scale = 2.0 ** -math.ceil(math.log2(hidden) / 2)  # exact, and keeps products within fp16

    def choose(x: Tensor) -> tuple[Tensor, Tensor]:
        slots = torch.arange(top_k, device=x.device)
        ids = (chosen_by_value(x, count)[:, None] + slots) % count
        weights = (slots + 1.0) / (top_k * (top_k + 1) / 2)
        return ids, weights.to(x.dtype).expand(x.shape[0], top_k).contiguous()

    def ours(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return experts(x * scale, *choose(x), gate_up, down)

    def by(product: Function) -> Function:
        """Compute expert by expert, each over the rows that chose it, as transformers' own models do."""

        def call(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
            ids, weights = choose(x)
            out = torch.zeros_like(x)
            for e in range(count):
                rows, slots = (ids == e).nonzero(as_tuple=True)
                if rows.numel():
                    gate, up = product(x[rows] * scale, gate_up[e]).chunk(2, -1)
                    result = product(functional.silu(gate) * up, down[e])
                    out.index_add_(0, rows, result * weights[rows, slots][:, None])
            return out

        return call

    def plans(dtype: str, arch: Arch) -> tuple[Plan, ...]:
        return plan_matmul(2 * inner, hidden, dtype, arch), plan_matmul(hidden, inner, dtype, arch)

    shapes = ((count, 2 * inner, hidden), (count, hidden, inner))
    stock, varies = by(functional.linear), by(_product_in_parts)
    return Subject(hidden, shapes, ours, stock, plans, _EXPERTS_ULPS, varies=varies)
